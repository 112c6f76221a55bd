"""What was decided after each failure, and why, as a section of the report."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

_MOST = 12


def restart_section(decisions: Sequence[tuple[str, str, str]]) -> list[RenderableType]:
    """The last decisions: which attempt ended, the verdict, why; nothing without any."""
    if not decisions:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("attempt", "then", "because"):
        table.add_column(title, overflow="fold")
    if len(decisions) > _MOST:
        table.add_row("…", f"{len(decisions) - _MOST} before", "")
    for decision in decisions[-_MOST:]:
        table.add_row(*map(Text, decision))
    return [table, Text()]
