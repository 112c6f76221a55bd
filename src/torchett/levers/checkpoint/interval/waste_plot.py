"""The waste curve with its two parts and the optimum, for the terminal and as SVG.

waste
  8% ┤⡇
     │⢣                                both
  4% ┤ ⠣⡀                   ⣀⣀⠤⠤⠒⠒⠉⠉
     │   ⠉⠒⠤⠤⣀⣀●⣀⣀⠤⠤⠒⠒⠉⠉             lost work
  0% ┼─────────┴───────────────────── checkpointing
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from torchett.levers.checkpoint.interval.report import IntervalPlan, Point
from torchett.model.accounts import account
from torchett.model.durations import duration_of_s

if TYPE_CHECKING:
    from rich.text import Text

_INK = "#1f2933"
_MUTED = "#6b7280"


@dataclass(frozen=True, slots=True)
class Curve:
    """One of the lines: what it is called, its colour, and its share at a point."""

    name: str
    colour: str
    share: Callable[[Point], float]


_SAVING = Curve(
    "checkpointing", account("checkpoint_blocked").colour, lambda p: p.waste.checkpointing
)
_LOST = Curve("lost work", account("unsaved").colour, lambda p: p.waste.lost)
_BOTH = Curve("both", _INK, lambda p: p.waste.of_interval)
_CURVES: Final = (_SAVING, _LOST, _BOTH)


@dataclass(frozen=True, slots=True)
class Frame:
    """What part of the plane is shown: 0…until_s, 0…top."""

    until_s: float
    top: float

    @staticmethod
    def of(plan: IntervalPlan, marks: Sequence[float] = ()) -> "Frame":
        """Four times the optimum, or what it takes to show `marks` unless they are far away."""
        near = [mark for mark in marks if mark < 10 * plan.interval_s]
        until_s = max([4 * plan.interval_s, *(1.1 * mark for mark in near)])
        highest = max(plan.at(until_s).waste.of_interval, 2.2 * plan.waste.of_interval)
        for mark in near:
            highest = max(highest, 1.1 * plan.at(mark).waste.of_interval)
        return Frame(until_s, min(1.0, max(_ticks(highest, 4))))


def _ticks(until: float, about: int) -> list[float]:
    """Round numbers from 0 to just above `until`."""
    rough = until / about
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough * (1 - 1e-9))
    return [i * step for i in range(math.ceil(until / step - 1e-9) + 1)]


_CLOCK_STEPS: Final = tuple(
    unit * step
    for unit, steps in (
        (1e-3, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (1, (1, 2, 5, 10, 15, 30)),
        (60, (1, 2, 5, 10, 15, 30)),
        (3600, (1, 2, 3, 6, 12)),
        (86400, (1, 2, 5, 10, 20, 50, 100)),
    )
    for step in steps
)


def _time_ticks(until_s: float) -> list[float]:
    """Times as a clock would show them, seven at most after the 0."""
    step = next((step for step in _CLOCK_STEPS if step >= until_s / 7), until_s / 4)
    return [step * i for i in range(int(until_s / step + 1e-9) + 1)]


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


# In the terminal -------------------------------------------------------------------------------

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # braille, row by column


def terminal(
    plan: IntervalPlan, *, width: int = 68, height: int = 15, mark_s: float | None = None
) -> "Text":
    """The plot in lines of text; `mark_s` is an interval to show besides the optimum."""
    from rich.text import Text

    frame = Frame.of(plan, [] if mark_s is None else [mark_s])
    cells = [[0] * width for _ in range(height)]
    inks: list[list[str]] = [[""] * width for _ in range(height)]
    for curve in _CURVES:
        style = "bold" if curve is _BOTH else curve.colour
        before: int | None = None
        for x in range(2 * width):
            point = plan.at(frame.until_s * (x + 0.5) / (2 * width))
            y = round((1 - curve.share(point) / frame.top) * (4 * height - 1))
            first = y if before is None else before
            for dot in range(max(0, min(y, first)), min(4 * height - 1, max(y, first)) + 1):
                cells[dot // 4][x // 2] |= _DOTS[dot % 4][x % 2]
                inks[dot // 4][x // 2] = style
            before = y

    def at(interval_s: float, share: float) -> tuple[int, int] | None:
        column = int(interval_s / frame.until_s * width)
        row = round((1 - share / frame.top) * (4 * height - 1)) // 4
        return (row, column) if 0 <= row < height and 0 <= column < width else None

    marked = {}
    if place := at(plan.interval_s, plan.waste.of_interval):
        marked[place] = "●"
    if mark_s is not None and (place := at(mark_s, plan.at(mark_s).waste.of_interval)):
        marked[place] = "◆"
    labels = _labels_by_row(plan, frame, height)
    scale = {round((1 - tick / frame.top) * (height - 1)): tick for tick in _ticks(frame.top, 4)}
    text = Text()
    for row in range(height):
        text.append(f"{_percent(scale[row]) if row in scale else '':>6} ", style="dim")
        text.append("┤" if row in scale else "│", style="dim")
        for column in range(width):
            sign = marked.get((row, column))
            if sign is not None:
                text.append(sign, style="bold")
            else:
                text.append(chr(0x2800 + cells[row][column]), style=inks[row][column] or None)
        for curve in labels.get(row, ()):
            text.append(f" {curve.name}", style="bold" if curve is _BOTH else curve.colour)
        text.append("\n")
    text.append(_axis(frame, width))
    return text


def _labels_by_row(plan: IntervalPlan, frame: Frame, height: int) -> dict[int, list[Curve]]:
    """Each curve's name beside its end, no two in a row unless there is no room."""
    last, labels = plan.at(frame.until_s), dict[int, list[Curve]]()
    for curve in sorted(_CURVES, key=lambda c: -c.share(last)):
        row = min(height - 1, max(0, round((1 - curve.share(last) / frame.top) * (height - 1))))
        while row in labels and row < height - 1:
            row += 1
        labels.setdefault(row, []).append(curve)
    return labels


