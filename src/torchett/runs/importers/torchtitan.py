"""torchtitan's structured logs: `structured_logs/*.jsonl`, one file a process, or one such file.

    {"rank": 0, "source": "training", "time_us": …, "log_type_name": "structured_logger_started"}
    {"rank": 0, …, "step": 5, "log_type_name": "step_start", "log_type": "event"}
    {"rank": 0, …, "step": 5, "log_type_name": "step_end", "step_tags": ["checkpoint_save"]}

Spans pair by nesting. A process's first record is the earliest that is known of it. A second file
of a rank begins a new attempt.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from torchett.ledger.history import History
from torchett.model.errors import InputError
from torchett.runs.importers.builder import AttemptDraft, HistoryBuilder, UserHints

_SPANS = {
    "torch_distributed_init": "process_group_init",
    "model_parallelism_init": "train_module_creation",
    "checkpoint_load": "checkpoint_restore",
    "eval": "evaluation",
    "gc_collect": "x-gc",
    "kineto_profiler_step_call": "x-profiler",
    "memory_profiler_step_call": "x-profiler",
    "torch_distributed_teardown": "teardown",
}
_BUILDS = (
    (re.compile(r"Data|Tokenizer", re.I), "preproc_creation"),
    (re.compile(r"Model|Optim|LRSched|Loss|Trainer", re.I), "train_module_creation"),
    (re.compile(r""), "init_plugins"),
)
_SAVED = "checkpoint_save"


@dataclass(slots=True)
class _Process:
    """What one file says of one process."""

    rank: int
    source: str
    began_s: float
    ended_s: float = 0.0
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    steps: list[tuple[int, float, float]] = field(default_factory=list)
    saved: list[tuple[int, float]] = field(default_factory=list)
    failed: bool = False
    finished: bool = False


def parse(files: Mapping[str, Iterable[str]], job: str, hints: UserHints) -> History:
    """The history in the files (name → lines)."""
    builder = HistoryBuilder(job, next(iter(files), job))
    processes = [p for name, lines in files.items() for p in _process(name, lines, builder.notes)]
    if not processes:
        raise InputError(f"{builder.name}:1: expected torchtitan's records, found none")
    sources = sorted({process.source for process in processes})
    if len(sources) > 1:
        kept = next((s for s in ("training", "trainer") if s in sources), sources[0])
        processes = [process for process in processes if process.source == kept]
        builder.notes.append(f"sources {', '.join(sources)}: only {kept} is taken")
    for group in _attempts(sorted(processes, key=lambda process: process.began_s)):
        _add_attempt(builder, group)
    builder.notes.append(
        "before a process's first record nothing is known; an asynchronous checkpoint counts as"
        " durable when its save returned"
    )
    builder.apply(hints)
    return builder.history()


def _attempts(processes: Sequence[_Process]) -> Iterator[list[_Process]]:
    group: list[_Process] = []
    for process in processes:
        if any(process.rank == other.rank for other in group):
            yield group
            group = []
        group.append(process)
    yield group


def _add_attempt(builder: HistoryBuilder, group: list[_Process]) -> None:
    given = AttemptDraft(
        start_s=min(process.began_s for process in group),
        ranks=max(process.rank for process in group) + 1,
    )
    builder.attempts.append(given)
    for process in group:
        for account, t0, t1 in process.spans:
            builder.span(process.rank, account, t0, t1)
        for index, t0, t1 in process.steps:
            builder.step(process.rank, index, t0, t1)
    for step, t_s in next((p.saved for p in group if p.rank == 0), group[0].saved):
        builder.saved(step, t_s)
    if any(process.failed for process in group) or all(process.finished for process in group):
        given.end_s = max(process.ended_s for process in group)
        given.outcome = "failed" if any(process.failed for process in group) else "success"


def _process(name: str, lines: Iterable[str], notes: list[str]) -> Iterator[_Process]:
    """The process of one file; none if the file is empty."""
    found: _Process | None = None
    open_spans: dict[Any, list[tuple[str, float]]] = {}
    records = _Records(name, notes)
    optimized: list[float] = []
    steps: list[tuple[int, float, float]] = []
    raised: set[str] = set()
    for record in records.read(lines):
        t_s, kind, stack = records.time(record), records.text(record), record.get("task_name")
        if found is None:
            found = _Process(records.rank(record), str(record.get("source", "")), t_s)
        found.ended_s = max(found.ended_s, t_s)
        base, _, edge = kind.rpartition("_")
        nest = open_spans.setdefault(stack, [])
        if record.get("log_type") != "event":
            continue
        if edge == "start":
            nest.append((base, t_s))
        elif edge == "error":
            raised.add(base)
            found.failed = True
        elif edge == "end" and any(known == base for known, _ in nest):
            while nest[-1][0] != base:
                nest.pop()  # a span that was left without a word
            _, t0 = nest.pop()
            if base == "step" and base not in raised:
                steps.append((records.step(record), t0, t_s))
            elif base == "optim":
                optimized.append(t_s)
            elif base not in raised:
                _take_span(found, base, t0, t_s, record, records)
            raised.discard(base)
    if found is not None:
        found.steps = _real_steps(steps, optimized)
        found.finished = any(account == "teardown" for account, _, _ in found.spans)
        found.failed = found.failed and not found.finished
        yield found


def _take_span(
    found: _Process,
    base: str,
    t0: float,
    t1: float,
    record: dict[str, Any],
    records: "_Records",
) -> None:
    if base == "fetching_batch":
        first = all(account != "get_first_batch_data" for account, _, _ in found.spans)
        found.spans.append(("get_first_batch_data" if first else "data_wait", t0, t1))
    elif base == _SAVED:
        if _SAVED in (record.get("step_tags") or ()):  # else nothing was due at this step
            found.spans.append(("checkpoint_blocked", t0, t1))
            found.saved.append((records.step(record), t1))
    elif base.endswith(".build"):
        owner = base.removesuffix(".build")
        found.spans.append((next(a for known, a in _BUILDS if known.search(owner)), t0, t1))
    elif base in _SPANS:
        found.spans.append((_SPANS[base], t0, t1))


def _real_steps(
    steps: list[tuple[int, float, float]], optimized: list[float]
) -> list[tuple[int, float, float]]:
    """Steps in which the optimizer ran: one that found no more data was none."""
    if not optimized:
        return steps
    out, at = [], 0
    for index, t0, t1 in steps:
        while at < len(optimized) and optimized[at] < t0:
            at += 1
        if at < len(optimized) and optimized[at] <= t1:
            out.append((index, t0, t1))
    return out


class _Records:
    """Records of one file, and the words that refuse a line."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name, self._notes = name, notes
        self._line = 0

    def read(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        for self._line, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                if not line.endswith("\n") and self._line > 1:
                    self._notes.append(f"{self._name}:{self._line}: the last line is cut off")
                    return
                self._refuse("expected one whole JSON object")
            if not isinstance(record, dict):
                self._refuse("expected a JSON object")
            yield record

    def time(self, record: dict[str, Any]) -> float:
        return self._number(record, "time_us") / 1e6

    def rank(self, record: dict[str, Any]) -> int:
        key = "global_rank" if "global_rank" in record else "rank"
        rank = self._number(record, key)
        if rank > 1 << 20:
            self._refuse(f"expected {key} to be a rank, found {rank}")
        return rank

    def step(self, record: dict[str, Any]) -> int:
        return self._number(record, "step")

    def text(self, record: dict[str, Any]) -> str:
        value = record.get("log_type_name")
        if not isinstance(value, str):
            self._refuse(f"expected log_type_name to be a text, found {json.dumps(value)[:40]}")
        return value

    def _number(self, record: dict[str, Any], key: str) -> int:
        value = record.get(key)
        if type(value) is not int or not 0 <= value < 1 << 62:
            shown = "nothing" if value is None else json.dumps(value)[:40]
            self._refuse(f"expected {key} to be a whole number ≥ 0, found {shown}")
        return value

    def _refuse(self, expected: str) -> NoReturn:
        raise InputError(f"{self._name}:{self._line}: {expected}")
