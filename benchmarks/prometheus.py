"""A real Prometheus scrapes `ett serve`, fires on a regression, and tells a real Alertmanager.

    python benchmarks/prometheus.py [--json]

Needs `prometheus` and `prometheus-alertmanager` on PATH (Debian's will do). All on loopback. Every
expression of the dashboard and of the rules must return data.
"""

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import uvicorn
from _fleets import Regression, fill
from _table import Bar, Column, Report, Sheet, options

from torchett.fleet import Fleet
from torchett.fleet.detector.alerts import Alerts
from torchett.fleet.detector.regressions import Detector
from torchett.fleet.detector.settings import SendSettings, Settings
from torchett.fleet.detector.watch import look
from torchett.serve.app import make_app
from torchett.sinks.rules import ALARMS, PANELS, RECORDED, rules_yaml

# These need a week of data, or a job that is broken.
_QUIET = {"TorchettEffectiveTimeFell", "TorchettNotDurable", "TorchettJobSilent"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def served(folder: Path, port: int) -> Iterator[None]:
    config = uvicorn.Config(make_app(None, fleet=folder), port=port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield
    server.should_exit = True
    thread.join(10)


@contextmanager
def receiver(port: int, got: list[dict[str, Any]]) -> Iterator[None]:
    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield
    server.shutdown()
    server.server_close()


@contextmanager
def running(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def asked(port: int, expression: str) -> list[Any]:
    query = urllib.parse.urlencode({"query": expression})
    url = f"http://127.0.0.1:{port}/api/v1/query?{query}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


def waited(what: Callable[[], Any], seconds: float = 40) -> float | None:
    """Seconds until it holds; None: it never did."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            if what():
                return time.monotonic() - began
        except OSError:
            pass
        time.sleep(0.3)
    return None


def config(folder: Path, ours: int, manager: int, hook: int) -> None:
    (folder / "rules.yml").write_text(rules_yaml("1s"))
    managers, targets = (
        f"static_configs: [{{targets: ['127.0.0.1:{port}']}}]" for port in (manager, ours)
    )
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        "rule_files: [rules.yml]\n"
        f"alerting: {{alertmanagers: [{{{managers}}}]}}\n"
        f"scrape_configs: [{{job_name: ett, {targets}}}]\n"
    )
    (folder / "alertmanager.yml").write_text(
        "route: {receiver: hook, group_wait: 1s, group_interval: 1s, group_by: [alertname]}\n"
        f"receivers: [{{name: hook, webhook_configs: [{{url: 'http://127.0.0.1:{hook}/',"
        " send_resolved: true}]}]\n"
    )


def told(got: list[dict[str, Any]], status: str, name: str) -> bool:
    return any(
        one["status"] == status and one["labels"]["alertname"] == name
        for body in list(got)
        for one in body["alerts"]
    )


def main() -> None:
    asked_for = options(__doc__ or "").parse_args()
    ours, prometheus, manager, hook = (free_port() for _ in range(4))
    got: list[dict[str, Any]] = []
    rows, bars = [], []
    now_s = time.time()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        put = Regression(
            since_s=now_s - 2 * 86400, labels={"torch": "2.15"}, account="recompile", points=25.0
        )
        fill(folder / "fleet", end_s=now_s, days=38, jobs=600, seed=2, regressions=[put]).close()
        config(folder, ours, manager, hook)
        with (
            served(folder / "fleet", ours),
            receiver(hook, got),
            running("prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml",
                    f"--storage.path={folder}/am", f"--web.listen-address=127.0.0.1:{manager}",
                    "--cluster.listen-address="),
            running("prometheus", f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/db",
                    f"--web.listen-address=127.0.0.1:{prometheus}"),
        ):  # fmt: skip
            scraped = waited(lambda: asked(prometheus, "torchett:fleet_ett_ratio:1d"))
            bars.append(Bar("scraped and recorded", "yes", _s(scraped), scraped is not None))
            send = SendSettings(alertmanager=f"http://127.0.0.1:{manager}")
            with Fleet.open(folder / "fleet") as fleet:
                detector = Detector(Settings(classes=("team",), send=send))
                opened = look(fleet, detector, time.time()).opened
                bars.append(Bar("regressions opened", "≥ 1", str(len(opened)), bool(opened)))
                for name, status in (
                    ("TorchettRegression", "firing"),
                    ("torchett_regression", "firing"),
                ):
                    took = waited(lambda n=name, s=status: told(got, s, n))  # type: ignore[misc]
                    bars.append(Bar(f"{name} {status}", "yes", _s(took), took is not None))
                rows = _expressions(prometheus)
                known = Alerts(fleet.state)
                ids = [one.id for one in known.open(time.time()) if one.rule == "regression"]
                known.update([], time.time(), over=ids)
                shut = known.of(ids, time.time())
                from torchett.fleet.detector.send import send_alertmanager

                send_alertmanager(send, shut)
                for name in ("TorchettRegression", "torchett_regression"):
                    took = waited(lambda n=name: told(got, "resolved", n))  # type: ignore[misc]
                    bars.append(Bar(f"{name} resolved", "yes", _s(took), took is not None))
    empty = [row["what"] for row in rows if not row["series"] and row["what"] not in _QUIET]
    bars.append(Bar("expressions without data", "none", ", ".join(empty) or "none", not empty))
    columns = [Column("what", "expression of"), Column("series", "series", str)]
    report = Report("prometheus", [Sheet("on the real Prometheus", columns, rows)], bars)
    report.show(asked_for.json)


def _expressions(prometheus: int) -> list[dict[str, Any]]:
    named = [(one.name, one.expression) for one in (*RECORDED, *ALARMS)]
    named += [(panel.title, panel.expression) for panel in PANELS]
    found = []
    for name, expression in named:
        plain = expression.replace("$team", ".*").replace("$model", ".*")
        found.append({"what": name, "series": len(asked(prometheus, plain))})
    return found


def _s(value: float | None) -> str:
    return "never" if value is None else f"after {value:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