def _axis(frame: Frame, width: int) -> "Text":
    from rich.text import Text

    line, names = ["─"] * width, [" "] * (width + 12)
    for tick in _time_ticks(frame.until_s):
        column = round(tick / frame.until_s * width)
        if column < width:
            line[column] = "┴"
            label = duration_of_s(tick).replace(".0 ", " ") if tick else "0"
            names[column : column + len(label)] = label
    text = Text(f"{'':>7}└{''.join(line)}\n", style="dim")
    return text.append(f"{'':>8}{''.join(names).rstrip()}", style="dim")


# As a picture ----------------------------------------------------------------------------------

_WIDTH, _HEIGHT = 860, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 130, 76, 64


def svg(plan: IntervalPlan, title: str, *, mark_s: float | None = None) -> str:
    """The plot as an SVG that needs nothing else."""
    frame = Frame.of(plan, [] if mark_s is None else [mark_s])
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(interval_s: float) -> float:
        return _LEFT + wide * interval_s / frame.until_s

    def y(share: float) -> float:
        return _TOP + high * (1 - share / frame.top)

    def text(at: tuple[float, float], said: str, more: str = "") -> str:
        return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" {more}>{escape(said)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' width="{_WIDTH}" height="{_HEIGHT}" font-family="system-ui, Helvetica, Arial,'
        f' sans-serif" font-size="13" fill="{_INK}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<clipPath id="in"><rect x="{_LEFT}" y="{_TOP}" width="{wide}" height="{high}"/>'
        "</clipPath>",
        text((_LEFT, 30), title, 'font-size="17" font-weight="600"'),
        text((_LEFT, 52), _subtitle(plan), f'fill="{_MUTED}"'),
    ]
    for tick in _ticks(frame.top, 4):
        if tick <= frame.top * 1.001:
            parts.append(_line(_LEFT, y(tick), _LEFT + wide, y(tick), "#e5e7eb"))
            more = f'text-anchor="end" fill="{_MUTED}"'
            parts.append(text((_LEFT - 8, y(tick) + 4.5), _percent(tick), more))
    for tick in _time_ticks(frame.until_s):
        parts.append(_line(x(tick), _TOP + high, x(tick), _TOP + high + 5, _MUTED))
        label = duration_of_s(tick).replace(".0 ", " ") if tick else "0"
        more = f'text-anchor="middle" fill="{_MUTED}"'
        parts.append(text((x(tick), _TOP + high + 20), label, more))
    parts.append(_line(_LEFT, _TOP + high, _LEFT + wide, _TOP + high, _MUTED))
    middle = f'text-anchor="middle" fill="{_MUTED}"'
    parts.append(text((_LEFT + wide / 2, _HEIGHT - 16), "training between two checkpoints", middle))
    points = [plan.at(frame.until_s * (i / 400) ** 1.5) for i in range(8, 401)]
    for curve in _CURVES:
        # Far above the frame a path would only be cut: leave it out, but let it enter from there.
        shown = [p for p in points if curve.share(p) < 1.5 * frame.top]
        path = " L".join(f"{x(p.interval_s):.1f} {y(curve.share(p)):.1f}" for p in shown)
        stroke = 3 if curve is _BOTH else 2
        parts.append(
            f'<path d="M{path}" fill="none" stroke="{curve.colour}" stroke-width="{stroke}"'
            ' stroke-linejoin="round" clip-path="url(#in)"/>'
        )
    parts += _names(plan, frame, y, text)
    parts += _marks(plan, mark_s, x, y, text)
    return "\n".join([*parts, "</svg>\n"])


