"""A run exported over OTLP and imported again has the same ledger; spans of an SDK are a run."""

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from _histories import Wide

from torchett.cli.main import main
from torchett.runs.reader import RunReader

pytest.importorskip("opentelemetry.proto")


@pytest.fixture
def collector() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A receiver of OTLP/HTTP that stores request bodies by path."""
    got: dict[str, bytes] = {}

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got[self.path] = got.get(self.path, b"") + body
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()


def test_export_and_import_give_the_same_ledger(
    collector: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    url, got = collector
    Wide(ranks=5, attempts=3).write_records(tmp_path / "wide")
    said = CliRunner().invoke(
        main, ["export", str(tmp_path / "wide"), "--format", "otlp", "-o", url]
    )
    assert said.exit_code == 0, said.output
    (tmp_path / "spans.pb").write_bytes(got["/v1/traces"])
    back = CliRunner().invoke(
        main, ["import", str(tmp_path / "spans.pb"), f"{tmp_path}/back", "--format", "otlp"]
    )
    assert back.exit_code == 0, back.output
    ours, theirs = (RunReader(tmp_path / n).poll().ledger() for n in ("wide", "back"))
    assert theirs.ranks == ours.ranks
    assert theirs.rank_ns == pytest.approx(ours.rank_ns, abs=1e4)
    for name, ns in ours.accounts.items():
        assert theirs.accounts.get(name, 0) == pytest.approx(ns, abs=1e5), name
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

    request = metrics_service_pb2.ExportMetricsServiceRequest()
    request.ParseFromString(got["/v1/metrics"])
    gauges = {
        m.name: m.gauge.data_points for m in request.resource_metrics[0].scope_metrics[0].metrics
    }
    assert gauges["ett.ratio"][0].as_double == pytest.approx(ours.ett_percent / 100)
    whole = sum(point.as_double for point in gauges["ett.rank_seconds"])
    assert whole == pytest.approx(ours.rank_ns / 1e9)


def test_spans_of_the_sdk_are_a_run(
    collector: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    url, got = collector
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider(resource=Resource({"service.name": "mine"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    tracer = provider.get_tracer("t")
    s = 1_000_000_000

    def span(t0: int, t1: int, **said: object) -> None:
        attributes = {f"ett.{key}": value for key, value in said.items()}
        one = tracer.start_span("x", start_time=t0 * s, attributes=attributes)  # type: ignore[arg-type]
        one.end(end_time=t1 * s)

    span(1000, 1010, account="imports", rank=0)
    for i in range(5):
        span(1010 + i, 1011 + i, step=i)
    span(1011, 1012, http="of something else")
    provider.shutdown()
    (tmp_path / "s.pb").write_bytes(got["/v1/traces"])
    run = f"{tmp_path}/mine"
    args = ["import", str(tmp_path / "s.pb"), run, "--format", "otlp"]
    assert CliRunner().invoke(main, args).exit_code == 0
    ledger = RunReader(Path(run)).poll().ledger()
    assert ledger.accounts == {"imports": 10 * s, "effective": 5 * s}


def test_a_file_that_is_not_a_trace_is_one_line(tmp_path: Path) -> None:
    for data in (b"\xff\xff\xff", b""):
        (tmp_path / "x").write_bytes(data)
        args = ["import", str(tmp_path / "x"), f"{tmp_path}/run", "--format", "otlp"]
        said = CliRunner().invoke(main, args)
        assert said.exit_code == 2
        assert said.output.startswith("ett: ")
        assert not (tmp_path / "run").exists()


def test_a_bad_endpoint_is_one_line(tmp_path: Path) -> None:
    Wide(ranks=1, attempts=1).write_records(tmp_path / "w")
    for where in (["-o", "nowhere"], ["-o", "http://127.0.0.1:9"], []):
        args = ["export", str(tmp_path / "w"), "--format", "otlp", *where]
        said = CliRunner().invoke(main, args)
        assert (said.exit_code, said.output.count("\n")) == (2, 1)
