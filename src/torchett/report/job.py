"""The report of one job: a headline, the account tree, attempts as strips, what was lost."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from torchett.ledger.history import History
from torchett.ledger.ledger import AttemptLedger, Ledger
from torchett.ledger.metrics.losses import FailureCost, failure_costs
from torchett.ledger.metrics.spread import RankSpread, spread, straggler
from torchett.ledger.pixels import boxes, shown_ranks
from torchett.ledger.timeline import Timeline, timeline
from torchett.ledger.views import Definition
from torchett.model.accounts import GROUP_COLOURS, GROUPS, Kind, account
from torchett.model.durations import duration
from torchett.report.marks import TITLES, bar, cells, legend, stacked
from torchett.report.sections.long_steps import long_steps_line
from torchett.report.words import percent, plural

_STACKED, _BAR, _STRIP = 100, 30, 50  # cells where there is room; they give way to figures
_SMALL = 0.0005  # of all: accounts below this share a line
_MOST_ATTEMPTS = 12  # of a job with more, the first and last are shown
_MOST_RANKS = 8
_LONGEST_CAUSE = 44
_MUCH = 0.10  # of all: so much unattributed time deserves a word
_STRIP_RANKS = 16  # that an attempt's strip is drawn from
_SILENT_NS = 60_000_000_000  # launchers beat every second; hosts' clocks may differ a little


def job_report(
    ledger: Ledger,
    history: History,
    definition: Definition,
    details: Sequence[RenderableType] = (),
    now_ns: int | None = None,
) -> RenderableType:
    """The whole report, with what levers have to say in `details`.

    `now_ns` is given where a job that runs would have shown a sign of life until just before.
    """
    return _Fitted(
        lambda width: [
            *_headline(ledger, history, definition, width, now_ns),
            Text(),
            account_tree(ledger, width),
            Text(),
            *_attempts(ledger, history, width),
            *_failures(ledger),
            *_ranks(history),
            *details,
            *_notes(ledger, history, definition),
        ]
    )


class _Fitted:
    """What `draw` makes of the width there is."""

    def __init__(self, draw: Callable[[int], list[RenderableType]]) -> None:
        self._draw = draw

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        yield from self._draw(options.max_width)


def _headline(
    ledger: Ledger, history: History, definition: Definition, width: int, now_ns: int | None
) -> list[RenderableType]:
    share = definition.percent(ledger, history.rows)
    top = Text(f"{ledger.job}  ", style="bold")
    top.append(f"{share:.1f}% effective", style=f"bold {GROUP_COLOURS['effective']}")
    if definition.name != "meta":
        top.append(f"  by {definition.who}: {definition.sentence}", style="dim")
    facts = [
        plural(ledger.ranks, "rank"),
        plural(len(ledger.attempts), "attempt"),
        f"{duration(ledger.window_ns)} of wall time",
    ]
    if ledger.window.live:
        silent_ns = 0 if now_ns is None else now_ns - ledger.window.end_ns
        silent = silent_ns > _SILENT_NS
        facts.append(f"no sign of life for {duration(silent_ns)}" if silent else "still running")
    if ledger.window.queue_ns:
        facts.append(f"{duration(ledger.window.queue_ns)} in the queue before")
    if ledger.window.requeue_ns:
        facts.append(f"{duration(ledger.window.requeue_ns)} requeued")
    unsure = long_steps_line(ledger, history.rows)
    return [
        top,
        *(Text(warning, style="bold yellow") for warning in history.warnings),
        *([] if unsure is None else [Text(unsure, style="yellow")]),
        Text(" · ".join(facts), style="dim"),
        stacked(ledger.groups, min(width, _STACKED)),
        legend(),
        Text(),
        key_figures(ledger),
    ]


def key_figures(ledger: Ledger) -> Text:
    """Time to Start, Time to Recover, Number of Failures, and how far training got."""
    start = ledger.time_to_start_ns
    recover = ledger.time_to_recover_ns
    text = Text("Time to Start ")
    text.append("never" if start is None else duration(start), style="bold")
    if recover:
        text.append("   Time to Recover ")
        mean = duration(sum(recover) // len(recover))
        text.append(mean if len(recover) == 1 else f"{mean} (mean of {len(recover)})", style="bold")
    text.append("   Number of Failures ")
    count, _, by_user = ledger.failures_said.partition(" ")
    text.append(count, style="bold")
    if by_user:
        text.append(f" {by_user}")
    if ledger.last_step is not None:
        text.append("   last step ")
        text.append(f"{ledger.last_step:,}", style="bold")
        if ledger.last_durable_step >= 0:
            text.append(f" (saved: {ledger.last_durable_step:,})")
    if ledger.at_risk_ns:
        text.append(f"   at risk {duration(ledger.at_risk_ns)}")
    return text


def account_tree(ledger: Ledger, width: int) -> Table:
    """Every account with its rank-seconds, group by group, and their sum."""
    whole = ledger.rank_ns
    figures = max(len("rank-seconds"), len(f"{whole / 1e9:,.2f}"))
    cells = max(1, min(_BAR, width - figures - 38))  # beside them: a name and a percentage
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
    table.add_column("account", min_width=26)
    table.add_column("rank-seconds", justify="right", no_wrap=True)
    table.add_column("%", justify="right", no_wrap=True)
    table.add_column("", width=cells, no_wrap=True)
    for group in GROUPS:
        accounts = {name: ns for name, ns in ledger.tree[group].items() if ns}
        total = sum(accounts.values())
        if not total and group != "effective":
            continue
        title = Text(TITLES[group], style="bold")
        table.add_row(
            title, f"{total / 1e9:,.2f}", percent(total, whole), bar(total, whole, cells, group)
        )
        if len(accounts) > 1 or set(accounts) - {group}:
            small = {name: ns for name, ns in accounts.items() if ns < _SMALL * whole}
            for name, ns in sorted(accounts.items(), key=lambda item: -item[1]):
                if name in small and len(small) > 1:
                    continue
                table.add_row(
                    Text(f"  {name}", style="dim"),
                    Text(f"{ns / 1e9:,.2f}", style="dim"),
                    Text(percent(ns, whole), style="dim"),
                    bar(ns, whole, cells, group, _shade(name, group)),
                )
            if len(small) > 1:
                rest = Text(f"  {len(small)} smaller", style="dim")
                total = sum(small.values())
                table.add_row(rest, f"{total / 1e9:,.2f}", percent(total, whole), "")
    table.add_row("", "────────────", "──────", "")
    table.add_row("sum", f"{whole / 1e9:,.2f}", percent(whole, whole), "")
    return table


def _shade(name: str, group: Kind) -> str:
    return GROUP_COLOURS["recover"] if group == "recover" else account(name).colour


def _attempts(ledger: Ledger, history: History, width: int) -> list[RenderableType]:
    count = len(ledger.attempts)
    if not count:
        return []
    shown = list(range(count))
    if count > _MOST_ATTEMPTS:
        half = _MOST_ATTEMPTS // 2
        shown = [*range(half), *range(count - half, count)]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("attempt", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("lasted", justify="right", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("ended")
    longest = max(ledger.attempts[i].tenure.hi_ns - ledger.attempts[i].tenure.lo_ns for i in shown)
    room = max(1, min(_STRIP, width - 54))
    segments = timeline(ledger, history, shown_ranks(ledger.ranks, _STRIP_RANKS))
    for i in shown:
        attempt = ledger.attempts[i]
        if i and i - 1 not in shown:
            table.add_row("…", f"{count - len(shown)} more", "", "", "")
        mine = segments.take(segments.attempt == attempt.tenure.attempt.number)
        table.add_row(*_attempt_row(history, attempt, mine, longest, room))
    return [table, Text()]


def _attempt_row(
    history: History, attempt: AttemptLedger, segments: Timeline, longest: int, room: int
) -> tuple[str, Text, str, str, Text]:
    tenure = attempt.tenure
    number = tenure.attempt.number
    lasted = tenure.hi_ns - tenure.lo_ns
    width = max(1, round(room * lasted / longest)) if longest else 1
    steps = history.rows.is_step & (history.rows.attempt == number)
    span = ""
    if attempt.first_step is not None:
        last = int((history.rows.index + history.rows.count)[steps].max()) - 1
        span = _span(attempt.first_step, last)
    cause = _cause(tenure.attempt.cause, tenure.attempt.failed_rank, tenure.attempt.ranks)
    ended = Text(tenure.state if cause is None else f"{tenure.state}: {cause}")
    marks = cells(boxes(segments, tenure.lo_ns, tenure.hi_ns, width))
    return str(number), marks, duration(lasted), span, ended


def _failures(ledger: Ledger) -> list[RenderableType]:
    costs = failure_costs(ledger)
    if not costs:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("lost to failures", "rank-seconds", "detect", "restart gap", "start again"):
        table.add_column(title, justify="left" if title == "lost to failures" else "right")
    table.add_column("unsaved", justify="right")
    table.add_column("")
    worst = sorted(costs, key=lambda c: -c.total_ns)[:_MOST_ATTEMPTS]
    for cost in sorted(worst, key=lambda c: c.attempt):
        table.add_row(*_failure_row(cost, ledger.ranks))
    if len(costs) > len(worst):
        rest = sum(c.total_ns for c in costs) - sum(c.total_ns for c in worst)
        table.add_row(f"{len(costs) - len(worst)} more", f"{rest / 1e9:,.2f}", "", "", "", "", "")
    return [table, Text()]


def _cause(cause: str | None, rank: int | None, ranks: int) -> str | None:
    """A cause on part of a line, with the rank it was seen on: an exception may say a lot."""
    if cause is None:
        return None
    words = " ".join(cause.split())
    short = words if len(words) <= _LONGEST_CAUSE else f"{words[: _LONGEST_CAUSE - 1]}…"
    return short if rank is None or ranks == 1 else f"rank {rank}: {short}"


def _failure_row(cost: FailureCost, ranks: int) -> tuple[Text | str, ...]:
    cause = _cause(cost.cause, cost.failed_rank, ranks) or cost.state
    what = Text(f"attempt {cost.attempt} {cause} ({cost.domain})")
    times = (cost.total_ns, cost.detect_ns, cost.restart_gap_ns, cost.start_again_ns)
    steps = ""
    if cost.lost_steps is not None:
        steps = f"steps {_span(*cost.lost_steps)}"
    return (what, *(f"{ns / 1e9:,.2f}" for ns in (*times, cost.unsaved_ns)), steps)


def _span(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"


def _ranks(history: History) -> list[RenderableType]:
    spreads = spread(history.rows)
    if not spreads:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim")
    titles = ["step times", "steps", "least", "median", "longest", "behind first rank"]
    shown = titles if len(spreads) > 1 else titles[:-1]
    for title in shown:
        table.add_column(title, justify="left" if title == "step times" else "right")
    by_median = sorted(spreads, key=lambda s: -s.median_s)[:_MOST_RANKS]
    for one in sorted(by_median, key=lambda s: s.rank):
        table.add_row(*_rank_row(one)[: len(shown)])
    if len(spreads) > len(by_median):
        table.add_row(f"{len(spreads) - len(by_median)} faster ranks", "", "", "", "", "")
    found = straggler(spreads)
    said = []
    if found is not None:
        why = "begins its steps" if found.begins_late else "takes"
        how = "later than the first rank" if found.begins_late else "longer than the others"
        by = duration(round(found.by_s * 1e9))
        said = [Text(f"straggler: rank {found.rank} {why} {by} {how}", style="bold")]
    return [table, *said, Text()]


def _rank_row(one: RankSpread) -> tuple[str, ...]:
    times = (one.least_s, one.median_s, one.longest_s, one.late_s)
    return (f"rank {one.rank}", f"{one.steps:,}", *(duration(round(t * 1e9)) for t in times))


def _notes(ledger: Ledger, history: History, definition: Definition) -> list[RenderableType]:
    notes = list(history.notes)
    if ledger.estimated_ns:
        notes.append(
            f"{duration(ledger.estimated_ns)} are estimated: a restart resumed inside a block of"
            " steps, which count as equally long"
        )
    if definition.estimated(ledger, history.rows):
        notes.append(
            "the headline is an estimate: the first lost step is inside a block of steps that the"
            " record keeps as one"
        )
    share = ledger.groups["unattributed"] / ledger.rank_ns if ledger.rank_ns else 0
    if share > _MUCH:
        notes.append(
            history.unrecorded
            or "more than a tenth is unattributed: mark start-up with `with ett.stage(…)`, and call"
            " ett.init() in every rank"
        )
    said = [Text(f"note: {note}", style="yellow") for note in notes]
    return [*said, *(Text(aside, style="dim") for aside in history.asides)]
