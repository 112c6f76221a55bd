"""A plan's run as text: one line for each stage, with the critical path marked.

group    main    ▐██                       0.4 s  ◆
model    thread     ▐████████              2.1 s  ◆
loader   thread  ▐░░░░░░░                  1.9 s
4.4 s of work in 2.5 s: overlapping won 1.9 s (43%)
next: 'model' without waiting for 'group' would win 0.4 s
"""

from typing import TYPE_CHECKING

from torchett.levers.startup.plan.plan_run import PlanRun, StageRun
from torchett.model.accounts import account
from torchett.model.durations import duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_CRITICAL, _HIDDEN, _MARK = "█", "░", "◆"
_SHOWN_NS = 5_000_000  # a smaller gain would be shown as 0.00 s


def draw(run: PlanRun, *, width: int = 48) -> "RenderableType":
    """The run as a Gantt chart with a footer; `width` is the length of the time axis in cells."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("stage", no_wrap=True)
    table.add_column("account", no_wrap=True)
    table.add_column("on", style="dim", no_wrap=True)
    table.add_column(Text(_axis(run, width)), no_wrap=True, min_width=width)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    critical = {one.name for one in run.critical_path}
    for one in run.stages:
        waited_for = one.name in critical
        table.add_row(
            Text(one.name, style="bold" if waited_for else ""),
            Text(one.stage.account, style=account(one.stage.account).colour),
            one.stage.runs,
            _bar(run, one, width, waited_for),
            duration(one.took_ns),
            Text(_MARK if waited_for else "", style="bold"),
        )
    return Group(table, *_footer(run))


def _axis(run: PlanRun, width: int) -> str:
    end = duration(run.wall_ns)
    return "0" + end.rjust(width - 1)


def _bar(run: PlanRun, one: StageRun, width: int, waited_for: bool) -> "Text":
    from rich.text import Text

    def cell(t_ns: int) -> int:
        return round(width * (t_ns - run.t0_ns) / run.wall_ns) if run.wall_ns else 0

    begin = min(cell(one.t0_ns), width - 1)
    end = max(cell(one.t1_ns), begin + 1)  # at least one cell
    mark = _CRITICAL if waited_for else _HIDDEN
    text = Text(" " * begin)
    text.append(mark * (end - begin), style=account(one.stage.account).colour)
    return text


def _footer(run: PlanRun) -> "list[Text]":
    from rich.text import Text

    path = " → ".join(one.name for one in run.critical_path)
    spent = f"{duration(run.serial_ns)} of work in {duration(run.wall_ns)}"
    if run.won_ns >= _SHOWN_NS:
        share = 100 * run.won_ns / run.serial_ns
        spent += f": overlapping won {duration(run.won_ns)} ({share:.0f}%)"
    lines = [Text(f"{_MARK} critical path: {path}"), Text(spent)]
    following = run.next_overlap
    if following is not None and following.won_ns >= _SHOWN_NS:
        lines.append(Text(f"next: {following} would win {duration(following.won_ns)}"))
    else:
        lines.append(Text("next: no single change would shorten the critical path"))
    return lines