def _subtitle(plan: IntervalPlan) -> str:
    costs = plan.costs
    said = f"a save blocks {duration_of_s(costs.blocking_s)}"
    said += f" · a failure every {duration_of_s(costs.mtbf_s)}"
    if costs.upload_s:
        said += f" · durable {duration_of_s(costs.upload_s)} later"
    if costs.recover_s:
        said += f" · recovery {duration_of_s(costs.recover_s)}"
        said += f" ({_percent(plan.waste.recovering)}, whatever the interval)"
    return said


def _line(x0: float, y0: float, x1: float, y1: float, colour: str, more: str = "") -> str:
    return (
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}" {more}/>'
    )


Write = Callable[..., str]
Scale = Callable[[float], float]


def _names(plan: IntervalPlan, frame: Frame, y: Scale, text: Write) -> list[str]:
    """Each curve's name at its right end, far enough apart to be read."""
    last, parts, before = plan.at(frame.until_s), [], -math.inf
    for curve in sorted(_CURVES, key=lambda c: -c.share(last)):
        at = max(y(min(curve.share(last), frame.top)) + 4.5, before + 17)
        weight = "600" if curve is _BOTH else "400"
        more = f'fill="{curve.colour}" font-weight="{weight}"'
        parts.append(text((_WIDTH - _RIGHT + 8, at), curve.name, more))
        before = at
    return parts


def _marks(plan: IntervalPlan, mark_s: float | None, x: Scale, y: Scale, text: Write) -> list[str]:
    """The optimum and, if asked for, another interval."""
    best_x, best_y = x(plan.interval_s), y(plan.waste.of_interval)
    base = _HEIGHT - _BOTTOM
    dashed = 'stroke-dasharray="3 4"'
    bold = 'font-weight="600"'
    least = "the least that uploads allow" if plan.held_up else "the least"
    parts = [
        _line(best_x, best_y - 46, best_x, best_y, _INK),
        _line(best_x, best_y, best_x, base, _INK, dashed),
        f'<circle cx="{best_x:.1f}" cy="{best_y:.1f}" r="5.5" fill="{_INK}"/>',
        text((best_x - 6, best_y - 70), f"every {duration_of_s(plan.interval_s)}", bold),
        text(
            (best_x - 6, best_y - 53), f"{_percent(plan.waste.of_interval)} wasted: {least}", bold
        ),
    ]
    if mark_s is not None and x(mark_s) <= _WIDTH - _RIGHT:
        share = plan.at(mark_s).waste.of_interval
        at_x, at_y = x(mark_s), y(share)
        label_y = min(at_y - 12, best_y - 96)  # above what is said of the optimum
        side = "start" if at_x < _WIDTH / 2 else "end"
        parts += [
            _line(at_x, label_y + 6, at_x, at_y, _INK),
            _line(at_x, at_y, at_x, base, _INK, dashed),
            f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="5.5" fill="#ffffff" stroke="{_INK}"'
            ' stroke-width="2"/>',
            text(
                (at_x + (3 if side == "start" else -3), label_y),
                f"this run: every {duration_of_s(mark_s)}, {_percent(share)}",
                f'text-anchor="{side}"',
            ),
        ]
    return parts
