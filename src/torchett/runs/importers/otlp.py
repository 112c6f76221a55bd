"""OpenTelemetry traces as a history: spans of `ett export --format otlp`, or of any SDK.

A span counts where it says `ett.rank` (default 0), `ett.attempt` (default 0) and either
`ett.account` or `ett.step`. Without spans for attempts, one attempt lasts from the first span to
the last and ended well. Requests that were appended to one file are one request: so protobuf is.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torchett.ledger.history import History
from torchett.model.errors import InputError, RunError
from torchett.runs import events

_TIMES = {
    "attempt_start": ("t",), "attempt_end": ("t",), "now": ("t",), "checkpoint": ("durable",),
    "span": ("t0", "t1"), "step": ("t0", "t1"),
}  # fmt: skip
_TEXTS = ("account", "outcome", "cause", "domain")
Event = dict[str, Any]


def job_name(data: bytes, name: str = "otlp") -> str:
    """What the spans call their job: `ett.job`, else the service's name."""
    for resource, span in _spans(data, name):
        said = _attributes(span.attributes).get("ett.job")
        return str(said or resource.get("service.name") or "otlp")
    raise InputError(f"{name}: expected spans, found none")


def parse(data: bytes, name: str, job: str) -> History:
    """The history in one or more ExportTraceServiceRequests."""
    found = [event for _, span in _spans(data, name) for event in _events(span)]
    if not found:
        raise InputError(f"{name}: expected spans with ett.account or ett.step, found none")
    zero_ns = min(event["at"][0] for event in found)
    lines = [json.dumps(_shown(event, zero_ns)) for event in _whole(found)]
    head: Event = {"event": "job", "format": events.FORMAT, "job": job, "epoch": zero_ns / 1e9}
    head["ranks"] = 1 + max(event.get("rank", 0) for event in found)
    history = events.parse([json.dumps(head), *lines], name)
    return replace(history, epoch_s=zero_ns / 1e9 + history.epoch_s)


def _spans(data: bytes, name: str) -> Iterator[tuple[dict[str, Any], Any]]:
    try:
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    except ImportError:
        raise RunError("otlp: not installed; pip install opentelemetry-proto") from None
    request = trace_service_pb2.ExportTraceServiceRequest()
    try:
        request.ParseFromString(data)
    except DecodeError as error:
        raise InputError(f"{name}: expected an ExportTraceServiceRequest: {error}") from None
    for resource in request.resource_spans:
        said = _attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield said, span


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value")
            for pair in pairs}  # fmt: skip


def _events(span: Any) -> Iterator[Event]:
    said = {
        key.removeprefix("ett."): value
        for key, value in _attributes(span.attributes).items()
        if key.startswith("ett.")
    }
    kind = said.pop("event", "step" if "step" in said else "span" if "account" in said else None)
    if kind not in _TIMES:
        return
    event: Event = {"event": kind, "at": (span.start_time_unix_nano, span.end_time_unix_nano)}
    for key in ("attempt", "rank", "step", "ranks"):
        if key in said:
            event[key] = int(said[key])
    event |= {key: str(said[key]) for key in _TEXTS if key in said}
    event |= {key: float(said[key]) for key in ("submitted", "allocated") if key in said}
    if said.get("background"):
        event["background"] = True
    if kind != "now":
        event.setdefault("attempt", 0)
    if kind in ("span", "step"):
        event.setdefault("rank", 0)
    yield event


def _whole(found: list[Event]) -> list[Event]:
    """The events, with an attempt where no span says one."""
    if any(event["event"] == "attempt_start" for event in found):
        return found
    first = min(event["at"][0] for event in found)
    last = max(event["at"][1] for event in found)
    ranks = 1 + max(event.get("rank", 0) for event in found)
    number = {event.get("attempt", 0) for event in found}
    if number != {0}:
        raise InputError("otlp: expected a span `attempt_start` for each attempt, found none")
    begin = {"event": "attempt_start", "attempt": 0, "at": (first, first), "ranks": ranks}
    end = {"event": "attempt_end", "attempt": 0, "at": (last, last), "outcome": "success"}
    return [begin, *found, end]


def _shown(event: Event, zero_ns: int) -> Event:
    times = dict(zip(_TIMES[event["event"]], event["at"], strict=False))
    shown = {key: value for key, value in event.items() if key != "at"}
    return shown | {key: (ns - zero_ns) / 1e9 for key, ns in times.items()}
