"""A plain log made into a history: lines with a step number, and a clock.

    2024-04-29 06:15:07 Setting OMP_NUM_THREADS …             an attempt begins
    2024-04-29 06:18:02 step: 10  loss: 2.31 …                steps up to 10 are over
    2024-04-29 06:18:40 saving checkpoint at iteration 10     … and the line that says it is saved
    2024-04-29 06:20:00 Traceback (most recent call last):    if no step follows: it failed
    2024-04-29 06:25:00 step: 4 …                             a step goes back: the next attempt

The clock is the lines' time stamps; without any, the trainer's own (tqdm's elapsed time), or the
sum of the times that steps say they took.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from torchett.ledger.history import History
from torchett.model.errors import InputError
from torchett.runs.importers.builder import AttemptDraft, HistoryBuilder, UserHints
from torchett.runs.importers.dialects import DIALECTS, NEVER, Dialect, around, spoken
from torchett.runs.importers.log_clock import LogClock, named_group, step_index, step_took_s
from torchett.runs.importers.stamps import compiled, reader, stamp
from torchett.runs.importers.ticks import Pace, Tick, pace, runs, stalled_s

_RANK = re.compile(r"^\[[a-z_]+(\d+)\]:\s?")  # torchrun's [default0]: and torch's [rank0]:
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The user's options on how to read the log: patterns and the clock."""

    step: str | None = None
    time: str | None = None
    checkpoint: str | None = None
    start: str | None = None
    dialect: str | None = None


@dataclass(frozen=True, slots=True)
class _Said:
    """What a line says: that a step is over, and something else (an attribute of a dialect)."""

    step: re.Match[str] | None
    what: str = ""
    found: re.Match[str] | None = None
    at: int | None = None  # the step that the line names, over or not


@dataclass(slots=True)
class _Seen:
    """What the log shows of one attempt."""

    start_s: float
    last_s: float
    ticks: list[Tick] = field(default_factory=list)
    resumed_at: int | None = None
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    saves: dict[int, tuple[float, float | None]] = field(default_factory=dict)
    failed: bool = False
    preempted: bool = False
    done: bool = False


def parse(
    lines: Iterable[str], name: str, job: str, hints: UserHints, how: Reading | None = None
) -> History:
    """The history in the lines of a log."""
    text = _one_rank(_COLOUR.sub("", line.rstrip("\n")) for line in lines)
    how = how or Reading()
    found = _dialect(text, how, name)
    told_time = reader(how.time) if how.time else None
    clock = LogClock(told_time or stamp, around(found))
    clock.stamped = any(clock.stamp(line) is not None for line in text if found.step.search(line))
    if how.time and not clock.stamped:
        raise InputError(
            f"{name}:1: expected lines of steps with a time as --time says ('{how.time}'),"
            " found none"
        )
    log = _Log(around(found), clock, _longest_bar(found, text))
    for line in text:
        log.take(line)
    log.close()
    attempts = log.attempts
    if not any(seen.ticks for seen in attempts):
        raise InputError(
            f"{name}:{len(text) or 1}: expected lines with a step and a time, found none;"
            " say how they look with --step and --time"
        )
    return _history(attempts, found, job, name, hints, log, clock)


def _dialect(lines: list[str], how: Reading, name: str) -> Dialect:
    known = {dialect.name: dialect for dialect in DIALECTS}
    if how.dialect is not None and how.dialect not in known:
        raise InputError(f"--dialect: expected one of {', '.join(known)}, found '{how.dialect}'")
    found = known[how.dialect] if how.dialect else spoken(lines)
    if how.step is not None:
        step = compiled(how.step, "--step")
        if not step.groups:
            raise InputError(f"--step: expected a group around the number, found '{how.step}'")
        found = replace(found or DIALECTS[-1], step=step)
    if found is None:
        raise InputError(
            f"{name}:1: expected a log of training steps, found no line with a step;"
            " say how one looks with --step REGEX"
        )
    if how.checkpoint is not None:
        saved = compiled(how.checkpoint, "--checkpoint")
        found = replace(found, saved=saved, saving=NEVER)
    if how.start is not None:
        found = replace(found, begun=compiled(how.start, "--start"))
    return found


def _one_rank(lines: Iterable[str]) -> list[str]:
    """The lines; where ranks write into one log, those of the lowest that logs steps."""
    ranks: set[int] = set()
    marked: list[tuple[int | None, str]] = []
    steps = re.compile("|".join(f"(?:{_unnamed(d.step)})" for d in DIALECTS))
    for line in lines:
        for part in line.split("\r"):
            rank = _RANK.match(part)
            mine = int(rank.group(1)) if rank else None
            rest = part[rank.end() :] if rank else part
            marked.append((mine, rest))
            if mine is not None and steps.search(rest):
                ranks.add(mine)
    kept = min(ranks, default=None)
    return [rest for mine, rest in marked if kept is None or mine is None or mine == kept]


