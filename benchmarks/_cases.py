"""Eight small jobs whose truth is known by hand, told to us and to ml-goodput alike.

Each is written once, as attempts with start-up, steps and an end, and then told in the words of
either side: values for our ledger, and the calls of ml-goodput's own recorder.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from _histories import EPOCH_S, S, entry

from torchett.ledger import AccountTable, History, Ledger, Rows, settle
from torchett.model.values import Attempt, Job, Span, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One attempt, in seconds: start-up, then steps (index, begin, end), then its end."""

    start: float
    steps: list[tuple[int, float, float]]
    end: float | None  # None: still running
    outcome: Any = "success"
    recompiles: list[tuple[float, float]] = field(default_factory=list)
    says_end: bool = True  # whether the trainer gets as far as recording the job's end


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job, what is asked of it, and the right answer."""

    what: str
    asks: str  # ett % | failures | seconds unsaved
    truth: float
    tries: list[Try]
    ranks: int = 1
    every: int = 1  # only every so many steps are recorded


def _run(first: int, count: int, begin: float, each: float = 1.0) -> list[tuple[int, float, float]]:
    return [(first + k, begin + k * each, begin + (k + 1) * each) for k in range(count)]


def cases() -> Iterator[Case]:
    yield Case(
        what="restart that loses no step, 600 s down",
        asks="ett %",
        truth=100 * 200 / 820,
        tries=[
            Try(start=0, steps=_run(0, 50, 10, 2), end=110, outcome="failed", says_end=False),
            Try(start=710, steps=_run(50, 50, 720, 2), end=820),
        ],
    )
    yield Case(
        what="300 s shutdown after the last step",
        asks="ett %",
        truth=100 * 100 / 410,
        tries=[Try(start=0, steps=_run(0, 100, 10), end=410)],
    )
    steps = [*_run(0, 100, 10), (100, 110, 411), *_run(101, 99, 411)]
    yield Case(
        what="300 s recompile inside a step",
        asks="ett %",
        truth=100 * 200 / 510,
        tries=[Try(start=0, steps=steps, end=510, recompiles=[(110, 410)])],
    )
    yield Case(
        what="only every 10th step recorded",
        asks="ett %",
        truth=100 * 1000 / 1010,
        tries=[Try(start=0, steps=_run(0, 100, 10, 10), end=1010)],
        every=10,
    )
    dying = [Try(start=200 + 30 * k, steps=[], end=220 + 30 * k, outcome="failed") for k in (0, 1)]
    dying += [Try(start=260, steps=[], end=280, outcome="failed")]
    yield Case(
        what="4 restarts, 3 of them dying in init",
        asks="failures",
        truth=4,
        tries=[
            Try(start=0, steps=_run(0, 100, 10), end=110, outcome="failed"),
            *dying,
            Try(start=300, steps=_run(50, 100, 310), end=410),
        ],
    )
    yield Case(
        what="two ranks recording",
        asks="failures",
        truth=0,
        tries=[Try(start=0, steps=_run(0, 10, 10), end=20)],
        ranks=2,
    )
    yield Case(
        what="job end, then a restart",
        asks="ett %",
        truth=100 * 140 / 300,
        tries=[
            Try(start=0, steps=_run(0, 90, 10), end=100),
            Try(start=200, steps=_run(50, 90, 210), end=None),
        ],
    )
    yield Case(
        what="restart from step 0",
        asks="seconds unsaved",
        truth=90,
        tries=[
            Try(start=0, steps=_run(0, 90, 10), end=100, outcome="failed", says_end=False),
            Try(start=150, steps=_run(0, 100, 160), end=260),
        ],
    )


# Told to us ------------------------------------------------------------------------------------


def ours(case: Case) -> float:
    ledger = settle(_history(case))
    assert sum(ledger.accounts.values()) == ledger.rank_ns
    return _answer(ledger, case.asks)


def _answer(ledger: Ledger, asks: str) -> float:
    match asks:
        case "failures":
            return ledger.number_of_failures
        case "seconds unsaved":
            return ledger.accounts.get("unsaved", 0) / S
    return ledger.ett_percent


def _history(case: Case) -> History:
    accounts = AccountTable()
    values: list[Span | Step] = []
    for number, one in enumerate(case.tries):
        for rank in range(case.ranks):
            begin = one.steps[0][1] if one.steps else one.end
            assert begin is not None
            values.append(
                Span(
                    attempt=number,
                    rank=rank,
                    account="imports",
                    t0_ns=_ns(one.start),
                    t1_ns=_ns(begin),
                )
            )
            for k in range(0, len(one.steps), case.every):
                few = one.steps[k : k + case.every]  # `with ett.step(i, count=10)`
                values.append(
                    Step(
                        attempt=number,
                        rank=rank,
                        index=few[0][0],
                        count=len(few),
                        t0_ns=_ns(few[0][1]),
                        t1_ns=_ns(few[-1][2]),
                    )
                )
            for t0, t1 in one.recompiles:
                values.append(
                    Span(
                        attempt=number, rank=rank, account="recompile", t0_ns=_ns(t0), t1_ns=_ns(t1)
                    )
                )
    attempts = tuple(
        Attempt(
            number=number,
            start_ns=_ns(one.start),
            ranks=case.ranks,
            end_ns=None if one.end is None else _ns(one.end),
            outcome=None if one.end is None else one.outcome,
        )
        for number, one in enumerate(case.tries)
    )
    job = Job(name="case", ranks=case.ranks, attempts=attempts)
    return History(job=job, rows=Rows.from_values(values, accounts), accounts=accounts)


def _ns(seconds: float) -> int:
    return round(seconds * S)


# Told to ml-goodput ------------------------------------------------------------------------------


def theirs(case: Case, told: bool = False) -> float | str:
    """GoodputCalculator.get_job_goodput on the entries its recorder would have written.

    `told`: a recompile is also recorded as a custom badput event, by hand.
    """
    from ml_goodput_measurement.src.goodput import GoodputCalculator
    from ml_goodput_measurement.src.goodput_utils import BadputType

    with tempfile.TemporaryDirectory() as folder:
        calculator = GoodputCalculator(
            "bench", "bench", Kept(_entries(case, told)), cache_dir=folder
        )
        try:
            percent, _, _ = calculator.get_job_goodput(include_badput_breakdown=True)
        except ValueError as error:
            return f"error: {str(error).partition('.')[0]}"
        details = calculator.get_job_goodput_details()
    match case.asks:
        case "failures":
            return float(details["disruption_count"])
        case "seconds unsaved":
            wasted = details["badput_time"].get(BadputType.WASTED_PROGRESS_FROM_DISRUPTION, 0.0)
            return float(wasted)
    return float(percent)


class Kept:
    """Entries kept in a list, in place of its _CloudLogger; a second reading gets what is new."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self.entries = entries
        self._read = 0

    def read_cloud_logging_entries(self, *_: Any, **__: Any) -> tuple[list[dict[str, Any]], Any]:
        from ml_goodput_measurement.src.goodput_utils import get_timestamp_from_log_entry

        new, self._read = self.entries[self._read :], len(self.entries)
        return new, (get_timestamp_from_log_entry(self.entries[-1]), str(self._read))


def _entries(case: Case, told: bool) -> list[dict[str, Any]]:
    found: list[tuple[float, dict[str, Any]]] = []
    for one in case.tries:
        found.append((one.start, entry(job_start_time=_t(one.start))))
        for _ in range(case.ranks):
            for index, t0, _t1 in one.steps[:: case.every]:
                found.append((t0, entry(step_count=index, step_start_time=_t(t0))))
        for t0, t1 in one.recompiles if told else []:
            kind = {"custom_badput_event_type": "recompile"}
            found.append((t0, entry(**kind, custom_badput_event_start_time=_t(t0))))
            found.append((t1, entry(**kind, custom_badput_event_end_time=_t(t1))))
        if one.end is not None and one.says_end and one.outcome == "success":
            found.append((one.end, entry(job_end_time=_t(one.end))))
    return [fields for _, fields in sorted(found, key=lambda item: item[0])]


def _t(seconds: float) -> float:
    return EPOCH_S + float(seconds)
