"""A job's time as rows of coloured pieces, for templates: nothing here knows HTML.

attempt 0  ▒▒▒▒▒▒▒▒██████████████▚✗        0 … 1000 across
attempt 1                         ╳╳╳██████
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torchett.ledger.pixels import Box, boxes
from torchett.ledger.timeline import Timeline
from torchett.model.accounts import is_own

WIDE = 1000  # units across a strip


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """`width` units from `x`, in the colour of a class, with a tooltip."""

    x: float
    width: float
    css: str
    title: str


def css_class(account: str, group: str) -> str:
    """The class that gives an account its colour; all of recovery has one."""
    if group == "recover":
        return "g-recover"
    return "a-own" if is_own(account) else f"a-{account}"


def strip(
    segments: Timeline, lo_ns: int, hi_ns: int, cells: int = 500, at: float = 0, wide: float = WIDE
) -> list[Piece]:
    """These segments between two times, laid out from `at` over `wide` units."""
    unit = wide / cells
    return [_piece(box, at, unit) for box in boxes(segments, lo_ns, hi_ns, cells)]


def _piece(box: Box, at: float, unit: float) -> Piece:
    return Piece(
        x=round(at + box.begin * unit, 2),
        width=round((box.end - box.begin) * unit, 2),
        css=css_class(box.account, box.group),
        title=box.account,
    )


def stacked(parts: Iterable[tuple[str, str, float]], whole: float) -> list[Piece]:
    """Parts (class, title, amount) one after the other, `whole` taking the full width."""
    pieces, upto = [], 0.0
    for css, title, amount in parts:
        if amount > 0 and whole > 0:
            x, width = WIDE * upto / whole, WIDE * amount / whole
            pieces.append(Piece(x=round(x, 2), width=round(width, 2), css=css, title=title))
        upto += max(amount, 0)
    return pieces
