"""Alerts open once, close when it is over, are told to others, and keep what people said."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from torchett.cli.main import main
from torchett.fleet import Fleet
from torchett.fleet.detector.alerts import Alerts
from torchett.fleet.detector.limits import over_limits
from torchett.fleet.detector.notice import Notice
from torchett.fleet.detector.regressions import Detector
from torchett.fleet.detector.settings import LimitSettings, SendSettings, Settings, read_settings
from torchett.fleet.detector.watch import look
from torchett.fleet.rows import JobRows, label_columns, timestamp
from torchett.fleet.schema import ATTEMPTS, JOBS
from torchett.model.errors import InputError

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
NOW_S = NOW.timestamp()
H = 3600 * 10**9


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet.open(tmp_path / "fleet") as made:
        yield made


def job(name: str, state: str, hours: list[tuple[int, str, str, int]], **more: Any) -> JobRows:
    """A job of 4 ranks; `hours` are (hours ago, group, account, ns)."""
    begin = NOW - timedelta(hours=30)
    row = dict.fromkeys(JOBS.names, 0) | label_columns({"team": "ads"})
    row |= {"project": "p", "job": name, "state": state, "ranks": 4, "path": "", "source": "sacct"}
    row |= {"began": timestamp(int(begin.timestamp() * 1e9)), "ended": NOW.replace(tzinfo=None)}
    row |= more
    identity = {"project": "p", "job": name}
    attempt = dict.fromkeys(ATTEMPTS.names, 0) | label_columns({"team": "ads"}) | identity
    attempt |= {"state": state, "began": row["began"], "ended": row["ended"], "own": None}
    attempt |= {"cause": None, "domain": None}
    rows = [
        {**identity, "hour": NOW.replace(tzinfo=None) - timedelta(hours=ago), "account": account,
         "account_group": group, "ns": ns}
        for ago, group, account, ns in hours
    ]  # fmt: skip
    return JobRows(job=row, attempts=[attempt], hours=rows, live=state == "live")


def found(fleet: Fleet, **limits: float) -> dict[str, Notice]:
    settings = Settings(classes=("team",), limits=LimitSettings(**limits))
    return {one.rule: one for one in over_limits(fleet, settings, NOW.replace(tzinfo=None))}


STEPS = [(10, "effective", "effective", 4 * H), (9, "in_loop", "other_in_loop", 4 * H)]


def test_a_live_job_without_training_hangs(fleet: Fleet) -> None:
    waits = [(ago, "in_loop", "other_in_loop", 4 * H) for ago in range(9)]
    fleet.put([job("hung", "live", STEPS + waits)])
    trains = [(ago, "effective", "effective", 4 * H) for ago in range(11)]
    fleet.put([job("well", "live", trains)])
    notices = found(fleet, stalled_s=3600)
    assert notices["stalled"].job == "hung"
    assert notices["stalled"].value == pytest.approx(9 * 3600)
    assert "silent" not in notices


def test_a_live_job_without_a_sign_of_life_is_silent(fleet: Fleet) -> None:
    seen = NOW.replace(tzinfo=None) - timedelta(minutes=40)
    fleet.put([job("gone", "live", STEPS, ended=seen), job("over", "success", STEPS, ended=seen)])
    assert found(fleet)["silent"].value == pytest.approx(2400)


def test_training_that_no_checkpoint_holds(fleet: Fleet) -> None:
    fleet.put([job("unsaved", "live", [(0, *STEPS[0][1:])], at_risk_ns=4 * 3 * H)])
    assert found(fleet)["not_durable"].value == pytest.approx(3 * 3600)
    assert "not_durable" not in found(fleet, at_risk_s=4 * 3600)


def test_shares_and_times_over_a_limit(fleet: Fleet) -> None:
    hours = [
        (2, "effective", "effective", 80 * H), (2, "held_idle", "held_idle", 10 * H),
        (2, "unsaved", "unsaved", 6 * H), (2, "in_loop", "checkpoint_blocked", 4 * H),
    ]  # fmt: skip
    slow = {"time_to_start_ns": H, "time_to_recover_ns": H, "recoveries": 2}
    fleet.put([job("a", "success", hours, **slow)])
    limits = {"unsaved_percent": 5, "saving_percent": 3, "held_idle_percent": 9}
    notices = found(fleet, time_to_start_s=600, time_to_recover_s=600, **limits)
    assert set(notices) == {"unsaved", "saving", "held_idle", "time_to_start", "time_to_recover"}
    assert notices["unsaved"].value == pytest.approx(6)
    assert notices["time_to_recover"].value == pytest.approx(1800)
    assert "team ads" in notices["saving"].text


class Receiver(BaseHTTPRequestHandler):
    got: list[tuple[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.got.append((self.path, json.loads(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    got: list[tuple[str, Any]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Here", (Receiver,), {"got": got}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()


def test_firing_and_resolved_are_sent_once(
    fleet: Fleet, receiver: tuple[str, list[tuple[str, Any]]]
) -> None:
    url, got = receiver
    settings = Settings(send=SendSettings(webhook=f"{url}/hook", alertmanager=url))
    detector = Detector(settings)
    seen = NOW.replace(tzinfo=None) - timedelta(minutes=40)
    fleet.put([job("gone", "live", STEPS, ended=seen)])
    assert [one.rule for one in look(fleet, detector, NOW_S).opened] == ["silent"]
    assert look(fleet, detector, NOW_S + 60).opened == []
    fleet.put([job("gone", "success", STEPS, ended=seen)])
    assert [one.rule for one in look(fleet, detector, NOW_S + 120).closed] == ["silent"]
    hooks = [body for path, body in got if path == "/hook"]
    assert [body["status"] for body in hooks] == ["firing", "resolved"]
    told = [body for path, body in got if path == "/api/v2/alerts"]
    assert len(told) == 3  # open ones are told at every look
    assert told[0][0]["labels"] == {
        "alertname": "torchett_silent", "severity": "page", "project": "p", "ett_job": "gone"
    }  # fmt: skip
    assert ["endsAt" in body[0] for body in told] == [False, False, True]


def test_a_receiver_that_is_down_is_said_and_loses_nothing(fleet: Fleet) -> None:
    settings = Settings(send=SendSettings(webhook="http://127.0.0.1:9/x"))
    seen = NOW.replace(tzinfo=None) - timedelta(minutes=40)
    fleet.put([job("gone", "live", STEPS, ended=seen)])
    looked = look(fleet, Detector(settings), NOW_S)
    assert len(looked.errors) == 1
    (one,) = Alerts(fleet.state).open(NOW_S)
    assert [act.what for act in one.acts] == ["opened", "failed to send"]


def test_a_muted_alert_is_shown_and_not_sent(
    fleet: Fleet, receiver: tuple[str, list[tuple[str, Any]]]
) -> None:
    url, got = receiver
    alerts = Alerts(fleet.state)
    number = alerts.mute("silent", {"job": "gone"}, NOW_S + 3600, who="me", now_s=NOW_S)
    seen = NOW.replace(tzinfo=None) - timedelta(minutes=40)
    fleet.put([job("gone", "live", STEPS, ended=seen)])
    look(fleet, Detector(Settings(send=SendSettings(webhook=url))), NOW_S)
    assert got == []
    assert [one.muted for one in alerts.open(NOW_S)] == [True]
    alerts.unmute(number, NOW_S + 1)
    assert [one.muted for one in alerts.open(NOW_S + 1)] == [False]


def test_an_alert_keeps_its_history(fleet: Fleet) -> None:
    alerts = Alerts(fleet.state)
    one = Notice(rule="silent", severity="page", text="t", value=1.0, project="p", job="j")
    (number,), _ = alerts.update([one], NOW_S)
    alerts.acknowledge(number, "ann", "rebooting", NOW_S + 5)
    assert alerts.update([], NOW_S + 9) == ([], [number])
    (past,) = alerts.history(NOW_S + 9)
    assert [(act.what, act.who) for act in past.acts] == [
        ("opened", None), ("acknowledged", "ann"), ("closed", None)
    ]  # fmt: skip
    assert fleet.query("SELECT rule FROM alerts WHERE closed IS NOT NULL").to_pylist()
    with pytest.raises(InputError, match="alert 99"):
        alerts.acknowledge(99, None, None, NOW_S)


@pytest.mark.parametrize(
    "text",
    ["classes = ['colour']", "[limits]\nsilent_s = -1", "budget = 'x'", "no = 1", "[send",
     "[send]\nwebhook = 'file:///etc'"],
)  # fmt: skip
def test_wrong_settings_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "alerts.toml").write_text(text)
    with pytest.raises(InputError, match=r"alerts\.toml"):
        read_settings(tmp_path)


def test_alerts_by_command(fleet: Fleet) -> None:
    seen = datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=1)
    fleet.put([job("gone", "live", [], ended=seen)])
    here = ["--fleet", str(fleet.folder)]

    def ett(*args: str) -> Any:
        return CliRunner().invoke(main, ["fleet", "alerts", *args, *here])

    assert ett("watch", "--once").exit_code == 1
    (one,) = json.loads(CliRunner().invoke(
        main, ["fleet", "alerts", "--json", *here]).stdout)  # fmt: skip
    assert one["rule"] == "silent"
    assert ett("ack", str(one["id"]), "--note", "x").exit_code == 0
    assert ett("mute", "--rule", "silent", "--for", "2h").exit_code == 0
    assert ett("watch", "--once").exit_code == 0  # muted
    assert ett("mute", "--for", "2 days").exit_code == 2
    number = json.loads(ett("mute", "--rule", "stalled", "--json").stdout)["mute"]
    ended = {"mute": number, "ended": True}
    assert json.loads(ett("unmute", str(number), "--json").stdout) == ended
    assert json.loads(ett("ack", str(one["id"]), "--json").stdout)["alert"] == one["id"]
    assert ett("ack", "77").exit_code == 2