def _longest_bar(dialect: Dialect, text: list[str]) -> int:
    found = map(dialect.step.search, text)
    return max((int(named_group(step, "size") or 0) for step in found if step), default=0)


def _unnamed(pattern: re.Pattern[str]) -> str:
    """The pattern without names for its groups, to stand beside others."""
    return re.sub(r"\(\?P<\w+>", "(?:", pattern.pattern).replace("(?i)", "")


class _Log:
    """Reads a log line by line and collects what each attempt did."""

    def __init__(self, dialect: Dialect, clock: LogClock, size: int) -> None:
        self._dialect, self._clock, self._size = dialect, clock, size
        self.attempts: list[_Seen] = []
        self.repeated = 0
        self.untimed = 0
        self._begins = False
        self._unplaced: list[int] = []

    def take(self, line: str) -> None:
        said = self._said(line)
        t_s = self._clock.read(line, said.step)
        if t_s is None:
            self._take_untimed(line, said)
            return
        begins = self._begins or self._dialect.begun.search(line) is not None
        self._begins = False
        if not self.attempts or (begins and self._is_over()):
            self.attempts.append(_Seen(t_s, t_s))
        seen = self.attempts[-1]
        for at in self._unplaced:
            seen.saves[at] = t_s, t_s
        self._unplaced.clear()
        if said.step is not None:
            seen = self._take_step(said.step, t_s)
        if said.found is not None:
            seen = self._take_other(said.what, said.found, said.at, t_s)
        self._take_end(line, seen)
        seen.last_s = max(seen.last_s, t_s)

    def _said(self, line: str) -> _Said:
        """What the line says.

        saved checkpoint at step 20     a save: the step was over before
        step 20: saved checkpoint       a save, and a step if it is the next
        step 20 loss 1.0 saved 3 tokens     a step
        """
        step = self._dialect.step.search(line)
        at = None if step is None else step_index(step)
        for what in ("resumed", "restored", "evaluated", "saved", "saving"):
            found: re.Match[str] | None = getattr(self._dialect, what).search(line)
            if found is None:
                continue
            is_save = what in ("saved", "saving")
            if step is None or (found.start() < step.start() and (is_save or what == "resumed")):
                return _Said(None, what, found, at)
            if is_save:
                return _Said(step if self._is_next(at) else None, what, found, at)
        return _Said(step)

    def _take_other(self, what: str, found: re.Match[str], at: int | None, t_s: float) -> _Seen:
        seen = self.attempts[-1]
        match what:
            case "resumed":
                return self._take_resumed(found, t_s)
            case "restored":
                seen.spans.append(("checkpoint_restore", t_s - float(found["seconds"]), t_s))
            case "evaluated":
                seen.spans.append(("evaluation", t_s - float(found["seconds"]), t_s))
            case "saved":
                at = self._saved_step(found, at, seen)
                seen.saves[at] = seen.saves.get(at, (t_s, None))[0], t_s
            case "saving":
                seen.saves.setdefault(self._saved_step(found, at, seen), (t_s, None))
        return seen

    def _take_untimed(self, line: str, said: _Said) -> None:
        """A line without a time: its event is over when the next line with a time was written."""
        if said.step is not None:
            self.untimed += 1
        elif self._dialect.begun.search(line):
            self._begins = True
        elif self.attempts:
            seen = self.attempts[-1]
            if said.what == "saved" and said.found is not None:
                self._unplaced.append(self._saved_step(said.found, said.at, seen))
            elif said.what == "resumed" and said.found is not None:
                self._take_resumed(said.found, seen.last_s)
            self._take_end(line, seen)

    def close(self) -> None:
        """No more lines: a save whose end has no time was over by the last."""
        for at in self._unplaced:
            self.attempts[-1].saves[at] = self.attempts[-1].last_s, self.attempts[-1].last_s

    def _take_step(self, step: re.Match[str], t_s: float) -> _Seen:
        seen, index = self.attempts[-1], step_index(step)
        if index is None or self._is_another_bar(step):
            return seen
        if seen.ticks and index == seen.ticks[-1].index:
            self.repeated += 1
            return seen
        if seen.ticks and index < seen.ticks[-1].index:
            seen = _Seen(t_s, t_s)
            self.attempts.append(seen)
        took_s = step_took_s(step) or 0.0
        if not seen.ticks:
            took_s = min(took_s, t_s - seen.start_s) if self._clock.stamped else took_s
            seen.start_s = min(seen.start_s, t_s - took_s)
        seen.ticks.append(Tick(index, t_s, took_s))
        seen.failed = seen.preempted = False  # it went on
        return seen

    def _is_another_bar(self, step: re.Match[str]) -> bool:
        """An evaluation's progress bar is not the training's, which is the longest."""
        size = named_group(step, "size")
        return size is not None and named_group(step, "epoch") is None and int(size) != self._size

    def _take_end(self, line: str, seen: _Seen) -> None:
        if self._dialect.done.search(line):
            seen.done = True
        elif self._dialect.preempted.search(line):
            seen.preempted = True
        elif self._dialect.failed.search(line):
            seen.failed = True

    def _take_resumed(self, found: re.Match[str], t_s: float) -> _Seen:
        """A trainer that says where it goes on is a new one if the last had taken steps."""
        first, last = named_group(found, "first"), named_group(found, "step")
        if self.attempts[-1].ticks:
            self.attempts.append(_Seen(t_s, t_s))
        if first or last:
            self.attempts[-1].resumed_at = int(first) if first else int(last or 0) + 1
        return self.attempts[-1]

    def _saved_step(self, found: re.Match[str], at: int | None, seen: _Seen) -> int:
        """The step that a checkpoint holds.

        As its line says, or the one that said it is begun; else the last that was logged.
        """
        said = named_group(found, "step")
        if said is None and found.re.groups and "step" not in found.re.groupindex:
            said = next((g for g in found.groups() if g and g.isdigit()), None)
        if said is not None:
            return int(said)
        if at is not None:
            return at
        begun = [step for step, (_, saved_s) in seen.saves.items() if saved_s is None]
        if begun and found.re is self._dialect.saved:
            return begun[-1]
        return seen.ticks[-1].index if seen.ticks else -1

    def _is_next(self, index: int | None) -> bool:
        ticks = self.attempts[-1].ticks if self.attempts else []
        return index is not None and (not ticks or index > ticks[-1].index)

    def _is_over(self) -> bool:
        seen = self.attempts[-1]
        return bool(seen.ticks) or seen.failed or seen.preempted


