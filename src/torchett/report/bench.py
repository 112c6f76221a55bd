"""The report of `ett bench`: both ledgers side by side, and what each lever won."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from torchett.ledger.ledger import Ledger
from torchett.report.comparison import comparison
from torchett.report.grid import Grid
from torchett.report.pages.two_jobs import Exhibit, page
from torchett.report.words import plural

_SAME = {True: "the same bits", False: "NOT the same", None: "not compared"}


def bench_report(stock: Ledger, ours: Ledger, facts: Mapping[str, Any]) -> RenderableType:
    """The comparison, the accounts by lever, and the verdict."""
    verdict = Text("not training: ")
    verdict.append(f"{_wasted(facts)} rank-seconds, ")
    verdict.append(_saved(facts), style="bold green" if facts["saved_percent"] >= 0 else "bold red")
    verdict.append(f" · final weights: {_SAME[facts['same_weights']]}")
    head = f"{_job(facts)}; what went wrong: {', '.join(facts['went_wrong'])}"
    table = _won(facts["won_s"]).to_rich()
    parts = [Text(head, style="dim"), comparison(stock, ours), Text(), table, Text(), verdict]
    parts += [Text(f"mind: {remark}", style="yellow") for remark in facts["mind"]]
    if "levers" in facts:
        parts += [Text(), _levers(facts["levers"]).to_rich(), Text(), Text(_unbroken(facts))]
    return Group(*parts)


def bench_page(stock: Exhibit, ours: Exhibit, facts: Mapping[str, Any]) -> str:
    """The same as a page, with both timelines."""
    said = [
        f"{_job(facts)}. What went wrong: {', '.join(facts['went_wrong'])}.",
        f"Rank-seconds that were not training: {_wasted(facts)}, {_saved(facts)}."
        f" Final weights: {_SAME[facts['same_weights']]}.",
        *(f"Mind: {remark}." for remark in facts["mind"]),
    ]
    tables = {"What the levers won": _won(facts["won_s"])}
    if "levers" in facts:
        tables["Each lever alone, and left out"] = _levers(facts["levers"])
        said.append(f"{_unbroken(facts).capitalize()}.")
    return page("The same job, the same failures", said, stock, ours, tables)


def _job(facts: Mapping[str, Any]) -> str:
    ranks = plural(facts["ranks"], "rank")
    return f"{facts['workload']}, {ranks}, {facts['steps']:,} steps"


def _wasted(facts: Mapping[str, Any]) -> str:
    return " → ".join(f"{facts[side]['wasted_s']:,.1f}" for side in ("stock", "torchett"))


def _saved(facts: Mapping[str, Any]) -> str:
    percent = facts["saved_percent"]
    return f"{abs(percent):.0f}% {'fewer' if percent >= 0 else 'more'}"


def _unbroken(facts: Mapping[str, Any]) -> str:
    same = _SAME[facts["same_as_unbroken"]]
    return f"final weights, against a stock job without failures: {same}"


def _won(won_s: Mapping[str, float]) -> Grid:
    """Rank-seconds by which the accounts of each lever went down."""
    rows = [(title, f"{won:+,.1f}") for title, won in won_s.items()]
    return Grid(head=("won by the accounts of", "rank-seconds"), rows=rows)


def _levers(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Each lever alone against none (or what it needs with it and without), left out against all.

    A row says of its own two jobs whether they have the weights of one that nothing happened to.
    """
    shown = [
        (
            row["lever"] + (f" (on {', '.join(row['needs'])})" if row["needs"] else ""),
            f"{row['alone_s']:+,.1f}",
            f"{row['alone_ett_percent']:.1f}%",
            f"{row['left_out_s']:+,.1f}",
            f"{row['left_out_ett_percent']:.1f}%",
            _SAME[row["same_weights"]],
        )
        for row in rows
    ]
    head = ("lever", "alone wins s", "ETT alone", "left out loses s", "ETT without", "weights")
    return Grid(head=head, rows=shown)
