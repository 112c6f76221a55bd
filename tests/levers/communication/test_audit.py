"""The audit of real gloo ranks by `ett run --audit`, with an unmodified script."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from torchett.cli.main import main

pytest.importorskip("torch")

SCRIPT = """
import sys, time
import torch, torch.distributed as dist
from torch.distributed import all_gather_object      # a name of its own

dist.init_process_group("gloo")
rank = dist.get_rank()
pair, twin, alone = dist.new_group([0, 1]), dist.new_group([0, 1]), dist.new_group([0])
if rank == 0:
    time.sleep(1.0)
dist.barrier()
for _ in range(10):
    said = [None, None]
    all_gather_object(said, {"rank": rank}, group=pair)        # GATHER
    assert [one["rank"] for one in said] == [0, 1]
dist.all_reduce(torch.ones(1000), group=twin)                  # REDUCE
work = dist.all_reduce(torch.ones(10), async_op=True)          # ASYNC
work.wait()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    dist.all_reduce(torch.ones(1))                             # LATER
try:
    dist.all_reduce("no tensor")
except Exception as error:
    print("raised", type(error).__name__)
dist.destroy_process_group()
"""


def line_of(mark: str) -> int:
    return next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if f"# {mark}" in line)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of the script by two ranks, and its audit as JSON."""
    folder = tmp_path_factory.mktemp("audit")
    (folder / "stock.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torchett.cli.main", "run", "--audit", "--progress", "0"]
    command += ["--job", "audited", "--", "torchrun", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "ETT_RUNS": str(folder / "runs"), "PATH": path}
    done = subprocess.run(
        [*command, "stock.py"], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("raised") == 2
    assert "audit is off" not in done.stderr
    run = folder / "runs" / "audited"
    shown = CliRunner().invoke(main, ["startup", "audit", str(run), "--json"])
    assert shown.exit_code == 0, shown.output
    return run, json.loads(shown.stdout)


def site(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = [site for site in found["sites"] if site["name"] == name]
    return dict(one)


def test_every_call_is_recorded_once_with_the_line(audited: tuple[Path, dict[str, Any]]) -> None:
    found = audited[1]
    gathers = site(found, "all_gather_object")
    assert (gathers["calls"], gathers["ranks"]) == (10, 2)  # what it is made of is not counted
    assert gathers["where"] == f"stock.py:{line_of('GATHER')}"
    assert gathers["bytes"] > 10 * 2 * 20
    assert {s["name"]: s["calls"] for s in found["sites"] if "group" in s["name"]} == {
        "init_process_group": 1,
        "new_group": 3,
    }


def test_waiting_is_split_from_work(audited: tuple[Path, dict[str, Any]]) -> None:
    barrier = site(audited[1], "barrier")
    assert barrier["wait_s"] > 0.3  # rank 1 waits while rank 0 sleeps
    assert barrier["last"] == {"0": 1}
    reduces = [one for one in audited[1]["sites"] if one["name"] == "all_reduce"]
    by_line = {one["where"]: one for one in reduces}
    assert by_line[f"stock.py:{line_of('REDUCE')}"]["bytes"] == 2 * 4000
    assert by_line[f"stock.py:{line_of('ASYNC')}"]["work_s"] == 0
    assert by_line[f"stock.py:{line_of('ASYNC')}"]["unsplit_s"] > 0


def test_it_ends_with_the_first_step(audited: tuple[Path, dict[str, Any]]) -> None:
    assert not any(one["where"].endswith(f":{line_of('LATER')}") for one in audited[1]["sites"])


def test_groups_are_listed_with_members_and_uses(audited: tuple[Path, dict[str, Any]]) -> None:
    groups = audited[1]["groups"]
    assert [one["ranks"] for one in groups] == ["0-1", "0-1", "0-1", "0"]
    assert [one["uses"] > 0 for one in groups] == [True, True, True, False]
    assert {one["uses_until"] for one in groups} == {"end"}


def test_collectives_are_counted_by_torchs_flight_recorder(
    audited: tuple[Path, dict[str, Any]],
) -> None:
    """An object gather is two gathers of tensors."""
    gathers = [one for one in audited[1]["native"] if "gather" in one["operation"]]
    assert sum(one["calls"] for one in gathers) == 2 * 10


def test_the_findings_say_what_to_do(audited: tuple[Path, dict[str, Any]]) -> None:
    kinds = {finding["kind"] for finding in audited[1]["findings"]}
    assert {"too_many", "late", "same_group", "unused_group"} <= kinds
    shown = CliRunner().invoke(main, ["startup", "audit", str(audited[0])])
    assert "10 all_gather_objects at stock.py" in shown.output
    assert "rank 0 was last at barrier" in shown.output


def test_the_time_of_making_groups_is_in_the_ledger(audited: tuple[Path, dict[str, Any]]) -> None:
    shown = CliRunner().invoke(main, ["report", str(audited[0]), "--json"])
    made = [one for one in audited[1]["sites"] if "group" in one["name"]]
    seconds = sum(one["wait_s"] + one["work_s"] for one in made)
    booked = json.loads(shown.stdout)["accounts"]["process_group_init"]
    assert booked == pytest.approx(seconds, rel=0.1, abs=0.02)


def test_a_run_without_an_audit_is_refused_in_one_line(
    audited: tuple[Path, dict[str, Any]],
) -> None:
    for arguments in (["audit", "--attempt", "7"], ["show"]):
        shown = CliRunner().invoke(main, ["startup", *arguments, str(audited[0])])
        assert (shown.exit_code, len(shown.stderr.splitlines())) == (2, 1)
