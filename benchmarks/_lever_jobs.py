"""Jobs to advise on, and what each is when some levers are on: run once each, kept in a folder.

    FOLDER/<round>/<workload>/stock          the job as its user runs it: what advice is made from
                             /standby …      the same with these levers, from the first second on:
                                             the same script, unless they need lines in it
                             /best           with all of them

Advice is for runs from the second on: a short job comes before, which leaves a library of compiled
code and bytecode. The local cache of compiled code is put out of sight, as on a fresh node.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torchett.bench.levers import LEVERS, run_options
from torchett.bench.schedule import SCHEDULES, Schedule
from torchett.bench.side import Finished, Side, drive, recalled, remember
from torchett.bench.workload import Workload

_LIBRARY_STEPS = 40
_IN_SCRIPT = frozenset(lever.name for lever in LEVERS if lever.word)  # need lines in the script


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Some levers: their names in `ett advise`, and what switches them on in a bench."""

    name: str
    advised: frozenset[str]
    levers: frozenset[str]
    options: tuple[str, ...] = ()  # of the script

    @property
    def is_second(self) -> bool:
        """Whether an earlier run leaves something over: code in a library, or bytecode."""
        return not self.levers.isdisjoint(("compile_cache", "standby"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverJob:
    """A workload, what goes wrong in it, and the cells that are worth trying on it."""

    workload: Workload
    schedule: Schedule | None
    cells: tuple[Cell, ...]


def _cell(name: str, advised: str, levers: str, options: tuple[str, ...] = ()) -> Cell:
    return Cell(
        name=name,
        advised=frozenset(advised.split()),
        levers=frozenset(levers.split()),
        options=options,
    )


STANDBY = _cell("standby", "standby", "standby")
LIBRARY = _cell("compile-cache", "compile-cache", "compile_cache")
STARTUP = _cell("startup", "startup-plan warm-up", "plan fast_batch")
SAVES = _cell("saves", "async-saves", "checkpoints")
INTERVAL = _cell("interval", "async-saves interval", "checkpoints interval")
_ALL_NAMES = "standby compile-cache startup-plan warm-up async-saves interval"
_ALL_LEVERS = "standby compile_cache plan fast_batch checkpoints interval"
BEST = _cell("best", _ALL_NAMES, _ALL_LEVERS)
_MORE = ("--num-workers", "4")
WORKERS = _cell("workers", "loader-workers", "", _MORE)
BEST_WITH_WORKERS = _cell("best", f"{_ALL_NAMES} loader-workers", _ALL_LEVERS, _MORE)


def lever_jobs(share: float, *, gpu: bool) -> dict[str, LeverJob]:
    """The jobs by name, each `share` as long as it would be; for a CPU or for one GPU."""
    gpt = Workload(name="gpt", preset="tiny", ranks=2, steps=2500, step_s=0.020, blocking_s=0.0088)
    dlrm, often_s, seldom_s, slow_steps = replace(gpt, name="dlrm", steps=4000), 0.0003, 1.5, 350
    longer = 3000
    if gpu:
        gpt = replace(gpt, ranks=1, steps=4000, step_s=0.004, blocking_s=0.1, on_gpu=True)
        dlrm, often_s, seldom_s, slow_steps = replace(gpt, name="dlrm"), 0.0005, 1.0, 250
        longer = 6000
    late = ("--data-delay", "0.06", "--data-warmup", "6", "--num-workers", "1")
    slow = replace(gpt, steps=slow_steps, options=late)
    frequent = replace(gpt, blocking_s=often_s)  # saves far too often
    failing = replace(gpt, steps=longer, blocking_s=seldom_s)  # too seldom for its failures
    jobs = {
        "gpt": LeverJob(workload=gpt, schedule=None, cells=(STANDBY, LIBRARY, STARTUP, BEST)),
        "dlrm": LeverJob(workload=dlrm, schedule=None, cells=(STANDBY, LIBRARY, STARTUP, BEST)),
        "slow-loader": LeverJob(
            workload=slow,
            schedule=None,
            cells=(WORKERS, LIBRARY, STANDBY, STARTUP, BEST_WITH_WORKERS),
        ),
        "frequent-saves": LeverJob(workload=frequent, schedule=None, cells=(SAVES, BEST)),
        "failing": LeverJob(
            workload=failing,
            schedule=SCHEDULES["mixed"],
            cells=(STANDBY, LIBRARY, INTERVAL, BEST),
        ),
    }
    return {
        name: replace(job, workload=replace(job.workload, steps=round(share * job.workload.steps)))
        for name, job in jobs.items()
    }


class LauncherSide(Side):
    """The script that nobody changed, under `ett run` with these levers of its own."""

    def command(self, workload: Workload, schedule: Schedule | None) -> list[str]:
        stock = Side(name=self.name, levers=None, folder=self.folder)
        words = stock.command(workload, schedule)
        at = words.index("--as-is")
        options = run_options(self.levers or frozenset(), f"{self.folder}/shared",
                              on_gpu=workload.on_gpu)  # fmt: skip
        return [*words[:at], *options, *words[at + 2 :]]


def side_of(folder: Path, cell: Cell | None) -> Side:
    """Where a cell's job lies below its workload's folder; None: the stock one."""
    if cell is None or not cell.levers:
        name = "stock" if cell is None else cell.name
        return Side(name=name, levers=None, folder=folder / name)
    kind = Side if cell.levers & _IN_SCRIPT else LauncherSide
    return kind(name=cell.name, levers=cell.levers, folder=folder / cell.name)


def measured(folder: Path, job: LeverJob, cell: Cell | None) -> Finished | None:
    """The cell's job if it was run before."""
    return recalled(side_of(folder, cell), _with_options(job, cell), job.schedule)


def missing(
    folder: Path, jobs: dict[str, LeverJob], rounds: int
) -> Iterator[tuple[Path, LeverJob, Cell | None]]:
    """What is still to be run, whole rounds first."""
    for turn in range(rounds):
        for name, job in jobs.items():
            place = folder / str(turn) / name
            for cell in (None, *job.cells):
                if measured(place, job, cell) is None:
                    yield place, job, cell


def measure(place: Path, job: LeverJob, cell: Cell | None) -> float:
    """Run one job to its end; the seconds it took."""
    began = time.monotonic()
    side = side_of(place.absolute(), cell)
    side.clear()
    workload = _with_options(job, cell)
    if cell is not None and cell.is_second:
        _run_before(side, workload)
    remember(drive(side, workload, job.schedule), workload, job.schedule)
    return time.monotonic() - began


def _with_options(job: LeverJob, cell: Cell | None) -> Workload:
    options = (*job.workload.options, *(cell.options if cell is not None else ()))
    return replace(job.workload, options=options)


def _run_before(side: Side, workload: Workload) -> None:
    """A short run of the same job, of which the library and bytecode are all that stay."""
    drive(side, replace(workload, steps=_LIBRARY_STEPS), None)
    away = side.folder / "filled-by"
    away.mkdir()
    for name in ("runs", "inductor", "checkpoints"):
        if (side.folder / name).exists():
            os.rename(side.folder / name, away / name)
