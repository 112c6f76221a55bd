"""Spans of an OpenTelemetry SDK, sent to `ett serve`, are a job of the fleet."""

import gzip
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from test_serve_pages import history

from torchett.fleet import Fleet
from torchett.serve.access import Access
from torchett.serve.otlp import trace_route

pytest.importorskip("opentelemetry.proto")
from torchett.sinks.otlp import trace_requests

KIND = {"content-type": "application/x-protobuf"}


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    Fleet.open(tmp_path).close()
    access = Access(tmp_path / "fleet.db", loopback=True)
    app = Starlette(routes=[trace_route(tmp_path, access)])
    return TestClient(app, base_url="http://localhost")


def test_spans_sent_in_parts_are_one_job(client: TestClient, tmp_path: Path) -> None:
    sent = history("../we ird")
    ((body, _),) = trace_requests(sent)
    packed = KIND | {"content-encoding": "gzip"}
    assert client.post("/v1/traces", content=gzip.compress(body), headers=packed).status_code == 200
    more = history("../we ird", ranks=2)
    assert more.job.name == "../we ird"
    with Fleet.open(tmp_path) as fleet:
        (row,) = fleet.query("SELECT job, ranks, attempts, infra_failures FROM jobs").to_pylist()
    assert row == {"job": "we-ird", "ranks": 2, "attempts": 2, "infra_failures": 1}
    again = client.post("/v1/traces", content=body, headers=KIND)  # a second start of an attempt
    assert again.status_code == 400
    assert sorted(path.name for path in (tmp_path / "otlp" / "default").iterdir()) == [
        "we-ird", "we-ird.pb"
    ]  # fmt: skip
    assert (tmp_path / "otlp" / "default" / "we-ird.pb").read_bytes() == body


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {"content-type": "application/json"}, 415),
        (b"\xff\xff", KIND, 400),
        (b"", KIND, 400),
        (b"xx", KIND | {"content-encoding": "gzip"}, 400),
        (gzip.compress(bytes(40 << 20)), KIND | {"content-encoding": "gzip"}, 400),
        (b"", KIND | {"host": "evil.example"}, 403),
        (b"", KIND | {"authorization": "Bearer no"}, 401),
    ],
)
def test_what_is_refused(
    client: TestClient, body: bytes, headers: dict[str, str], status: int
) -> None:
    assert client.post("/v1/traces", content=body, headers=headers).status_code == status
