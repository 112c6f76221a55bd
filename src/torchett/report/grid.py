"""A small table of words and figures, for the terminal and for a page alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.table import Table
from rich.text import Text

_SIGNS = {"+": "green", "-": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Rows under a head; the first column holds names, the others figures."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_rich(self) -> Table:
        """The table; a figure with a sign is green where it is a gain, red where it is a loss."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column(self.head[0], min_width=32)
        for title in self.head[1:]:
            table.add_column(title, justify="right")
        for name, *figures in self.rows:
            table.add_row(name, *(Text(f, style=_SIGNS.get(f[:1], "")) for f in figures))
        return table

    def to_html(self) -> str:
        head = "".join(f"<th>{escape(title)}</th>" for title in self.head)
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self.rows)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
