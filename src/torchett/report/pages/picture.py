"""A report as a picture: what the terminal shows, as SVG."""

import io

from rich.console import Console, RenderableType


def as_svg(drawn: RenderableType, title: str, width: int = 104) -> str:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(drawn)
    return console.export_svg(title=title)
