"""Reads compiles from a TORCH_TRACE folder, also from a damaged one.

    V0804 12:34:16.3 1142857 torch/_dynamo/guards.py:38] {"artifact": {…}, "rank": 0, "frame_id": 0,
    →[ "0/0: tensor 'x' size mismatch …" ]                      the payload, indented by a tab

A line that cannot be read is skipped and counted; the rest of the file is used.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchett.levers.compile.observe.facts import Compile, Part
from torchett.levers.compile.observe.phases import CompilePhases, part_of
from torchett.model.errors import InputError

_LINE = re.compile(r"[VIWEC]\d{4} [\d:.]+ .*?\] ")
_RANK = re.compile(r"rank_(\d+)")
_MOST_PAYLOAD = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The content of a trace folder: (attempt, always 0; rank; compile), and unreadable entries."""

    compiles: list[tuple[int, int, Compile]]
    files: int
    damaged: int


@dataclass(slots=True)
class _Seen:
    """The data read so far for one compile."""

    phases: CompilePhases = field(default_factory=CompilePhases)
    began_ns: int | None = None
    ended_ns: int | None = None
    part: Part = "forward"
    reasons: tuple[str, ...] = ()
    metrics: dict[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    caches: dict[str, int] = field(default_factory=dict)


def is_trace(path: Path) -> bool:
    """Whether this is a trace file, or a folder that contains one."""
    return any(_is_trace_file(file) for file in _files(path))


def read_trace(path: Path) -> Trace:
    """All compiles of a trace file or folder."""
    compiles: list[tuple[int, int, Compile]] = []
    files = damaged = 0
    for file in _files(path):
        if _is_trace_file(file):
            files += 1
            found, bad = _read(file)
            compiles += found
            damaged += bad
    if not files:
        raise InputError(f"{path}: expected a TORCH_TRACE folder or file, found no trace in it")
    return Trace(compiles=compiles, files=files, damaged=damaged)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.suffix in (".log", ".txt"))


