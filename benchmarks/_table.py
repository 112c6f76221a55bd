"""What the benchmarks share: fresh processes to measure in, sheets to show, bars to hold against.

A case runs in a child of its own (`fresh`), so that nothing another case imported, cached or
allocated helps or hurts it. What comes back are plain numbers; a `Sheet` shows them as a table,
and `--json` prints them as they are.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Case = Callable[..., dict[str, Any]]
Row = dict[str, Any]
NOT_INSTALLED = "not installed"


def options(doc: str, **more: Any) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, **more
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="a run of seconds, less exact")
    return parser


# Fresh processes -----------------------------------------------------------------------------


def fresh(case: Case, **args: Any) -> Row:
    """What `case(**args)` of the running script returns, called in a process of its own."""
    script = sys.modules["__main__"].__file__
    assert script is not None
    command = [sys.executable, script, "--child", case.__name__, json.dumps(args)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if not lines or done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return {"error": f"ended with {done.returncode}"}
    found: Row = json.loads(lines[-1])
    return found


def serve(cases: Iterable[Case]) -> None:
    """In a process that `fresh` made: run the case and exit. Else: do nothing."""
    if sys.argv[1:2] != ["--child"]:
        return
    case = {case.__name__: case for case in cases}[sys.argv[2]]
    try:
        found = case(**json.loads(sys.argv[3]))
    except ModuleNotFoundError as error:
        found = {"error": NOT_INSTALLED, "missing": error.name}
    print(json.dumps(found), flush=True)
    raise SystemExit(0)


def peak_bytes() -> int:
    """The most memory this process has held.

    VmHWM, not ru_maxrss: the latter of a fresh process begins with what its parent held.
    """
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def gpu_name() -> str:
    """The GPU of this machine, asked for by a process of its own; empty if there is none."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout.strip()


def medians(rounds: Sequence[Row]) -> Row:
    """One row from several rounds of it: the median of every number."""
    merged = dict(rounds[0])
    for key, value in merged.items():
        if type(value) in (int, float):
            merged[key] = statistics.median([row[key] for row in rounds if key in row])
    return merged


# What is shown ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """A key of the rows, its heading, and how its values are shown."""

    key: str
    heading: str
    show: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class Sheet:
    """Rows of one table."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    note: str = ""

    def table(self) -> Table:
        table = Table(title=self.title, title_justify="left", caption=self.note or None)
        table.caption_justify = "left"
        for column in self.columns:
            table.add_column(column.heading, justify="left" if column.show is str else "right")
        for row in self.rows:
            table.add_row(*(_cell(column, row) for column in self.columns))
        return table


def _cell(column: Column, row: Row) -> str:
    value = row.get(column.key)
    if value is None:
        return str(row["error"]) if "error" in row and column.key == "cpu" else "–"
    return column.show(value)


@dataclass(frozen=True, slots=True)
class Bar:
    """What was promised, and what came out; `met` is None if nothing was, or a peer is missing."""

    what: str
    promised: str
    measured: str
    met: bool | None


@dataclass(slots=True)
class Report:
    """A benchmark's result."""

    name: str
    sheets: list[Sheet] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def show(self, as_json: bool) -> None:
        facts = {**machine(), **self.facts}
        if as_json:
            print(json.dumps(self._object(facts)))
            return
        # A table cut to the width of a pipe is of no use to anyone.
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(f"[bold]{self.name}[/]: " + " · ".join(f"{v}" for v in facts.values()))
        for sheet in self.sheets:
            console.print(sheet.table())
        table = Table(title="bars", title_justify="left")
        for heading in ("what", "promised", "measured", "met"):
            table.add_column(heading)
        for bar in self.bars:
            met = {True: "[green]yes[/]", False: "[red]NO[/]", None: "–"}[bar.met]
            table.add_row(bar.what, bar.promised, bar.measured, met)
        console.print(table)

    def _object(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "benchmark": self.name,
            "machine": facts,
            "tables": {sheet.title: list(sheet.rows) for sheet in self.sheets},
            "bars": [
                {"what": b.what, "promised": b.promised, "measured": b.measured, "met": b.met}
                for b in self.bars
            ],
        }


def machine() -> dict[str, Any]:
    """Where and when: figures mean little without it."""
    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": f"{os.cpu_count()} × {cpu[1] if cpu else platform.machine()}",
        "load": f"load {os.getloadavg()[0]:.1f}",
        "python": f"Python {platform.python_version()}",
    }


def bar(what: str, promised: str, value: float | None, met: bool | None, unit: str) -> Bar:
    """A bar on one number; None: it was not measured."""
    if value is None:
        return Bar(what, promised, "–", None)
    return Bar(what, promised, f"{value:.3g} {unit}", met)
