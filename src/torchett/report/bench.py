"""A bench for the eye: both ledgers side by side, and what each lever won."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchett.ledger.ledger import Ledger
from torchett.report.comparison import comparison
from torchett.report.words import plural

_SAME = {True: "the same bits", False: "NOT the same", None: "not compared"}


def bench_report(stock: Ledger, ours: Ledger, facts: Mapping[str, Any]) -> RenderableType:
    """The comparison, the accounts by lever, and the verdict."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("won by the accounts of", min_width=32)
    table.add_column("rank-seconds", justify="right")
    for title, won in facts["won_s"].items():
        table.add_row(title, Text(f"{won:+,.1f}", style="green" if won >= 0 else "red"))
    wasted = [facts[side]["wasted_s"] for side in ("stock", "torchett")]
    verdict = Text("not training: ")
    verdict.append(f"{wasted[0]:,.1f} → {wasted[1]:,.1f} rank-seconds, ")
    verdict.append(f"{facts['saved_percent']:.0f}% fewer", style="bold green")
    verdict.append(f" · final weights: {_SAME[facts['same_weights']]}")
    head = (
        f"{facts['workload']}, {plural(facts['ranks'], 'rank')}, {facts['steps']:,} steps;"
        f" what went wrong: {', '.join(facts['went_wrong'])}"
    )
    parts = [Text(head, style="dim"), comparison(stock, ours), Text(), table, Text(), verdict]
    return Group(*parts, *(Text(f"mind: {said}", style="yellow") for said in facts["mind"]))


def lever_report(rows: Sequence[Mapping[str, Any]], same: bool | None) -> RenderableType:
    """Each lever alone against none (or what it needs with it and without), left out against all.

    `same`: whether both sides have the weights of a stock job that nothing happened to. A row says
    that of its own two jobs.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("lever", min_width=32)
    for title in ("alone wins s", "ETT alone", "left out loses s", "ETT without", "weights"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row["lever"] + (f" (on {', '.join(row['needs'])})" if row["needs"] else ""),
            f"{row['alone_s']:+,.1f}",
            f"{row['alone_ett_percent']:.1f}%",
            f"{row['left_out_s']:+,.1f}",
            f"{row['left_out_ett_percent']:.1f}%",
            _SAME[row["same_weights"]],
        )
    verdict = f"final weights, against a stock job without failures: {_SAME[same]}"
    return Group(Text(), table, Text(), Text(verdict))