def _history(
    attempts: list[_Seen],
    dialect: Dialect,
    job: str,
    name: str,
    hints: UserHints,
    log: _Log,
    clock: LogClock,
) -> History:
    builder = HistoryBuilder(job, name)
    usual = pace([seen.ticks for seen in attempts])
    builder.notes.append(
        f"read as a log of {dialect.name}; lines of steps: {sum(len(s.ticks) for s in attempts)},"
        f" attempts: {len(attempts)}; what came before an attempt's first such line is not known"
    )
    stalls, over_s = 0, 0.0
    for seen in attempts:
        gaps, seconds = _add_attempt(builder, seen, usual, hints.stall)
        stalls, over_s = stalls + gaps, over_s + seconds
    if stalls:
        builder.notes.append(
            f"steps of more than {hints.stall:g} × the usual {usual.step_s:.3f} s: {stalls}; what"
            f" was over, {over_s:.1f} s, is other_in_loop where no line explains it"
        )
    if not clock.stamped:
        builder.notes.append("no time stamps: time is pieced together from what lines of steps say")
    if clock.back_s > 1:
        builder.notes.append(
            f"time stamps go back by up to {clock.back_s:.1f} s: held where they were"
        )
    if log.repeated:
        builder.notes.append(f"lines that repeat the step before them: {log.repeated}, left out")
    if log.untimed:
        builder.notes.append(f"lines of steps without a time: {log.untimed}, left out")
    builder.apply(hints)
    return builder.history(hints.ranks)


def _add_attempt(
    builder: HistoryBuilder, seen: _Seen, usual: Pace, stall: float
) -> tuple[int, float]:
    given = AttemptDraft(start_s=seen.start_s)
    builder.attempts.append(given)
    found = runs(seen.ticks, usual, stall=stall, resumed_at=seen.resumed_at)
    for run in found:
        builder.step(0, run.index, run.t0_s, run.t1_s, run.count)
    for account, t0, t1 in seen.spans:
        builder.span(0, account, max(t0, seen.start_s), t1)
    for step, (begun_s, saved_s) in seen.saves.items():
        after = next((tick.t_s for tick in seen.ticks if tick.t_s > begun_s), None)
        if saved_s is not None and saved_s > begun_s:
            builder.span(0, "checkpoint_blocked", begun_s, min(saved_s, after or saved_s))
        # Without a line that says so, a save was over when the next step was.
        durable = saved_s if saved_s is not None else after
        if durable is None and seen.done:
            durable = seen.last_s
        if durable is not None and step >= 0:
            builder.saved(step, durable)
    if seen.done or seen.failed or seen.preempted:
        given.end_s = seen.last_s
        ended_well = seen.done and not seen.failed and not seen.preempted
        given.outcome = "success" if ended_well else "preempted" if seen.preempted else "failed"
        given.cause = "preemption" if given.outcome == "preempted" else None
    return stalled_s(seen.ticks, found)
