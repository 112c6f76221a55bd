"""A run for OpenTelemetry: its records as spans, its ledger as gauges, over OTLP/HTTP.

    span "step"      ett.job=gpt ett.event=step ett.attempt=0 ett.rank=3 ett.step=17
    span "imports"   ett.job=gpt ett.event=span ett.attempt=0 ett.rank=3 ett.account=imports

Each event of events/1 is a span with its fields as attributes `ett.…`. The run can be made from the
spans again (`ett import --format otlp`). This needs the package opentelemetry-proto.
"""

import hashlib
import json
import urllib.request
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.model.errors import InputError, RunError
from torchett.runs import events

_SPANS_AT_ONCE: Final = 2000
_TIMEOUT_S: Final = 10.0
_BEGINS, _ENDS = ("t0", "t", "durable"), ("t1", "t", "durable")


def send(endpoint: str, ledger: Ledger, history: History) -> int:
    """Send a run to a collector (/v1/metrics, /v1/traces); returns the number of spans."""
    if not endpoint.startswith(("http://", "https://")):
        raise InputError(f"--format otlp: expected http://HOST:4318, found '{endpoint}'")
    base = endpoint.rstrip("/")
    _post(f"{base}/v1/metrics", metrics_request(ledger, history))
    count = 0
    for body, spans in trace_requests(history):
        _post(f"{base}/v1/traces", body)
        count += spans
    return count


def trace_requests(history: History) -> Iterator[tuple[bytes, int]]:
    """ExportTraceServiceRequests, each with its number of spans."""
    lines = (json.loads(line) for line in events.write(history))
    head = next(lines)
    base_ns = round(head.get("epoch", 0.0) * 1e9)
    made = _Spans(history.job.name, head, max(base_ns, 0))
    found = iter(made.root_and(lines))
    while batch := list(islice(found, _SPANS_AT_ONCE)):
        yield made.request(batch), len(batch)


class _Spans:
    """Events as protobuf spans of one trace."""

    def __init__(self, job: str, head: dict[str, Any], base_ns: int) -> None:
        try:
            from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
            from opentelemetry.proto.trace.v1 import trace_pb2
        except ImportError:
            raise RunError("otlp: not installed; pip install opentelemetry-proto") from None
        self._service, self._trace = trace_service_pb2, trace_pb2
        self._job, self._head, self._base_ns = job, head, base_ns
        self._id = hashlib.sha256(f"{job}\0{base_ns}".encode()).digest()
        self._count = 0

    def root_and(self, lines: Iterable[dict[str, Any]]) -> Iterator[Any]:
        yield self._span({**self._head, "t": 0.0})
        for line in lines:
            yield self._span(line)

    def _span(self, event: dict[str, Any]) -> Any:
        self._count += 1
        span = self._trace.Span(
            trace_id=self._id[:16],
            span_id=self._count.to_bytes(8, "big"),
            name=event.get("account") or event["event"],
            start_time_unix_nano=self._at(event, _BEGINS),
            end_time_unix_nano=self._at(event, _ENDS),
            parent_span_id=(1).to_bytes(8, "big") if self._count > 1 else b"",
        )
        for key, value in {"job": self._job, **event}.items():
            if key not in ("t", "t0", "t1", "durable", "epoch"):
                span.attributes.append(_pair(f"ett.{key}", value))
        return span

    def _at(self, event: dict[str, Any], keys: tuple[str, ...]) -> int:
        t = next((event[key] for key in keys if key in event), 0.0)
        return self._base_ns + round(t * 1e9)

    def request(self, spans: list[Any]) -> bytes:
        resource = self._trace.ResourceSpans()
        resource.resource.attributes.append(_pair("service.name", self._job))
        scope = resource.scope_spans.add()
        scope.spans.extend(spans)
        request = self._service.ExportTraceServiceRequest(resource_spans=[resource])
        return bytes(request.SerializeToString())


def metrics_request(ledger: Ledger, history: History) -> bytes:
    """An ExportMetricsServiceRequest with the ledger's figures at its end."""
    try:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
        from opentelemetry.proto.metrics.v1 import metrics_pb2
    except ImportError:
        raise RunError("otlp: not installed; pip install opentelemetry-proto") from None
    resource = metrics_pb2.ResourceMetrics()
    resource.resource.attributes.append(_pair("service.name", ledger.job))
    scope = resource.scope_metrics.add()
    at_ns = max(round(history.epoch_s * 1e9) + ledger.window.end_ns, 0)

    def gauge(name: str, unit: str, values: Iterable[tuple[dict[str, str], float]]) -> None:
        metric = scope.metrics.add(name=name, unit=unit)
        for labels, value in values:
            point = metric.gauge.data_points.add(time_unix_nano=at_ns, as_double=value)
            point.attributes.extend(_pair(key, label) for key, label in labels.items())

    gauge("ett.ratio", "1", [({}, ledger.ett_percent / 100)])
    gauge(
        "ett.rank_seconds",
        "s",
        (
            ({"ett.group": group, "ett.account": account}, ns / 1e9)
            for group, accounts in ledger.tree.items()
            for account, ns in accounts.items()
            if ns
        ),
    )
    request = metrics_service_pb2.ExportMetricsServiceRequest(resource_metrics=[resource])
    return bytes(request.SerializeToString())


def _pair(key: str, value: Any) -> Any:
    """An attribute."""
    from opentelemetry.proto.common.v1 import common_pb2

    kinds = {bool: "bool_value", int: "int_value", float: "double_value"}
    kind = kinds.get(type(value), "string_value")
    typed: dict[str, Any] = {kind: str(value) if kind == "string_value" else value}
    return common_pb2.KeyValue(key=key, value=common_pb2.AnyValue(**typed))


def _post(url: str, body: bytes) -> None:
    headers = {"content-type": "application/x-protobuf"}
    try:
        request = urllib.request.Request(url, body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            answer.read()
    except (OSError, ValueError) as error:
        raise RunError(f"{url}: not sent: {error}") from None
