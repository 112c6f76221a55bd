"""Effective time over two unknowns: the answer while the rate of failures is not measured.

           restart 10 s   1 min   10 min
MTBF  1 h         93.1%   91.6%    77.6%
MTBF  1 d         98.6%   98.5%    97.9%
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from torchett.advise.job_life import DAY_S, JobLife, Tier, expected

MTBF_S = (1800.0, 3600.0, 3 * 3600.0, 8 * 3600.0, DAY_S, 3 * DAY_S, 10 * DAY_S)
RESTART_S = (1.0, 10.0, 60.0, 300.0, 900.0, 1800.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """ETT% for each mean time between failures (rows) and each restart (columns)."""

    mtbf_s: tuple[float, ...]
    restart_s: tuple[float, ...]
    ett_percent: tuple[tuple[float, ...], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "mtbf_s": list(self.mtbf_s),
            "restart_s": list(self.restart_s),
            "ett_percent": [list(row) for row in self.ett_percent],
        }


def surface(
    life: JobLife, mtbf_s: Sequence[float] = MTBF_S, restart_s: Sequence[float] = RESTART_S
) -> Surface:
    """ETT% with other failures and other restarts, each with its best intervals."""
    rows = [
        tuple(expected(_with(life, mtbf, restart)).ett_percent for restart in restart_s)
        for mtbf in mtbf_s
    ]
    return Surface(mtbf_s=tuple(mtbf_s), restart_s=tuple(restart_s), ett_percent=tuple(rows))


def _with(life: JobLife, mtbf_s: float, restart_s: float) -> JobLife:
    def tier(one: Tier) -> Tier:
        return replace(one, restart_s=restart_s)

    snapshot = None if life.snapshot is None else tier(life.snapshot)
    return replace(life, mtbf_s=mtbf_s, durable=tier(life.durable), snapshot=snapshot)


def said(seconds: float) -> str:
    """A round duration in its own unit: 10 s, 5 min, 8 h, 3 d."""
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (DAY_S, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / DAY_S:.3g} d"


def svg(found: Surface, title: str) -> str:
    """The surface as a table of coloured cells: the greener, the higher is ETT%."""
    wide, high, left, top = 92, 34, 110, 84
    width = left + wide * len(found.restart_s) + 20
    height = top + high * len(found.mtbf_s) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="20" y="28" font-size="16" font-weight="600">{escape(title)}</text>',
        f'<text x="{left}" y="52" fill="#6b7280">restart after a failure</text>',
        f'<text x="20" y="{top - 10}" fill="#6b7280">between failures</text>',
    ]
    for column, restart in enumerate(found.restart_s):
        x = left + wide * (column + 0.5)
        parts.append(f'<text x="{x}" y="{top - 10}" text-anchor="middle">{said(restart)}</text>')
    for row, mtbf in enumerate(found.mtbf_s):
        y = top + high * row
        parts.append(f'<text x="20" y="{y + 22}">{said(mtbf)}</text>')
        for column, percent in enumerate(found.ett_percent[row]):
            x = left + wide * column
            parts.append(
                f'<rect x="{x}" y="{y}" width="{wide - 2}" height="{high - 2}" rx="3"'
                f' fill="#2e9e5b" fill-opacity="{_strength(percent):.2f}"/>'
                f'<text x="{x + wide / 2 - 1}" y="{y + 22}" text-anchor="middle">{percent:.1f}%'
                "</text>"
            )
    return "".join([*parts, "</svg>\n"])


def _strength(percent: float) -> float:
    """The opacity of a cell: faint up to 50%, strong at 100%, so that its text stays readable."""
    return 0.05 + 0.6 * max(0.0, percent - 50) / 50
