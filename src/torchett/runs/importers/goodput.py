"""Log entries of ml-goodput-measurement, from a file of JSON lines or a Cloud Logging export.

    {"job_name": "a", "job_start_time": 0.0}
    {"job_name": "a", "tpu_init_start_time": 1.0}          … "tpu_init_end_time"
    {"job_name": "a", "training_prep_start_time": 5.0}     … "training_prep_end_time"
    {"job_name": "a", "data_loading_start_time": 9.0}      … "data_loading_end_time"
    {"job_name": "a", "step_count": 0, "step_start_time": 12.0}
    {"job_name": "a", "custom_badput_event_type": "eval", "custom_badput_event_start_time": 20.0}
    {"job_name": "a", "job_end_time": 90.0}

Every job start is an attempt. A step lasts until the next one starts; when the last step of an
attempt was over nobody wrote down. Entries of Orbax's checkpoint logger are taken, too.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

from torchett.ledger.history import History
from torchett.model.errors import InputError
from torchett.runs.importers.builder import AttemptDraft, HistoryBuilder, UserHints
from torchett.runs.importers.ticks import Tick, pace

_SAME_START_S = 1.0
_PHASES = {"tpu_init": "device_init", "training_prep": "pre_train", "data_loading": ""}
_MARKS = {f"{p}_{edge}_time": (p, edge) for p in _PHASES for edge in ("start", "end")}
_CUSTOM = {f"custom_badput_event_{edge}_time": edge for edge in ("start", "end")}
_SAVE = ("checkpoint_manager_blocking_start_time", "checkpoint_manager_blocking_duration_secs")
_RESTORE = ("checkpoint_manager_start_time", "checkpoint_manager_duration_secs")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One entry: what it marks, when, and the step or name it carries."""

    line: int
    kind: str  # job_start, job_end, step, save, restore, or "PHASE start" and "PHASE end"
    t_s: float
    step: int = 0
    lasted_s: float = 0.0


def parse(lines: Iterable[str], name: str, job: str, hints: UserHints) -> History:
    """The history in the entries."""
    entries = sorted(_entries(lines, name), key=lambda entry: entry.t_s)
    if not entries:
        raise InputError(f"{name}:1: expected log entries of ml-goodput-measurement, found none")
    builder = HistoryBuilder(job, name)
    groups = list(_attempts(entries, builder.notes))
    ticks = [[Tick(e.step, e.t_s) for e in _steps(group, [])] for group in groups]
    usual = pace(ticks)
    for group in groups:
        _add_attempt(builder, group, usual.step_s, hints.stall)
    builder.notes.append("a step lasts until the next one starts: the last one's time is not known")
    builder.apply(hints)
    return builder.history(hints.ranks)


def _attempts(entries: list[_Entry], notes: list[str]) -> Iterator[list[_Entry]]:
    """The entries of each attempt: from a job's start to the next one's."""
    group: list[_Entry] = []
    twice = 0
    for entry in entries:
        if entry.kind == "job_start" and group:
            begun = group[-1]
            if begun.kind == "job_start" and entry.t_s - begun.t_s < _SAME_START_S:
                twice += 1  # a second process of the same start
                continue
            yield group
            group = []
        group.append(entry)
    yield group
    if twice:
        notes.append(f"{twice} job starts within {_SAME_START_S:g} s of another: the same attempt")


def _steps(group: list[_Entry], notes: list[str]) -> list[_Entry]:
    """The step entries whose index rises; others are a second process's."""
    kept: list[_Entry] = []
    left_out = 0
    for entry in group:
        if entry.kind != "step":
            continue
        if kept and entry.step <= kept[-1].step:
            left_out += 1
        else:
            kept.append(entry)
    if left_out:
        notes.append(f"{left_out} step entries do not go on from the one before: left out")
    return kept


def _add_attempt(
    builder: HistoryBuilder, group: list[_Entry], usual_s: float, stall: float
) -> None:
    builder.attempts.append(AttemptDraft(start_s=group[0].t_s))
    steps = _steps(group, builder.notes)
    first_s = steps[0].t_s if steps else math.inf
    for a, b in pairwise(steps):
        count = b.step - a.step
        took = b.t_s - a.t_s
        over = usual_s and stall and took > stall * usual_s * count
        # What a long first step did at its beginning (compiling) is not training.
        builder.step(0, a.step, b.t_s - usual_s * count if over else a.t_s, b.t_s, count)
    open_at: dict[str, float] = {}
    for entry in group:
        phase, _, edge = entry.kind.rpartition(" ")
        if edge == "start":
            open_at[phase] = entry.t_s
        elif edge == "end" and phase in open_at:
            began = open_at.pop(phase)
            builder.span(0, _account(phase, began < first_s), began, entry.t_s)
        elif entry.kind == "save":
            builder.span(0, "checkpoint_blocked", entry.t_s, entry.t_s + entry.lasted_s)
        elif entry.kind == "restore":
            builder.span(0, "checkpoint_restore", entry.t_s, entry.t_s + entry.lasted_s)
        elif entry.kind == "job_end":
            builder.attempts[-1].end_s, builder.attempts[-1].outcome = entry.t_s, "success"
    if steps and builder.attempts[-1].end_s is not None:
        builder.step(0, steps[-1].step, steps[-1].t_s, steps[-1].t_s)


