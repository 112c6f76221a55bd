"""How accounts look in a terminal: a colour each, and a mark a group where there is no colour."""

from collections.abc import Iterable
from typing import Final

from rich.text import Text

from torchett.ledger.pixels import Box
from torchett.model.accounts import GROUP_COLOURS, GROUPS, Kind, account

MARKS: Final[dict[Kind, str]] = {
    "effective": "█",
    "start": "▒",
    "recover": "╳",
    "in_loop": "░",
    "shutdown": "▂",
    "unsaved": "▚",
    "unattributed": "?",
}
TITLES: Final[dict[Kind, str]] = {
    "effective": "effective",
    "start": "start",
    "recover": "recover",
    "in_loop": "in the loop",
    "shutdown": "shutdown",
    "unsaved": "unsaved",
    "unattributed": "unattributed",
}


def bar(ns: int, whole_ns: int, width: int, group: Kind, colour: str | None = None) -> Text:
    """A bar of ns out of whole; anything at all shows at least a sliver."""
    eighths = round(8 * width * ns / whole_ns) if whole_ns else 0
    text = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return Text(text or ("▏" if ns else ""), style=colour or GROUP_COLOURS[group])


def stacked(groups: dict[str, int], width: int) -> Text:
    """All groups in one bar, in the order of the chart."""
    whole = sum(groups.values())
    text, used, upto = Text(), 0, 0
    for group in GROUPS:
        upto += groups[group]
        cells = round(width * upto / whole) - used if whole else 0
        text.append(MARKS[group] * cells, style=GROUP_COLOURS[group])
        used += cells
    return text


def cells(boxes: Iterable[Box]) -> Text:
    """A strip: one mark a cell, by its group, in its account's colour."""
    text = Text()
    for box in boxes:
        text.append(MARKS[box.group] * (box.end - box.begin), style=account(box.account).colour)
    return text


def legend() -> Text:
    text = Text()
    for group in GROUPS:
        text.append(f"{MARKS[group]} ", style=GROUP_COLOURS[group])
        text.append(f"{TITLES[group]}   ", style="dim")
    return text
