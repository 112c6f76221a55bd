"""The levers that would win most on a job: the last lines of its report."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """One lever: what it would win here, with the interval that holds 80%, and how."""

    title: str
    seconds: float  # rank-seconds
    points: float  # of ETT%
    between: tuple[float, float]  # the interval, in points
    reason: str
    change: str  # a command, or three lines of code

    @property
    def gain(self) -> str:
        low, high = self.between
        return f"{self.points:+.1f} points ({low:+.1f} … {high:+.1f})"


def next_section(steps: Sequence[NextStep]) -> list[RenderableType]:
    """The levers, each with what it would win and how; nothing if there are none."""
    if not steps:
        return []
    lines = [Text("what would win most here", style="dim")]
    for step in steps:
        line = Text(f"  {step.title}  ")
        line.append(step.gain, style="bold")
        line.append(f"  {step.reason}", style="dim")
        lines.append(line)
        lines += [Text(f"      {line}", style="cyan") for line in step.change.splitlines()]
    return [*lines, Text()]
