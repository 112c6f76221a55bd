"""The recovery waterfall: each recovery's stages in order of time, beside the one before it.

recovery of attempt 1      7.4 s      before
  detect           0.3 s   ▌           0.3 s
  stop             0.2 s   ▎           0.2 s
  imports          4.1 s    ████████   1.9 s   slowest
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torchett.ledger.rules.recovery_stages import Recovery
from torchett.model.accounts import GROUP_COLOURS
from torchett.model.durations import duration
from torchett.report.words import size

_CELLS = 32
_TITLES = {"failed_starts": "failed starts", "set_up": "set up"}
Restored = Mapping[int, Mapping[str, Any]]  # attempt → what its restore read


def recoveries_json(found: Sequence[Recovery], restored: Restored) -> list[dict[str, Any]]:
    """Every recovery with its stages, the one before beside it; the first start is only beside."""
    shown = []
    for before, one in pairwise(found):
        fact = one.to_json(before)
        if read := _read(one, restored):
            fact["restore"] = read
        shown.append(fact)
    return shown


def recovery_section(found: Sequence[Recovery], restored: Restored) -> list[RenderableType]:
    """The waterfall of the longest recovery, and of the last if that is another."""
    if len(found) < 2:
        return []
    longest = max(range(1, len(found)), key=lambda i: found[i].total_ns)
    shown = dict.fromkeys((longest, len(found) - 1))
    return [
        part for i in sorted(shown) for part in (_table(found[i], found[i - 1], restored), Text())
    ]


def _table(one: Recovery, before: Recovery, restored: Restored) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(f"recovery in attempt {one.resumed}", min_width=26)
    table.add_column(duration(one.total_ns), justify="right", no_wrap=True)
    table.add_column("", width=_CELLS, no_wrap=True)
    beside = "first start" if before.failed is None else f"attempt {before.resumed}"
    table.add_column(beside, justify="right", no_wrap=True)
    table.add_column("")
    begin = 0
    for stage, ns in one.stages.items():
        known = before.stages.get(stage)
        said = ["slowest"] if stage == one.slowest else []
        if stage == "restore" and (read := _read(one, restored)):
            said.append(_said(read))
        table.add_row(
            Text(f"  {_TITLES.get(stage, stage)}", style="dim"),
            duration(ns),
            _bar(begin, ns, one.total_ns),
            "" if known is None else duration(known),
            Text(" · ".join(said), style="dim"),
        )
        begin += ns
    last = duration(one.first_step_ns), "", duration(before.first_step_ns)
    table.add_row(Text("  first step", style="dim"), *last, Text("after it", style="dim"))
    return table


def _bar(begin: int, ns: int, total: int) -> Text:
    """The stage's part of the recovery, where it lies in it."""
    first = round(_CELLS * begin / total) if total else 0
    cells = max(round(_CELLS * (begin + ns) / total) - first, 1) if total else 0
    first = min(first, _CELLS - cells)
    return Text(" " * first + "█" * cells, style=GROUP_COLOURS["recover"])


def _read(one: Recovery, restored: Restored) -> dict[str, Any]:
    """What was restored: bytes, how fast, from where."""
    known = dict(restored.get(one.resumed, {}))
    took_ns = one.stages.get("restore", 0)
    if known.get("bytes") and took_ns:
        known["gb_per_s"] = known["bytes"] / took_ns
    return known


def _said(read: Mapping[str, Any]) -> str:
    parts = [size(read["bytes"])] if "bytes" in read else []
    parts += [f"{read['gb_per_s']:.2f} GB/s"] if "gb_per_s" in read else []
    parts += [f"from {read['tier']}"] if "tier" in read else []
    return ", ".join(parts)
