"""Bars that compare policies, as an SVG that needs nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

_INK, _MUTED, _GRID = "#1f2937", "#6b7280", "#e5e7eb"
_BAR, _OURS = "#9ca3af", "#2563eb"
_PANELS = (
    ("preempts_per_job", "preemptions per job", "{:.3f}"),
    ("most_preempts", "most preemptions of one job", "{:.0f}"),
    ("lost_gpu_h", "GPU-hours lost", "{:,.0f}"),
    ("restarting_gpu_h", "GPU-hours restarting", "{:,.0f}"),
    ("quota_wait_percent", "quota wait, % of GPU-hours", "{:.3f}"),
    ("queue_s", "mean queue, s", "{:,.0f}"),
)
_COLUMNS, _WIDE, _LABEL, _ROW, _HEAD = 2, 440, 130, 20, 40


def svg(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """One panel for each figure, one bar for each policy and load."""
    high = _HEAD + _ROW * len(rows) + 16
    lines = -(-len(_PANELS) // _COLUMNS)
    width, height = _COLUMNS * _WIDE, 50 + lines * high
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="system-ui, Helvetica, Arial, sans-serif"'
        f' font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="30" font-size="17" font-weight="600">{escape(title)}</text>',
    ]
    several = len({row["load"] for row in rows}) > 1
    for number, (key, name, form) in enumerate(_PANELS):
        left, top = number % _COLUMNS * _WIDE, 50 + number // _COLUMNS * high
        parts.append(f'<text x="{left + 16}" y="{top + 22}" font-weight="600">{name}</text>')
        parts += _bars(rows, key, form, left, top + _HEAD, several)
    return "\n".join([*parts, "</svg>\n"])


def _bars(
    rows: Sequence[Mapping[str, Any]], key: str, form: str, left: int, top: int, several: bool
) -> list[str]:
    parts, most = [], max(float(row[key]) for row in rows) or 1.0
    start, room = left + _LABEL, _WIDE - _LABEL - 70
    for number, row in enumerate(rows):
        y, value = top + number * _ROW, float(row[key])
        label = f"{row['policy']} {row['load']:g}" if several else str(row["policy"])
        colour = _OURS if row["policy"] == "ours" else _BAR
        long, shown = room * value / most, form.format(value)
        parts += [
            f'<text x="{start - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{start}" y="{y + 2}" width="{room}" height="12" fill="{_GRID}"/>',
            f'<rect x="{start}" y="{y + 2}" width="{long:.1f}" height="12" fill="{colour}"/>',
            f'<text x="{start + room + 6}" y="{y + 12}" fill="{_MUTED}">{shown}</text>',
        ]
    return parts
