"""Two jobs side by side: which accounts moved, and by how much."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchett.ledger.ledger import Ledger
from torchett.model.accounts import GROUPS
from torchett.model.durations import duration
from torchett.report.marks import TITLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One account in both jobs, in rank-seconds and as a share of all of them."""

    group: str
    account: str
    a_s: float
    b_s: float
    a_percent: float
    b_percent: float

    @property
    def points(self) -> float:
        return self.b_percent - self.a_percent


def moves(a: Ledger, b: Ledger) -> list[Move]:
    """Every account of either job, the one that moved most first."""
    found = []
    for group in GROUPS:
        for name in {**a.tree[group], **b.tree[group]}:
            ours, theirs = a.tree[group].get(name, 0), b.tree[group].get(name, 0)
            if ours or theirs:
                found.append(
                    Move(
                        group=group,
                        account=name,
                        a_s=ours / 1e9,
                        b_s=theirs / 1e9,
                        a_percent=100 * ours / a.rank_ns if a.rank_ns else 0.0,
                        b_percent=100 * theirs / b.rank_ns if b.rank_ns else 0.0,
                    )
                )
    return sorted(found, key=lambda move: -abs(move.points))


def told_apart(a: Ledger, b: Ledger, runs: tuple[Path, Path]) -> tuple[Ledger, Ledger]:
    """Both, under the names of their run folders (or their paths) if their jobs have one name."""
    if a.job != b.job:
        return a, b
    ours, theirs = (run.resolve() for run in runs)
    if ours.name != theirs.name:
        return replace(a, job=ours.name), replace(b, job=theirs.name)
    return replace(a, job=str(runs[0])), replace(b, job=str(runs[1]))


def comparison_json(a: Ledger, b: Ledger) -> dict[str, Any]:
    return {
        "a": a.to_json(),
        "b": b.to_json(),
        "ett_points": b.ett_percent - a.ett_percent,
        "accounts": [asdict(move) | {"points": move.points} for move in moves(a, b)],
    }


def comparison(a: Ledger, b: Ledger) -> RenderableType:
    """A headline, the three L1 figures, and the accounts that moved."""
    points = b.ett_percent - a.ett_percent
    top = Text(f"{a.job} → {b.job}  ", style="bold")
    top.append(f"{a.ett_percent:.1f}% → {b.ett_percent:.1f}% effective")
    top.append(f"  {points:+.1f} points", style="bold green" if points >= 0 else "bold red")
    return Group(top, Text(), _figures(a, b), Text(), _accounts(a, b))


def _figures(a: Ledger, b: Ledger) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("", a.job, b.job):
        table.add_column(title, justify="right" if title else "left")

    def mean(times: tuple[int, ...]) -> str:
        return duration(sum(times) // len(times)) if times else "–"

    def start(ns: int | None) -> str:
        return "never" if ns is None else duration(ns)

    table.add_row("Time to Start", start(a.time_to_start_ns), start(b.time_to_start_ns))
    table.add_row("Time to Recover", mean(a.time_to_recover_ns), mean(b.time_to_recover_ns))
    table.add_row("Number of Failures", a.failures_said, b.failures_said)
    table.add_row("rank-seconds", f"{a.rank_ns / 1e9:,.1f}", f"{b.rank_ns / 1e9:,.1f}")
    return table


def _accounts(a: Ledger, b: Ledger) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("account", f"{a.job} s", f"{b.job} s", "change s", "share", "points"):
        table.add_column(title, justify="left" if title == "account" else "right")
    for move in moves(a, b):
        leaf = move.account == move.group
        name = move.account if leaf else f"{TITLES[move.group]} · {move.account}"  # type: ignore[index]
        better = move.points >= 0 if move.account == "effective" else move.points <= 0
        table.add_row(
            name,
            f"{move.a_s:,.2f}",
            f"{move.b_s:,.2f}",
            f"{move.b_s - move.a_s:+,.2f}",
            f"{move.a_percent:.1f}% → {move.b_percent:.1f}%",
            Text(f"{move.points:+.1f}", style="green" if better else "red"),
        )
    return table
