"""The report of a job that consists of replica groups: the sum, and a line for each group."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchett.ledger.ledger import Ledger
from torchett.model.accounts import GROUP_COLOURS
from torchett.model.durations import duration
from torchett.report.job import account_tree, key_figures
from torchett.report.marks import legend, stacked
from torchett.report.words import plural

_WIDTH = 100


def grouped_report(
    job: Ledger, groups: Mapping[str, Ledger], warnings: Sequence[str], notes: Sequence[str]
) -> RenderableType:
    """The whole report."""
    return Group(*_parts(job, groups, warnings, notes))


def _parts(
    job: Ledger, groups: Mapping[str, Ledger], warnings: Sequence[str], notes: Sequence[str]
) -> Iterator[RenderableType]:
    top = Text(f"{job.job}  ", style="bold")
    top.append(f"{job.ett_percent:.1f}% effective", style=f"bold {GROUP_COLOURS['effective']}")
    yield top
    yield from (Text(warning, style="bold yellow") for warning in warnings)
    facts = [
        plural(len(groups), "replica group"),
        plural(job.ranks, "rank"),
        f"{duration(job.window_ns)} of wall time",
    ]
    if job.window.live:
        facts.append("still running")
    yield Text(" · ".join(facts), style="dim")
    yield stacked(job.groups, _WIDTH)
    yield legend()
    yield Text()
    yield key_figures(job)
    yield Text()
    yield account_tree(job, _WIDTH)
    yield Text()
    yield _table(groups)
    yield from (Text(f"note: {note}", style="yellow") for note in notes)
    yield Text(f"one group: ett report {next(iter(groups.values())).job}", style="dim")


def _table(groups: Mapping[str, Ledger]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("group", no_wrap=True)
    titles = ("ranks", "attempts", "effective", "recover", "unsaved", "failures", "last step")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for name, ledger in groups.items():
        whole = ledger.rank_ns or 1
        shares = (ledger.groups[group] / whole for group in ("effective", "recover", "unsaved"))
        table.add_row(
            name,
            f"{ledger.ranks:,}",
            f"{len(ledger.attempts):,}",
            *(f"{share:.1%}" for share in shares),
            ledger.failures_said,
            "–" if ledger.last_step is None else f"{ledger.last_step:,}",
        )
    return table


def grouped_json(
    job: Ledger, groups: Mapping[str, Ledger], warnings: Sequence[str], notes: Sequence[str]
) -> dict[str, Any]:
    """The job's object, and in `replica_groups` one for each group."""
    shown = job.to_json()
    shown["replica_groups"] = {name: ledger.to_json() for name, ledger in groups.items()}
    if warnings:
        shown["warnings"] = list(warnings)
    if notes:
        shown["notes"] = list(notes)
    return shown
