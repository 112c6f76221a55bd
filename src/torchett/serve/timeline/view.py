"""What the Timeline page knows beside its tiles: colours, attempts, and which ranks to look at."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchett.ledger.metrics.spread import RankSpread, Straggler, straggler
from torchett.model.durations import duration
from torchett.report.pages.job_view import slowest
from torchett.report.pages.strips import css_class
from torchett.serve.runs import JobRead
from torchett.serve.timeline.tiles import CELLS, LANES, MOST_LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Colour:
    """A cell's value − 1 is the place of its colour."""

    account: str
    group: str
    css: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A rank to look at, and why."""

    rank: int
    what: str  # slowest, delays
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpan:
    number: int
    begin_s: float
    end_s: float
    state: str
    cause: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    """The page, but for its tiles."""

    job: str
    live: bool
    version: str  # tiles of another version are stale
    ranks: int
    seconds: float
    began_s: float
    cells: int
    lanes: int
    most_level: int
    colours: Sequence[Colour]
    attempts: Sequence[AttemptSpan]
    marks: Sequence[Mark]
    slowest: Sequence[tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def timeline_view(read: JobRead) -> TimelineView:
    ledger, lanes = read.ledger, read.lanes
    start = ledger.window.start_ns
    spreads = read.spreads
    delays = straggler(spreads)
    return TimelineView(
        job=ledger.job,
        live=ledger.window.live,
        version=f"{ledger.window.end_ns}-{len(read.history.rows)}",
        ranks=lanes.ranks,
        seconds=(lanes.end_ns - start) / 1e9,
        began_s=read.history.epoch_s + start / 1e9,
        cells=CELLS,
        lanes=LANES,
        most_level=MOST_LEVEL,
        colours=[
            Colour(account=p.account, group=p.group, css=css_class(p.account, p.group))
            for p in lanes.palette
        ],
        attempts=[
            AttemptSpan(
                number=a.tenure.attempt.number,
                begin_s=(a.tenure.lo_ns - start) / 1e9,
                end_s=(a.tenure.hi_ns - start) / 1e9,
                state=a.tenure.state,
                cause=a.tenure.attempt.cause,
            )
            for a in ledger.attempts
        ],
        marks=_marks(spreads, delays),
        slowest=[
            (str(s.rank), f"{s.steps:,}", _s(s.median_s), _s(s.longest_s), _s(s.late_s))
            for s in slowest(spreads, delays)
        ],
    )


def _marks(spreads: list[RankSpread], delays: Straggler | None) -> list[Mark]:
    found = []
    if delays is not None:
        how = "begins its steps" if delays.begins_late else "takes"
        more = "later" if delays.begins_late else "longer a step"
        text = f"rank {delays.rank} delays the group: it {how} {_s(delays.by_s)} {more}"
        found.append(Mark(rank=delays.rank, what="delays", text=text))
    if len(spreads) > 1:
        slow = max(spreads, key=lambda s: s.median_s)
        text = f"rank {slow.rank} has the longest steps: {_s(slow.median_s)} in the median"
        found.append(Mark(rank=slow.rank, what="slowest", text=text))
    return found


def _s(value: float) -> str:
    return duration(round(value * 1e9))