def _account(phase: str, before_steps: bool) -> str:
    if phase == "data_loading":
        return "get_first_batch_data" if before_steps else "data_wait"
    if phase in _PHASES:
        return _PHASES[phase]
    own = phase.removeprefix("custom:")
    if "eval" in own.lower():
        return "evaluation"
    if "checkpoint" in own.lower():
        return "checkpoint_blocked"
    return "x-" + (re.sub(r"[^A-Za-z0-9_]", "_", own) or "_")


# Entries ---------------------------------------------------------------------------------------


def _entries(lines: Iterable[str], name: str) -> Iterator[_Entry]:
    jobs: set[str] = set()
    for number, value in _objects(lines, name):
        payload = value
        for key in ("jsonPayload", "json_payload", "payload"):
            payload = value.get(key, payload)

        def refuse(expected: str, line: int = number) -> NoReturn:
            raise InputError(f"{name}:{line}: {expected}")

        if not isinstance(payload, dict):
            refuse("expected an entry of ml-goodput-measurement")
        jobs.add(str(payload.get("job_name")))
        if len(jobs) > 1:
            refuse(f"expected entries of one job, found {' and '.join(sorted(jobs))}")
        entry = _entry(number, payload)
        if isinstance(entry, str):
            refuse(entry)
        if entry is not None:
            yield entry


def _objects(lines: Iterable[str], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line and object of each entry, of JSON lines or of one JSON array."""
    text = list(lines)
    first = next((line for line in text if line.strip()), "")
    if first.lstrip().startswith("["):
        try:
            values = json.loads("".join(text))
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", 1)
            raise InputError(f"{name}:{line}: expected a whole JSON array") from None
        found = [(1, value) for value in values]
    else:
        found = []
        for number, line in enumerate(text, 1):
            if line.strip():
                try:
                    found.append((number, json.loads(line)))
                except (ValueError, RecursionError):
                    raise InputError(f"{name}:{number}: expected one whole JSON object") from None
    for number, value in found:
        if not isinstance(value, dict):
            raise InputError(f"{name}:{number}: expected a JSON object per entry")
        yield number, value


def _entry(line: int, payload: dict[str, Any]) -> _Entry | str | None:
    """The entry of a payload; None for one that marks nothing we know; else what is wrong."""

    def number(key: str) -> float:
        value = payload[key]
        try:
            found = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            found = math.nan
        if not math.isfinite(found):
            raise ValueError(key)
        return found

    try:
        if "step_start_time" in payload:
            t_s, step = number("step_start_time"), number("step_count")
            if step != int(step) or not 0 <= step < 1 << 62:
                return f"expected step_count to be a whole number ≥ 0, found {step:g}"
            return _Entry(line=line, kind="step", t_s=t_s, step=int(step))
        for key in ("job_start_time", "job_end_time"):
            if key in payload:
                return _Entry(line=line, kind=key.removesuffix("_time"), t_s=number(key))
        for key, (phase, edge) in _MARKS.items():
            if key in payload:
                return _Entry(line=line, kind=f"{phase} {edge}", t_s=number(key))
        for key, edge in _CUSTOM.items():
            if key in payload:
                own = str(payload.get("custom_badput_event_type", "unknown"))
                return _Entry(line=line, kind=f"custom:{own} {edge}", t_s=number(key))
        event = payload.get("event_type")
        for kind, (begin, lasted) in (("save", _SAVE), ("restore", _RESTORE)):
            if event == kind and payload.get(begin) is not None and payload.get(lasted) is not None:
                return _Entry(line=line, kind=kind, t_s=number(begin), lasted_s=number(lasted))
    except KeyError as error:
        return f"expected {error.args[0]} beside step_start_time, found none"
    except ValueError as error:
        shown = json.dumps(payload.get(error.args[0]))[:40]
        return f"expected {error.args[0]} to be a finite number of seconds, found {shown}"
    return None
