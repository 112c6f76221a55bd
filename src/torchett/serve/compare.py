"""Two jobs side by side: a verdict line, the L1 figures, and every account that moved."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchett.ledger.ledger import Ledger
from torchett.model.durations import duration
from torchett.report.comparison import Move, moves
from torchett.report.pages.render import signed
from torchett.report.pages.strips import WIDE, css_class

_LEAST = 0.05  # points: below this an account did not move


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRow:
    """One account in both jobs, and its change as a bar around the middle."""

    move: Move
    css: str
    x: float
    width: float
    better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    a: str
    b: str
    a_percent: float
    b_percent: float
    verdict: str
    figures: Sequence[tuple[str, str, str]]
    rows: Sequence[MoveRow]

    @property
    def points(self) -> float:
        return self.b_percent - self.a_percent

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"points": self.points}


def compare(a: Ledger, b: Ledger, keys: tuple[str, str]) -> Comparison:
    """What changed from A to B, in points of each job's own rank-time.

    Jobs of one name are distinguished by their keys.
    """
    names = (a.job, b.job) if a.job != b.job else keys
    return comparison_of(names, moves(a, b), _figures(a, b))


def comparison_of(
    names: tuple[str, str], moved: Sequence[Move], figures: Sequence[tuple[str, str, str]]
) -> Comparison:
    """The page's values for these moves, the largest first."""
    most = max((abs(move.points) for move in moved), default=0) or 1.0
    kept = [move for move in moved if move.account == "effective"]
    percents = sum(move.a_percent for move in kept), sum(move.b_percent for move in kept)
    return Comparison(
        a=names[0],
        b=names[1],
        a_percent=percents[0],
        b_percent=percents[1],
        verdict=_verdict(names, percents[1] - percents[0], moved),
        figures=figures,
        rows=[_row(move, most) for move in moved if abs(move.points) >= _LEAST],
    )


def _row(move: Move, most: float) -> MoveRow:
    width = WIDE / 2 * abs(move.points) / most
    return MoveRow(
        move=move,
        css=css_class(move.account, move.group),
        x=round(WIDE / 2 - (width if move.points < 0 else 0), 2),
        width=round(max(width, 2), 2),
        better=(move.points > 0) == (move.account == "effective"),
    )


def _verdict(names: tuple[str, str], points: float, moved: Sequence[Move]) -> str:
    a, b = names
    if abs(points) < _LEAST:
        return f"{b} is as effective as {a}."
    # What pushed the same way: an account that shrank lifts the effective share.
    pushed = [m for m in moved if m.account != "effective" and (m.points < 0) == (points > 0)]
    said = " and ".join(f"{m.account} {signed(m.points)}" for m in pushed[:2])
    how = "more" if points > 0 else "less"
    line = f"{b} is {abs(points):.1f} points {how} effective than {a}"
    return f"{line}: {said}." if said else f"{line}."


def _figures(a: Ledger, b: Ledger) -> list[tuple[str, str, str]]:
    def mean(ledger: Ledger) -> str:
        times = ledger.time_to_recover_ns
        return duration(sum(times) // len(times)) if times else "–"

    def start(ledger: Ledger) -> str:
        ns = ledger.time_to_start_ns
        return "never" if ns is None else duration(ns)

    return [
        ("Time to Start", start(a), start(b)),
        ("Time to Recover", mean(a), mean(b)),
        ("Failures", a.failures_said, b.failures_said),
        ("Ranks", f"{a.ranks:,}", f"{b.ranks:,}"),
        ("Wall time", duration(a.window_ns), duration(b.window_ns)),
        ("Rank-hours", f"{a.rank_ns / 3.6e12:,.2f}", f"{b.rank_ns / 3.6e12:,.2f}"),
    ]
