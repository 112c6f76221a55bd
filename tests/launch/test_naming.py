"""Which run a launch belongs to, told from the logs of the runs that are there."""

from pathlib import Path
from typing import Any

import pytest

from torchett.launch.naming import Choice, choose_run, series_facts
from torchett.record.attempt_log import AttemptLog, append_fact, attempts_path
from torchett.record.clock import anchor


def wrote(
    runs: Path,
    folder: str,
    *outcomes: str | None,
    asked: str = "gpt",
    node: int = 0,
    nodes: int = 1,
    env: dict[str, str] | None = None,
) -> AttemptLog:
    """What a node's launcher leaves after attempts that ended so (None: it has not ended)."""
    facts = series_facts(asked, env or {}, nodes)
    log = AttemptLog(runs / folder, job=folder, node=node, anchor=anchor(), **facts)
    for number, outcome in enumerate(outcomes):
        log.append({"event": "start", "attempt": number, "t_ns": number})
        if outcome is not None:
            end = {"event": "end", "attempt": number, "t_ns": number, "outcome": outcome}
            log.append(end)
    return log


def chosen(runs: Path, asked: str = "gpt", **how: Any) -> str:
    how = {"env": {}, "node": 0, "resume": False, "named": True} | how
    return choose_run(runs, asked, **how).name


def test_a_name_that_is_new_is_taken(tmp_path: Path) -> None:
    assert chosen(tmp_path) == "gpt"
    assert chosen(tmp_path, "a/b") == "a%2Fb"


@pytest.mark.parametrize("outcome", ["failed", "preempted", None])
def test_what_has_not_ended_well_goes_on(outcome: str | None, tmp_path: Path) -> None:
    wrote(tmp_path, "gpt", "success", outcome)
    assert chosen(tmp_path) == "gpt"


def test_what_ended_well_is_followed_by_a_new_run(tmp_path: Path) -> None:
    wrote(tmp_path, "gpt", "failed", "success")
    how: dict[str, Any] = {"env": {}, "node": 0, "resume": False, "named": True}
    assert choose_run(tmp_path, "gpt", **how) == Choice(name="gpt-2", ended_well="gpt")
    wrote(tmp_path, "gpt-2", "success")
    assert choose_run(tmp_path, "gpt", **how) == Choice(name="gpt-3", ended_well="gpt-2")
    wrote(tmp_path, "gpt-3", "failed")
    assert chosen(tmp_path) == "gpt-3"
    assert chosen(tmp_path, resume=True) == "gpt"


def test_each_replica_group_has_a_run_of_its_own(tmp_path: Path) -> None:
    env = {"REPLICA_GROUP_ID": "1"}
    assert chosen(tmp_path, env=env) == "gpt.group-1"
    assert chosen(tmp_path, env=env | {"ETT_GROUP": "a/b"}) == "gpt.group-a%2Fb"
    wrote(tmp_path, "gpt.group-1", "success")
    assert chosen(tmp_path, env=env) == "gpt-2.group-1"
    assert chosen(tmp_path, env=env, resume=True) == "gpt.group-1"
    assert chosen(tmp_path, env={"REPLICA_GROUP_ID": "0"}) == "gpt.group-0"
    assert chosen(tmp_path) == "gpt"


def test_the_end_of_an_agents_restart_is_not_the_jobs(tmp_path: Path) -> None:
    wrote(tmp_path, "gpt", None)
    end = {"event": "end", "attempt": 0, "restart": 0, "t_ns": 1, "outcome": "success"}
    append_fact(attempts_path(tmp_path / "gpt"), end)
    assert chosen(tmp_path) == "gpt"


def test_a_run_that_was_given_such_a_name_is_not_touched(tmp_path: Path) -> None:
    """gpt-2 is a job of its own: two names never share a run."""
    wrote(tmp_path, "gpt", "success")
    wrote(tmp_path, "gpt-2", "failed", asked="gpt-2")
    (tmp_path / "gpt-3" / "attempt-0").mkdir(parents=True)  # recorded by a script of that name
    assert chosen(tmp_path) == "gpt-4"
    assert chosen(tmp_path, "gpt-2") == "gpt-2"


def test_a_log_that_is_cut_off_or_damaged_goes_on(tmp_path: Path) -> None:
    wrote(tmp_path, "gpt", "success")
    log = attempts_path(tmp_path / "gpt")
    log.write_bytes(log.read_bytes()[:-5] + b"\n[]\n3\n\xff\n")
    assert chosen(tmp_path) == "gpt"


def test_all_nodes_choose_the_same_whoever_comes_first(tmp_path: Path) -> None:
    for node in (0, 1):
        wrote(tmp_path, "gpt", "success", node=node, nodes=2)
    assert [chosen(tmp_path, node=node) for node in (1, 0)] == ["gpt-2", "gpt-2"]
    wrote(tmp_path, "gpt-2", None, nodes=2)  # node 0 has begun
    assert chosen(tmp_path, node=1) == "gpt-2"


def test_a_node_that_comes_late_joins_the_run_it_belongs_to(tmp_path: Path) -> None:
    wrote(tmp_path, "gpt", "success", nodes=2)
    assert chosen(tmp_path, node=1) == "gpt"
    wrote(tmp_path, "gpt", "success", node=1, nodes=2)
    assert chosen(tmp_path, node=1) == "gpt-2"


def test_a_job_of_more_nodes_than_the_last_one_is_new_on_all_of_them(tmp_path: Path) -> None:
    wrote(tmp_path, "gpt", "success", nodes=1)
    assert [chosen(tmp_path, node=node) for node in (0, 1)] == ["gpt-2", "gpt-2"]


def test_a_node_without_a_shared_folder_goes_by_its_own_log(tmp_path: Path) -> None:
    wrote(tmp_path, "gpt", "success", node=1, nodes=2)
    assert chosen(tmp_path, node=1) == "gpt-2"


SLURM = {"SLURM_JOB_ID": "77"}


def test_a_job_that_slurm_requeued_goes_on(tmp_path: Path) -> None:
    """It may have saved at a warning, asked to be requeued, and left with status 0."""
    wrote(tmp_path, "gpt", "success", env=SLURM)
    again = SLURM | {"SLURM_RESTART_COUNT": "1"}
    assert [chosen(tmp_path, env=again, node=node) for node in (0, 1)] == ["gpt", "gpt"]
    assert chosen(tmp_path, env=SLURM) == "gpt-2"
    assert chosen(tmp_path, env=again | {"SLURM_JOB_ID": "78"}) == "gpt-2"


def test_two_jobs_of_one_script_are_both_gone_on_with_after_a_requeue(tmp_path: Path) -> None:
    wrote(tmp_path, "gpt", "success", env=SLURM)
    wrote(tmp_path, "gpt-2", "preempted", env=SLURM)
    again = SLURM | {"SLURM_RESTART_COUNT": "1"}
    assert chosen(tmp_path, env=again) == "gpt"
    wrote(tmp_path, "gpt", "success", env=again)
    assert chosen(tmp_path, env=again) == "gpt-2"


def test_two_unnamed_jobs_at_once_are_two_jobs(tmp_path: Path) -> None:
    """As from the shell of one allocation; a name that was given twice is a mistake instead."""
    running = wrote(tmp_path, "gpt", None)
    assert chosen(tmp_path, named=False) == "gpt-2"
    assert chosen(tmp_path, named=True) == "gpt"
    del running