def _is_trace_file(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(4096).decode("utf-8", "replace")
    except OSError:
        return False
    return any(_LINE.match(line) and "{" in line for line in head.splitlines())


def _read(path: Path) -> tuple[list[tuple[int, int, Compile]], int]:
    """The compiles of one file, and the number of its unreadable entries."""
    named = _RANK.search(path.name)
    rank = int(named[1]) if named else 0
    seen: dict[tuple[str, Part], _Seen] = {}
    order: list[tuple[str, _Seen]] = []
    open_part: dict[str, Part] = defaultdict(lambda: "forward")
    damaged = 0

    def of(compile_id: str, part: Part, anew: bool = False) -> _Seen:
        """The data of this compile; `anew` after a reset of dynamo, which repeats numbers."""
        if (compile_id, part) not in seen or (anew and seen[compile_id, part].metrics):
            seen[compile_id, part] = _Seen(part=part)
            order.append((compile_id, seen[compile_id, part]))
        return seen[compile_id, part]

    for entry, payload in _entries(path):
        if entry is None:
            damaged += 1
            continue
        if isinstance(entry.get("rank"), int) and not named:
            rank = entry["rank"]
        compile_id = _compile_id(entry)
        if compile_id is None:
            continue
        try:
            if "chromium_event" in entry:
                _take_event(json.loads(payload), compile_id, open_part, of)
            elif "artifact" in entry:
                _take_artifact(entry["artifact"], payload, of(compile_id, "forward"))
            for key in ("compilation_metrics", "bwd_compilation_metrics"):
                if isinstance(entry.get(key), dict):
                    part: Part = "backward" if key.startswith("bwd") else "forward"
                    known = of(compile_id, part)
                    anew = bool(known.metrics) and known.ended_ns is None
                    of(compile_id, part, anew).metrics = entry[key]
        except (ValueError, TypeError, AttributeError, KeyError):
            damaged += 1
    made = [_compile(compile_id, one, seen) for compile_id, one in order]
    return [(0, rank, one) for one in made if one is not None], damaged


def _entries(path: Path) -> Iterator[tuple[dict[str, Any] | None, str]]:
    """Each entry with its payload; None if the entry is not a JSON object."""
    line: str | None = None
    payload: list[str] = []
    size = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            if text.startswith("\t"):
                size += len(text)
                if size < _MOST_PAYLOAD:
                    payload.append(text[1:])
                continue
            if line is not None:
                yield _entry(line), "".join(payload)
            line, payload, size = text, [], 0
    if line is not None:
        yield _entry(line), "".join(payload)


def _entry(line: str) -> dict[str, Any] | None:
    found = _LINE.match(line)
    if found is None:
        return None
    try:
        entry = json.loads(line[found.end() :])
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _compile_id(entry: dict[str, Any]) -> str | None:
    frame, number = entry.get("frame_id"), entry.get("frame_compile_id")
    if not isinstance(frame, int) or not isinstance(number, int):
        return None
    autograd = entry.get("compiled_autograd_id")
    return f"!{autograd}/{frame}/{number}" if isinstance(autograd, int) else f"{frame}/{number}"


def _take_event(
    event: dict[str, Any], compile_id: str, open_part: dict[str, Part], of: Any
) -> None:
    name, now = str(event["name"]), round(float(event["ts"]) * 1000)
    if event["ph"] == "B":
        root = name in ("dynamo", "entire_backward_compile")
        if root:
            open_part[compile_id] = part_of(name)
        one: _Seen = of(compile_id, open_part[compile_id], root)
        if one.began_ns is None:
            one.began_ns = now
        one.phases.began(name, now)
    elif event["ph"] == "E":
        one = of(compile_id, open_part[compile_id])
        if one.phases.ended(name, now):
            one.ended_ns = now
        names = (event.get("args") or {}).get("recompile_dynamic_whitelist")
        if isinstance(names, str) and names:
            one.names = _parted(names)
    elif "cache" in name:
        one = of(compile_id, open_part[compile_id])
        one.caches[name] = one.caches.get(name, 0) + 1


def _take_artifact(about: Any, payload: str, one: _Seen) -> None:
    if about.get("name") == "recompile_reasons":
        try:
            reasons = json.loads(payload)
        except ValueError:  # a single reason is plain text
            reasons = payload
        one.reasons = tuple([reasons] if isinstance(reasons, str) else map(str, reasons))


def _parted(names: str) -> list[str]:
    """The sources in a list that torch joined by commas: each begins with L[ or G[."""
    return [name for name in re.split(r",(?=[LG]\[)", names) if name]


def _compile(compile_id: str, one: _Seen, seen: dict[tuple[str, Part], _Seen]) -> Compile | None:
    metrics = one.metrics
    forward = seen.get((compile_id, "forward"))
    place = forward.metrics if forward is not None else {}
    began, ended = one.began_ns, one.ended_ns
    if began is None or ended is None or ended < began:
        began, ended = _times(metrics)
    if began is None and not metrics and not one.reasons:
        return None
    reasons = one.reasons
    if not reasons and metrics.get("recompile_reason"):
        reasons = (str(metrics["recompile_reason"]),)
    failed = metrics.get("fail_reason")
    line = place.get("co_firstlineno")
    return Compile(
        id=compile_id,
        part=one.part,
        t0_ns=began or 0,
        t1_ns=ended or 0,
        by_ns=dict(one.phases.by_ns),
        name=place.get("co_name"),
        file=place.get("co_filename"),
        line=line if isinstance(line, int) else None,
        reasons=tuple(reason.strip() for reason in reasons),
        failed=str(failed) if failed else None,
        caches=one.caches,
        sources={name: [] for name in one.names},
    )


def _times(metrics: dict[str, Any]) -> tuple[int | None, int | None]:
    """Begin and end from the metrics: in µs, or in s in old traces."""
    try:
        if metrics.get("start_time_us") and metrics.get("end_time_us"):
            return int(metrics["start_time_us"]) * 1000, int(metrics["end_time_us"]) * 1000
        began = round(float(metrics.get("start_time") or 0) * 1e9)
        took = round(float(metrics.get("entire_frame_compile_time_s") or 0) * 1e9)
    except (TypeError, ValueError):
        return None, None
    return began, began + took
