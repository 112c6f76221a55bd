"""`ett startup show`: a plan is kept with the rank's record and drawn from there."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from torchett.cli.main import main
from torchett.levers.startup.plan.drawing import draw
from torchett.levers.startup.plan.plan_run import PlanRun, StageRun
from torchett.levers.startup.plan.schedule import Stage

SCRIPT = """
import sys, time
import torchett as ett

plan = ett.Plan()

@plan.stage("process_group_init", runs="main")
def group(): time.sleep(0.2)

@plan.stage("preproc_creation", after=[group])
def loader(): time.sleep(0.3)

@plan.stage("x-tokens")
def tokens(): time.sleep(0.1)

plan.run()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("show")
    (folder / "start.py").write_text(SCRIPT)
    for rank in range(2):
        world = {"RANK": str(rank), "WORLD_SIZE": "2", "ETT_JOB": "shown", "ETT_RUNS": str(folder)}
        env = {k: v for k, v in os.environ.items() if not k.startswith("ETT_")} | world
        subprocess.run([sys.executable, "start.py"], cwd=folder, env=env, check=True)
    return folder / "shown"


def test_it_is_drawn_with_its_critical_path_and_the_next_overlap(run: Path) -> None:
    shown = CliRunner().invoke(main, ["startup", "show", str(run)])
    assert shown.exit_code == 0, shown.output
    assert "critical path: group → loader" in shown.output
    next_overlap = r"next: 'loader' without waiting for 'group' would win [\d.]+ m?s"
    assert re.search(next_overlap, shown.output)
    assert "of 2" in shown.output


def test_a_gain_of_nothing_is_not_shown() -> None:
    """One stage failed at once, and one took hardly longer."""
    alone = Stage(name="loading", account="preproc_creation", runs="main")
    other = Stage(name="group", account="process_group_init", runs="main")
    for stages in ((alone,), (alone, other)):
        runs = [StageRun(stage=one, t0_ns=i * 99, t1_ns=i * 99 + 9) for i, one in enumerate(stages)]
        said = drawn(PlanRun(t0_ns=0, t1_ns=3_000_000, stages=tuple(runs)))
        assert re.search(r"\S+ ms of work in 3 ms\n", said)
        assert "overlapping won" not in said
        assert "would win" not in said


def drawn(plan: PlanRun) -> str:
    console = Console(width=110, file=io.StringIO())
    console.print(draw(plan))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_as_json_with_the_rank_that_was_asked_for(run: Path) -> None:
    shown = CliRunner().invoke(main, ["startup", "show", str(run), "--json", "--rank", "1"])
    found = json.loads(shown.stdout)
    assert (found["attempt"], found["rank"], sorted(found["ranks"])) == (0, 1, ["0", "1"])
    assert found["critical_path"] == ["group", "loader"]
    assert found["next_overlap"]["stage"] == "loader"
    assert [one["name"] for one in found["plan"]["stages"]] == ["group", "loader", "tokens"]
    assert found["wall_s"] == pytest.approx(0.5, abs=0.4)


def test_for_a_rank_without_a_plan_the_error_lists_the_others(run: Path) -> None:
    shown = CliRunner().invoke(main, ["startup", "show", str(run), "--rank", "7"])
    assert shown.exit_code == 2
    assert shown.stderr.splitlines() == [
        f"ett: {run}: no plan of attempt 0, rank 7; there are (attempt/rank) 0/0, 0/1"
    ]
