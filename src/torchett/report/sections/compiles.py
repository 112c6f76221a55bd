"""The compiles of a job: seconds by cause under pt2_compile and recompile, graphs, caches."""

from collections.abc import Mapping
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torchett.report.words import plural

_TITLES: Final = {
    "dynamo": "tracing",
    "backend": "backend",
    "triton": "kernels",
    "autotune": "autotune",
    "cache_load": "cache load",
}
_MOST_FUNCTIONS = 4


def compile_section(compiles: Mapping[str, Any] | None) -> list[RenderableType]:
    """What `"compile"` of the JSON report says, as a table and a line or two."""
    if not compiles:
        return []
    lines = [Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis")
             for line in _lines(compiles)]  # fmt: skip
    accounts = compiles["accounts"]
    return [_table(accounts) if accounts else Text("compile", style="dim"), *lines, Text()]


def _table(accounts: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("compile", min_width=26, no_wrap=True)
    for title in ("compiles", "rank-seconds", *_TITLES.values()):
        table.add_column(title, justify="right")
    for account, its in accounts.items():
        by_cause = its["by_cause"]
        table.add_row(
            f"  {account}",
            str(its["compiles"]),
            f"{its['seconds']:,.2f}",
            *(f"{by_cause[cause]:,.2f}" if cause in by_cause else "" for cause in _TITLES),
        )
    return table


def _lines(compiles: Mapping[str, Any]) -> list[str]:
    lines = []
    for one in compiles["functions"][:_MOST_FUNCTIONS]:
        why = f": {one['reason']}" if one["reason"] else ""
        times = plural(one["compiles"], "compile")
        lines.append(f"{one['seconds']:,.2f} s in {times} of {one['place']}{why}")
    counts = [
        f"{cache.replace('_', ' ')} {times} {state}"
        for cache, states in compiles["caches"].items()
        for state, times in states.items()
    ]
    if counts:
        lines.append(" · ".join(counts))
    if compiles["background_s"]:
        more = " more" if compiles["accounts"] else ""
        lines.append(f"{compiles['background_s']:,.2f} s{more} were compiled in the background")
    return lines
