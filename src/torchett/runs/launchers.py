"""Reads launchers' logs: the attempts, and the offset of each host's clock."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchett.model.causes import DOMAINS, OUTCOMES, Domain, Outcome
from torchett.model.first_failure import RankEnd
from torchett.model.values import RESUMED_FROM, ResumedFrom
from torchett.record.attempt_log import FORMAT, last_beat
from torchett.record.clock import Anchor
from torchett.runs.folder import RunFiles, files_of

_JUMP_NS = 100_000_000
_NOT_A_FACT = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class Clocks:
    """Where each host's monotonic times lie in wall time: one anchor a clock, one offset a host."""

    def __init__(self) -> None:
        self._anchors: dict[str, Anchor] = {}
        self._offsets: dict[str, tuple[int, int]] = {}  # host → offset, ± error

    def see(self, anchor: Anchor) -> None:
        """The first anchor seen of a clock is the one that counts."""
        self._anchors.setdefault(anchor.clock, anchor)

    def correct(self, host: str, offset_ns: int, error_ns: int) -> None:
        """The host's wall clock needs this much added, by its launcher's measurement."""
        self._offsets[host] = offset_ns, error_ns

    def offset_ns(self, anchor: Anchor) -> int:
        """What to add to monotonic times recorded with this anchor."""
        self.see(anchor)
        return self._anchors[anchor.clock].offset_ns + self._offsets.get(anchor.host, (0, 0))[0]

    def jump_ns(self, anchor: Anchor) -> int:
        """How far the host's wall clock was stepped since its first anchor; 0 if hardly."""
        self.see(anchor)
        jump = anchor.offset_ns - self._anchors[anchor.clock].offset_ns
        return jump if abs(jump) > _JUMP_NS else 0

    def corrections(self) -> Iterator[str]:
        for host, (offset, error) in self._offsets.items():
            if offset:
                by = f"{offset / 1e6:+.3f} ms (± {error / 1e6:.3f} ms)"
                yield f"clock of {host} corrected by {by}, as its launcher measured"


@dataclass(slots=True, kw_only=True)
class Launch:
    """What the launcher says of one attempt, on the wall clock."""

    start_ns: int | None = None
    submitted_ns: int | None = None
    allocated_ns: int | None = None
    ranks: int | None = None
    end_ns: int | None = None
    outcome: Outcome | None = None
    cause: str | None = None
    domain: Domain | None = None
    resumed_from: ResumedFrom | None = None
    new_launcher: bool | None = None  # the first attempt of its launcher; None: nobody said


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """A failed rank, as an agent (of any node) or the rank itself recorded it, and its attempt."""

    attempt: int
    restart: int
    end: RankEnd


@dataclass(slots=True, kw_only=True)
class Launches:
    """Everything that the launchers of a run have written."""

    job: str | None = None
    ranks: int | None = None
    imported: bool = False
    as_is: bool = False  # the last command ran untouched
    disabled: bool = False  # with ETT_DISABLE=1
    command: tuple[str, ...] = ()  # the last one
    levers: frozenset[str] = frozenset()  # that `ett run` had on for it
    labels: dict[str, str] = field(default_factory=dict)  # team, model, queue, …: the last wins
    attempts: dict[tuple[int, int], Launch] = field(default_factory=dict)  # attempt, restart
    ends: dict[int, Launch] = field(default_factory=dict)  # attempt: how its last restart ended
    failures: list[RankFailure] = field(default_factory=list)
    now_ns: int | None = None
    launcher_is_new: bool = False  # while reading: it has begun no attempt yet
    standby_bytes: dict[str, int] = field(default_factory=dict)  # node → most that standbys held
    notes: list[str] = field(default_factory=list)

    def asides(self) -> Iterator[str]:
        for node, held in sorted(self.standby_bytes.items()):
            yield f"standbys of node {node} held {held / 2**20:.0f} MiB of memory"


def read_launches(run: Path, clocks: Clocks, files: RunFiles | None = None) -> Launches:
    """The launches of a run; adds their anchors and offsets to `clocks`."""
    launches = Launches()
    files = files or files_of(run)
    for path in files.logs:
        _read_log(path, path.stem.removeprefix("attempts-"), launches, clocks)
    for path in files.crashes:
        _read_crash(path, launches, clocks)
    return launches


def _read_crash(path: Path, launches: Launches, clocks: Clocks) -> None:
    """What a rank wrote that raised before its record was open."""
    try:
        fact = json.loads(path.read_bytes())
        offset_ns = clocks.offset_ns(Anchor.from_json(fact["anchor"]))
        launches.failures.append(_failure(fact, offset_ns))
    except (OSError, *_NOT_A_FACT):
        launches.notes.append(f"{path}: expected what a rank raised, skipped")


