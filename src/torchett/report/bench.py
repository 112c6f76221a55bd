"""A bench for the eye: both ledgers side by side, and what each lever won."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchett.ledger.ledger import Ledger
from torchett.report.comparison import comparison
from torchett.report.words import plural


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
    same = {True: "the same bits", False: "NOT the same", None: "not compared"}
    verdict.append(f" · final weights: {same[facts['same_weights']]}")
    head = (
        f"{facts['workload']}, {plural(facts['ranks'], 'rank')}, {facts['steps']:,} steps;"
        f" what went wrong: {', '.join(facts['schedule'])}"
    )
    parts = [Text(head, style="dim"), comparison(stock, ours), Text(), table, Text(), verdict]
    if facts["unsteady"]:
        parts.append(Text(f"mind: {facts['unsteady']}", style="yellow"))
    return Group(*parts)


def lever_report(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Each lever alone against none, and left out against all."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("lever", min_width=32)
    for title in ("alone wins s", "ETT alone", "left out loses s", "ETT without", "weights"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row["lever"],
            f"{row['alone_s']:+,.1f}",
            f"{row['alone_ett_percent']:.1f}%",
            f"{row['left_out_s']:+,.1f}",
            f"{row['left_out_ett_percent']:.1f}%",
            "same bits" if row["same_weights"] else "differ",
        )
    return Group(Text(), table)
