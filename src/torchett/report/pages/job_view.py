"""The values on the page of one job: a template draws them, `.json` prints them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchett.ledger.history import History
from torchett.ledger.ledger import AttemptLedger, Ledger
from torchett.ledger.metrics.losses import FailureCost, failure_costs
from torchett.ledger.metrics.saves import measure_saves
from torchett.ledger.metrics.spread import RankSpread, Straggler, spread, straggler
from torchett.ledger.pixels import shown_ranks
from torchett.ledger.timeline import Timeline, timeline
from torchett.model.accounts import GROUPS
from torchett.model.durations import duration
from torchett.report.glossary import explain
from torchett.report.marks import TITLES
from torchett.report.pages.rank_strips import RankStrip, rank_strips
from torchett.report.pages.recovery import RecoveryStep, cost_parts, recovery
from torchett.report.pages.strips import WIDE, Piece, css_class, stacked, strip
from torchett.report.pages.verdict import verdict, why
from torchett.report.sections.long_steps import long_steps_line
from torchett.report.sections.next_steps import NextStep
from torchett.report.words import plural

_MOST_ATTEMPTS = 40  # of a job with more, the first and the last are shown
_MOST_FAILURES = 24  # the costliest
_STRIP_RANKS = 16  # that a strip is drawn from
_MOST_MARKS = 200
_MOST_RANKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number under its name, with a word of context."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A group or account: its seconds, its share, and its place on the way to effective."""

    name: str
    title: str
    css: str
    seconds: float
    percent: float
    meaning: str
    x: float  # begin and width in strip units
    width: float
    accounts: tuple["Share", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt as a strip on the job's own axis."""

    number: int
    state: str
    cause: str | None
    rank: int | None
    ranks: int
    lasted: str
    steps: str
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCard:
    """What one failure was and what it cost, in rank-seconds."""

    attempt: int
    cause: str
    domain: str
    rank: int | None
    total_s: float
    percent: float
    parts: Sequence[tuple[str, float]]
    pieces: Sequence[Piece]
    lost_steps: tuple[int, int] | None
    evidence: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """How a job saved: figures, and the durable checkpoints as marks on the job's axis."""

    figures: Sequence[Figure]
    marks: Sequence[Piece]
    tiers: Sequence[Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The whole page."""

    job: str
    live: bool
    ett_percent: float
    facts: Sequence[str]
    figures: Sequence[Figure]
    shares: Sequence[Share]
    verdict: str
    why: Sequence[str]
    next: Sequence[NextStep]
    attempts: Sequence[AttemptRow]
    hidden_attempts: int
    rank_count: int
    rank_strips: Sequence[RankStrip]
    failures: Sequence[FailureCard]
    hidden_failures: int
    recovery: Sequence[RecoveryStep]
    ticks: Sequence[tuple[float, str]]
    checkpoints: Checkpoints | None
    compile: Mapping[str, Any] | None
    straggler: str | None
    ranks: Sequence[tuple[str, ...]]
    notes: Sequence[str]
    asides: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def job_view(
    ledger: Ledger,
    history: History,
    *,
    compiles: Mapping[str, Any] | None = None,
    evidence: Mapping[int, str] | None = None,
    tiers: Mapping[str, int] | None = None,
    advice: Sequence[NextStep] = (),
    with_ranks: bool = False,
) -> JobView:
    """Everything known about one job; levers, logs and advice are passed in.

    `with_ranks`: also a timeline of each rank; `ett serve` has a page of its own for that.
    """
    segments = timeline(ledger, history, shown_ranks(ledger.ranks, _STRIP_RANKS))
    chosen = _ends(len(ledger.attempts), _MOST_ATTEMPTS)
    costs = failure_costs(ledger)
    worst = sorted(costs, key=lambda cost: -cost.total_ns)[:_MOST_FAILURES]
    unsure = long_steps_line(ledger, history.rows)
    spreads = spread(history.rows)
    delays = straggler(spreads)
    return JobView(
        job=ledger.job,
        live=ledger.window.live,
        ett_percent=ledger.ett_percent,
        facts=_facts(ledger),
        figures=_figures(ledger),
        shares=_shares(ledger),
        verdict=verdict(ledger),
        why=why(ledger),
        next=advice,
        attempts=[_attempt(ledger, history, ledger.attempts[i], segments) for i in chosen],
        hidden_attempts=len(ledger.attempts) - len(chosen),
        rank_count=ledger.ranks,
        rank_strips=list(rank_strips(ledger, segments)) if with_ranks else [],
        failures=[_failure(ledger, cost, evidence or {}) for cost in worst],
        hidden_failures=len(costs) - len(worst),
        recovery=recovery(ledger, costs),
        ticks=ticks(ledger.window_ns),
        checkpoints=_checkpoints(ledger, history, tiers or {}),
        compile=compiles,
        straggler=_straggler(delays),
        ranks=[
            (str(s.rank), f"{s.steps:,}", *map(_s, (s.least_s, s.median_s, s.longest_s, s.late_s)))
            for s in slowest(spreads, delays)
        ],
        notes=[*history.warnings, *([] if unsure is None else [unsure]), *history.notes],
        asides=history.asides,
    )


def slowest(spreads: Sequence[RankSpread], delays: Straggler | None) -> list[RankSpread]:
    """The ranks to look at: the one that delays the group, then those with the longest steps."""
    first = None if delays is None else delays.rank
    order = sorted(spreads, key=lambda s: (s.rank != first, -(s.median_s + s.late_s)))
    return order[:_MOST_RANKS]


def _s(value: float) -> str:
    return duration(round(value * 1e9))


def _ends(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return [*range(most // 2), *range(count - most // 2, count)]


def _facts(ledger: Ledger) -> list[str]:
    facts = [
        plural(ledger.ranks, "rank"),
        plural(len(ledger.attempts), "attempt"),
        f"{duration(ledger.window_ns)} of wall time",
    ]
    if ledger.window.queue_ns:
        facts.append(f"{duration(ledger.window.queue_ns)} in the queue before")
    return facts


def _figures(ledger: Ledger) -> list[Figure]:
    recover, start = ledger.time_to_recover_ns, ledger.time_to_start_ns
    figures = [
        Figure(name="Time to Start", value="never" if start is None else duration(start)),
        Figure(
            name="Time to Recover",
            value=duration(sum(recover) // len(recover)) if recover else "–",
            note=f"mean of {len(recover)}" if len(recover) > 1 else "",
        ),
        Figure(
            name="Failures",
            value=str(ledger.number_of_failures),
            note=f"and {ledger.failures['user']} by the user" if ledger.failures["user"] else "",
        ),
        Figure(
            name="Last step",
            value="–" if ledger.last_step is None else f"{ledger.last_step:,}",
            note=f"saved {ledger.last_durable_step:,}" if ledger.last_durable_step >= 0 else "",
        ),
        Figure(name="Rank-hours", value=f"{ledger.rank_ns / 3.6e12:,.2f}"),
    ]
    if ledger.at_risk_ns:
        figures.append(Figure(name="At risk", value=duration(ledger.at_risk_ns), note="rank-time"))
    return figures


def _shares(ledger: Ledger) -> list[Share]:
    """Every group in the order of the waterfall: what is left of the whole is effective."""
    order = [group for group in GROUPS if group != "effective"] + ["effective"]
    whole = max(ledger.rank_ns, 1)
    left, found = float(WIDE), []
    for group in order:
        ns = ledger.groups[group]
        width = WIDE * ns / whole
        leaves = ledger.tree[group]
        inner = [] if set(leaves) <= {group} else sorted(leaves.items(), key=lambda i: -i[1])
        left -= width
        if ns:
            within = tuple(_share(name, name, group, n, whole, 0.0) for name, n in inner if n)
            found.append(_share(group, TITLES[group], group, ns, whole, left, within))  # type: ignore[index]
    return found


def _share(
    name: str, title: str, group: str, ns: int, whole: int, x: float, within: tuple[Share, ...] = ()
) -> Share:
    term = explain(name)
    return Share(
        name=name,
        title=title,
        css=f"g-{group}" if name == group else css_class(name, group),
        seconds=ns / 1e9,
        percent=100 * ns / whole,
        meaning=term.meaning if term else "",
        x=round(max(x, 0.0), 2),
        width=round(WIDE * ns / whole, 2),
        accounts=within,
    )


def _attempt(
    ledger: Ledger, history: History, attempt: AttemptLedger, segments: Timeline
) -> AttemptRow:
    tenure, begin = attempt.tenure, ledger.window.start_ns
    number = tenure.attempt.number
    whole = max(ledger.window_ns, 1)
    wide = WIDE * (tenure.hi_ns - tenure.lo_ns) / whole
    cells = max(1, min(600, round(wide)))
    mine = segments.take(segments.attempt == number)
    at = WIDE * (tenure.lo_ns - begin) / whole
    rows = history.rows
    made = rows.is_step & (rows.attempt == number)
    steps = ""
    if attempt.first_step is not None and made.any():
        steps = f"{attempt.first_step:,}–{int((rows.index + rows.count)[made].max()) - 1:,}"
    return AttemptRow(
        number=number,
        state=tenure.state,
        cause=tenure.attempt.cause,
        rank=tenure.attempt.failed_rank,
        ranks=tenure.attempt.ranks,
        lasted=duration(tenure.hi_ns - tenure.lo_ns),
        steps=steps,
        pieces=strip(mine, tenure.lo_ns, tenure.hi_ns, cells, at, max(wide, 1.5)),
    )


def _failure(ledger: Ledger, cost: FailureCost, evidence: Mapping[int, str]) -> FailureCard:
    parts = cost_parts(ledger, cost)
    first, started = parts[:2], parts[2:-1]
    largest = sorted(started, key=lambda item: -item[1])[:2]
    within = [(f"of which {name}", ns) for name, ns in largest if ns > cost.total_ns // 20]
    again = ("start again", cost.start_again_ns)
    summed = [*first, again, *within, ("unsaved", cost.unsaved_ns)]
    shares = [(name.replace("_", " "), ns / 1e9) for name, ns in summed if ns]
    return FailureCard(
        attempt=cost.attempt,
        cause=cost.cause or cost.state,
        domain=cost.domain,
        rank=cost.failed_rank,
        total_s=cost.total_ns / 1e9,
        percent=100 * cost.total_ns / max(ledger.rank_ns, 1),
        parts=shares,
        pieces=stacked(
            [(f"a-{n}", f"{n} {duration(ns)}", ns / 1e9) for n, ns in parts], cost.total_ns / 1e9
        ),
        lost_steps=cost.lost_steps,
        evidence=evidence.get(cost.attempt),
    )


def _checkpoints(ledger: Ledger, history: History, tiers: Mapping[str, int]) -> Checkpoints | None:
    saves = measure_saves(history, ledger)
    if not saves.saves and not history.checkpoints and not tiers:
        return None

    def seconds(value: float | None) -> str:
        return "–" if value is None else _s(value)

    begin, whole = ledger.window.start_ns, max(ledger.window_ns, 1)
    marks = [
        Piece(
            x=round(WIDE * (c.durable_ns - begin) / whole, 2),
            width=2,
            css="mark",
            title=f"step {c.step:,} durable",
        )
        for c in history.checkpoints[-_MOST_MARKS:]
    ]
    return Checkpoints(
        figures=[
            Figure(name="Saves", value=str(saves.saves)),
            Figure(name="Each blocks for", value=seconds(saves.blocking_s)),
            Figure(name="Durable after", value=seconds(saves.upload_s)),
            Figure(name="Interval", value=seconds(saves.interval_s)),
            Figure(name="Last durable step", value=f"{max(ledger.last_durable_step, 0):,}"
                   if ledger.last_durable_step >= 0 else "none"),
        ],
        marks=marks,
        tiers=[Figure(name=name, value=f"{count:,}") for name, count in tiers.items()],
    )  # fmt: skip


def _straggler(found: Straggler | None) -> str | None:
    if found is None:
        return None
    how = "begins its steps {} later than the first rank" if found.begins_late else (
        "takes {} longer a step than the others"
    )  # fmt: skip
    return f"Rank {found.rank} delays the group: it {how.format(_s(found.by_s))}."


def ticks(whole_ns: int, most: int = 9) -> list[tuple[float, str]]:
    """Round times along the job's axis: (place, words)."""
    sizes = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200)
    whole = whole_ns / 1e9
    if whole <= 0:
        return []
    step = next((s for s in sizes if whole / s <= most), None) or 86400 * -(
        -whole // (86400 * most)
    )
    found = []
    for i in range(int(whole / step) + 1):
        at = WIDE * i * step / whole
        if at <= WIDE - 30:
            found.append((round(at, 2), _clock(i * step, step)))
    return found


def _clock(at: float, step: float) -> str:
    if at == 0:
        return "0"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if step >= size:
            return f"{at / size:g} {unit}"
    return f"{at:g} s" if at < 120 else f"{at / 60:.3g} min"
