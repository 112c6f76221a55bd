"""A node that is lost: who watches whom, and three nodes of which one is a spare."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from three_nodes import TRAIN, ett_run, steps, three_nodes, torchrun, wait_for

from torchett.launch.elastic.membership import Ring


def test_each_node_is_watched_by_the_two_before_it() -> None:
    nodes = {name: rank for rank, name in enumerate("abcde")}
    watchers: dict[str, set[str]] = {name: set() for name in nodes}
    for me in nodes:
        ring = Ring(me)
        ring.members(nodes, 0.0)
        for node in ring.watched():
            watchers[node].add(me)
    assert watchers == {
        "a": {"d", "e"}, "b": {"e", "a"}, "c": {"a", "b"}, "d": {"b", "c"}, "e": {"c", "d"},
    }  # fmt: skip


def test_a_node_that_is_gone_is_no_longer_watched_and_the_lowest_that_is_left_leads() -> None:
    ring = Ring("b")
    ring.members({"a": 0, "b": 1, "c": 2, "d": 3}, 0.0)
    assert not ring.leads(set())
    ring.forget("a")
    ring.forget("c")
    assert ring.watched() == ["d"]
    assert ring.leads({"a", "c"})


def test_silence_counts_from_the_last_new_beat_not_from_the_last_look() -> None:
    ring = Ring("a")
    ring.members({"a": 0, "b": 1}, 0.0)
    assert ring.silent_s("b", b"", 3.0) == 3.0  # has never beaten
    assert ring.silent_s("b", b"1", 4.0) == 0.0
    assert [ring.silent_s("b", b"1", at) for at in (5.0, 7.0)] == [1.0, 3.0]
    assert ring.silent_s("b", b"2", 8.0) == 0.0


@pytest.mark.e2e
@pytest.mark.timeout(150)
def test_a_spare_takes_the_place_of_a_node_that_crashes(tmp_path: Path) -> None:
    """The network is told nothing: the survivor hangs in its collective until it is ended."""
    (tmp_path / "train.py").write_text(TRAIN)
    script = tmp_path / "train.py", str(tmp_path), "160"
    runs = tmp_path / "runs"
    with three_nodes(f"fl{os.getpid() % 100_000}") as nodes:
        if nodes is None:
            pytest.skip("network namespaces cannot be made here")
        for node in range(3):
            if node == 2:  # the one that comes last is the spare
                assert wait_for(lambda: steps(tmp_path), 60)
            command = ett_run(torchrun(nodes, node, "2", *script))
            nodes.start(node, tmp_path, command, ETT_RUNS=str(runs))
        assert wait_for(lambda: len(steps(tmp_path)) > 40, 60)
        nodes.crash(1)
        codes = [nodes.running[node].wait(timeout=60) for node in (0, 2)]
    said = (tmp_path / "log-0").read_text()
    assert codes == [0, 0], said
    assert "has not been heard of for 4 s: the other nodes begin a new rendezvous" in said
    assert (tmp_path / "total").read_text() == str(sum(range(160)))
    env = os.environ | {"ETT_RUNS": str(runs)}
    report = [sys.executable, "-m", "torchett.cli.main", "report", "train-three", "--json"]
    shown = json.loads(subprocess.check_output(report, env=env))
    assert shown["attempts"] == 2
    assert shown["failures"] == {"infra": 1, "scheduler": 0, "user": 0}
    assert shown["last_step"] == 159
    (recovery,) = shown["recovery_stages"]
    assert recovery["stages"]["detect"] < 8  # 4 s, and what a busy machine adds
