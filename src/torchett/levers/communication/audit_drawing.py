"""A job's start-up communication as text: a line for each call site, then the findings.

collective         calls  a rank  waiting     work   bytes  at
all_gather_object     64  0.92 s   0.10 s   0.82 s  1.2 MB  torchrec/distributed/embedding.py:1070
"""

from collections import Counter
from typing import TYPE_CHECKING

from torchett.levers.communication.communication import Communication, Site
from torchett.model.durations import duration

if TYPE_CHECKING:
    from rich.console import RenderableType


def draw_communication(found: Communication, *, sites: int = 20) -> "RenderableType":
    """The most expensive call sites as a table, the groups in a line, and the findings."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("collective", "calls", "a rank", "waiting", "work", "bytes", "at"):
        left = heading in ("collective", "at")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for site in found.sites[:sites]:
        table.add_row(*_cells(site))
    lines: list[RenderableType] = [table]
    if len(found.sites) > sites:
        lines.append(Text(f"and {len(found.sites) - sites} more call sites (--json)", style="dim"))
    ranks = max(len(found.ranks), 1)
    total = sum(site.total_ns for site in found.sites) // ranks
    waiting = sum(site.wait_ns for site in found.sites) // ranks
    calls, groups = sum(site.calls for site in found.sites), len(found.groups)
    lines.append(
        Text(
            f"attempt {found.attempt}, {ranks} ranks: {calls} calls, {duration(total)} per rank,"
            f" {duration(waiting)} of it waiting for peers; {groups} group{'s' * (groups != 1)}"
        )
    )
    if found.native:
        lines.append(Text(_native(found), style="dim"))
    lines += [Text(f"• {finding.text}", style="bold") for finding in found.findings]
    if not found.findings:
        lines.append(Text("• nothing to improve was found"))
    return Group(*lines)


def _native(found: Communication) -> str:
    """The counts of torch's flight recorder, with C++: "gloo:broadcast 12, …"."""
    counts = Counter[str]()
    for _, operation, calls, _ in found.native:
        counts[operation] += calls
    listed = ", ".join(f"{operation} {calls}" for operation, calls in counts.most_common())
    return f"sent before the first step, with C++ and the parts of object collectives: {listed}"


def _cells(site: Site) -> tuple[str, ...]:
    ranks = max(site.ranks, 1)
    where = site.where if site.where == site.user else f"{site.where} ← {site.user}"
    split = site.wait_ns or site.work_ns
    return (
        site.name,
        str(site.calls),
        duration(site.per_rank_ns),
        duration(site.wait_ns // ranks) if split else "–",
        duration(site.work_ns // ranks) if split else "–",
        _bytes(site.bytes // ranks),
        where,
    )


def _bytes(size: int) -> str:
    if not size:
        return "–"
    value = float(size)
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
