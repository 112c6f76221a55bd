"""Whatever reads the run folders, the rows are equal; a lost worker takes none with it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from torchett.fleet import Fleet
from torchett.fleet.intake.engines import local, on_ray
from torchett.fleet.intake.rollup import roll_up, sources_of
from torchett.fleet.rows import JobRows

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _histories import Long, Wide  # noqa: E402


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    Wide(ranks=4, attempts=2).write_records(folder / "wide")
    for i in range(40):
        Long(steps=50 + i, restarts=i % 3).write_records(folder / f"job{i:02}")
    (folder / "zbroken").mkdir()
    return sorted(folder.iterdir())


def rows(found: Any) -> dict[str, JobRows | str]:
    return {source.job: one for source, one in found}


def test_processes_make_the_same_rows(runs: list[Path]) -> None:
    sources = list(sources_of(runs, "default"))
    here = rows(local(sources, 1))
    assert len(here) == len(runs)
    assert isinstance(here["zbroken"], str)
    assert rows(local(sources, 2)) == here


def children() -> list[str]:
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended
            found += (task / "children").read_text().split()
    return found


def test_a_killed_process_loses_nothing(runs: list[Path]) -> None:
    """A worker is killed as soon as it is there, and one that takes its place a moment later."""
    sources = list(sources_of(runs, "default"))
    over = threading.Event()
    killed: list[int] = []

    def kill_two() -> None:
        """Children that compute (not the one that tracks resources)."""
        while len(killed) < 2 and not over.wait(0.01):
            for pid in map(int, children()):
                with contextlib.suppress(OSError):  # it is gone already
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if pid not in killed and b"multiprocessing-fork" in command:
                        time.sleep(0.1 * len(killed))
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
                        break

    killer = threading.Thread(target=kill_two)
    killer.start()
    try:
        found = rows(local(sources, 2))
    finally:
        over.set()
        killer.join()
    assert killed
    assert found == rows(local(sources, 1))


@pytest.mark.skipif(not os.environ.get("ETT_TEST_RAY"), reason="starts Ray: set ETT_TEST_RAY=1")
def test_ray_makes_the_same_rows(runs: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    sources = list(sources_of(runs, "default"))
    assert rows(on_ray(sources, 2)) == rows(local(sources, 1))
    fleet = Fleet.open(tmp_path / "fleet")
    done = roll_up(fleet, sources, engine="ray", workers=2)
    assert (done.jobs, len(done.errors)) == (len(runs) - 1, 1)


def test_a_worker_that_reads_runs_imports_neither_duckdb_nor_arrow() -> None:
    code = (
        "import sys, torchett.fleet.intake.engines; print({'duckdb', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_asking_a_fleet_imports_no_pandas(runs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    with Fleet.open(folder) as fleet:
        fleet.roll_up(runs[:-1])
    code = (
        "import sys\nfrom torchett.cli.main import main\n"
        "for words in (['ls'], ['show'], ['show', '--by', 'team']):\n"
        f"    main(['fleet', *words, '--fleet', {str(folder)!r}], standalone_mode=False)\n"
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