def _read_log(path: Path, node: str, launches: Launches, clocks: Clocks) -> None:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        launches.notes.append(f"{path}: not readable: {error.strerror}")
        return
    if lines.pop().strip():
        launches.notes.append(f"{path}:{len(lines) + 1}: the last line is cut off")
    anchor: Anchor | None = None
    for number, line in enumerate(lines, 1):
        try:
            fact = json.loads(line)
            if "format" in fact:
                anchor = _take_head(fact, node, launches, clocks)
            elif anchor is None:
                raise ValueError(fact)
            elif fact["event"] == "clock":
                clocks.correct(anchor.host, int(fact["offset_ns"]), int(fact["error_ns"]))
            elif fact["event"] == "standbys":
                held = max(launches.standby_bytes.get(node, 0), _whole(fact, "bytes") or 0)
                launches.standby_bytes[node] = held
            elif fact["event"] == "failure":
                launches.failures.append(_failure(fact, clocks.offset_ns(anchor)))
            elif node == "0":
                _take_event(fact, clocks.offset_ns(anchor), launches)
        except _NOT_A_FACT:
            launches.notes.append(f"{path}:{number}: expected a line of {FORMAT}, skipped")
    beat = last_beat(path.parent) if node == "0" and anchor is not None else None
    if beat is not None and anchor is not None:
        launches.now_ns = beat[1] + clocks.offset_ns(anchor)


def _take_head(fact: dict[str, Any], node: str, launches: Launches, clocks: Clocks) -> Anchor:
    if fact["format"] != FORMAT:
        raise ValueError(fact)
    anchor = Anchor.from_json(fact["anchor"])
    clocks.see(anchor)
    if node == "0":
        launches.job = str(fact["job"])
        launches.ranks = _whole(fact, "ranks") or launches.ranks
        launches.imported = bool(fact.get("imported"))
        launches.launcher_is_new = True
        launches.as_is, launches.disabled = bool(fact.get("as_is")), bool(fact.get("disabled"))
        launches.command = tuple(map(str, fact.get("command") or ()))
        launches.levers = frozenset(map(str, fact.get("levers") or ()))
        labels = fact.get("labels")
        if isinstance(labels, dict):
            launches.labels |= {str(key): str(value) for key, value in labels.items()}
    return anchor


def _failure(fact: dict[str, Any], offset_ns: int) -> RankFailure:
    rank, t_ns = _whole(fact, "rank") or 0, _whole(fact, "t_ns") or 0
    text, raised = fact.get("error"), "error" in fact
    end = RankEnd(rank=rank, cause=str(text or fact["cause"]), t_ns=t_ns + offset_ns, raised=raised)
    attempt, restart = _whole(fact, "attempt") or 0, _whole(fact, "restart") or 0
    return RankFailure(attempt=attempt, restart=restart, end=end)


def _take_event(fact: dict[str, Any], offset_ns: int, launches: Launches) -> None:
    def time(key: str) -> int | None:
        given = _whole(fact, key)
        return None if given is None else given + offset_ns

    if fact["event"] == "now":
        launches.now_ns = time("t_ns")
        return
    if fact["event"] == "note":
        launches.notes.append(str(fact["text"]))
        return
    number, restart = int(fact["attempt"]), _whole(fact, "restart")
    launch = launches.attempts.setdefault((number, restart or 0), Launch())
    if fact["event"] == "start":
        launch.start_ns = time("t_ns")
        if launch.new_launcher is None and not launches.imported:
            launch.new_launcher = launches.launcher_is_new
        launches.launcher_is_new = False
        launch.submitted_ns, launch.allocated_ns = time("submitted_ns"), time("allocated_ns")
        launch.ranks = _whole(fact, "ranks")
        if fact.get("resumed_from") in RESUMED_FROM:
            launch.resumed_from = fact["resumed_from"]
    elif fact["event"] == "end":
        if fact["outcome"] not in OUTCOMES or fact.get("domain") not in (None, *DOMAINS):
            raise ValueError(fact)
        if restart is None:
            launch = launches.ends.setdefault(number, Launch())
        launch.end_ns, launch.outcome = time("t_ns"), fact["outcome"]
        launch.cause, launch.domain = fact.get("cause"), fact.get("domain")
    else:
        raise ValueError(fact)


def _whole(fact: dict[str, Any], key: str) -> int | None:
    value = fact.get(key)
    if value is None:
        return None
    number = int(value)
    if abs(number) >= 1 << 62:
        raise ValueError(fact)
    return number
