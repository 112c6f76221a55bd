"""Lazy groups and joint gathers, on real gloo ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FRESH = "torchett.launch.standby.rank_process"  # ends without a teardown


pytest.importorskip("torch")

RANKS = 3
SCRIPT = """
import json, sys
from datetime import timedelta
import torch, torch.distributed as dist
from torch.distributed import new_group
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d
from torchett.levers.communication.collectives import swapped
import torchett as ett

meeting = f"file://{sys.argv[1]}/store"
dist.init_process_group("gloo", init_method=meeting, rank=int(sys.argv[2]), world_size=3)
rank, out = dist.get_rank(), {}
member = rank < 2
with ett.lazy_groups() as asked:
    strict = dist.new_group([0, 1, 2], use_local_synchronization=True)
    everyone = new_group()
    alone = dist.new_group([2])
    pair, twin = dist.new_group([0, 1]), dist.new_group([1, 0])
    other = dist.new_group([0, 1], group_desc="for DDP", timeout=timedelta(seconds=99))
    third = dist.new_group([0, 1], backend="gloo", timeout=timedelta(seconds=98))
    unused = dist.new_group([0, 2])
out["at once"] = asked.at_once
out["member"] = [group != dist.GroupMember.NON_GROUP_MEMBER for group in (pair, alone, unused)]
out["twin is pair"] = twin is pair
out["made before use"] = asked.made
if member:
    out["known"] = [
        dist.get_rank(pair), dist.get_world_size(pair), dist.get_process_group_ranks(pair),
        dist.get_backend(pair), distributed_c10d._get_process_group_name(pair) == pair.group_name,
    ]
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x, group=pair)
    out["reduced"] = x.tolist()
    said = [None, None]
    dist.all_gather_object(said, rank, group=pair)
    out["gathered"] = said
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), process_group=other)
    model(torch.full((1, 2), float(rank))).sum().backward()
    out["ddp"] = [p.grad.flatten().tolist() for p in model.parameters()]
    out["weights"] = model.module.weight.flatten().tolist()
    out["functional"] = functional.all_reduce(torch.ones(2), "sum", third).tolist()
dist.barrier()                      # outside: as ever, and by all ranks
later = dist.new_group([0, 1])
out["later is real"] = not hasattr(later, "lazy")
everyone.barrier().wait()
out["made"] = asked.made
if member:
    try:
        if rank == 0:
            dist.send(torch.ones(1), 2, group=unused)
            out["send"] = "sent"
    except RuntimeError as error:
        out["send"] = str(error)

counted = 0
def count(name, function):
    def call(*args, **kwargs):
        global counted
        counted += name == "all_gather_object"
        return function(*args, **kwargs)
    call.__name__ = name
    return call
restore = swapped(count, "audit")
out["together"] = ett.gather_objects_together(rank, {"square": rank * rank})
out["gathers"] = counted
try:
    ett.gather_objects_together(*range(rank))
except ValueError as error:
    out["uneven"] = str(error)
restore()
dist.destroy_process_group()
out["nothing to send"] = ett.gather_objects_together(1, 2)
open(f"{sys.argv[1]}/{rank}.json", "w").write(json.dumps(out))
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("groups")
    (folder / "groups.py").write_text(SCRIPT)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", FRESH, "groups.py", str(folder), str(rank)],
            cwd=folder,
            env={**os.environ, "ETT_DISABLE": "1", "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [one.communicate(timeout=60)[1] for one in running]
    finally:
        for one in running:
            one.kill()
    assert [one.returncode for one in running] == [0] * RANKS, "\n".join(s[-1500:] for s in said)
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]


def test_nothing_is_made_before_it_is_used(ranks: list[dict[str, Any]]) -> None:
    assert [one["made before use"] for one in ranks] == [0, 0, 0]
    assert [one["at once"] for one in ranks] == [1, 1, 1]  # it synchronises locally
    # used: everyone, pair, the one for DDP, the functional one; never: alone, unused
    assert [one["made"] for one in ranks] == [4, 4, 1]


def test_a_group_is_known_before_it_is_made(ranks: list[dict[str, Any]]) -> None:
    assert [one["member"] for one in ranks] == [
        [True, False, True], [True, False, False], [False, True, True],
    ]  # fmt: skip
    assert [one["known"] for one in ranks[:2]] == [[r, 2, [0, 1], "gloo", True] for r in (0, 1)]


def test_equal_requests_share_a_group(ranks: list[dict[str, Any]]) -> None:
    assert all(one["twin is pair"] for one in ranks)


def test_its_first_use_makes_it_from_python_and_from_c(ranks: list[dict[str, Any]]) -> None:
    for one in ranks[:2]:
        assert one["reduced"] == [3.0, 3.0, 3.0]
        assert one["gathered"] == [0, 1]
        assert one["ddp"] == [[0.5, 0.5, 0.5, 0.5], [1.0, 1.0]]  # the mean over both ranks
        assert one["functional"] == [2.0, 2.0]
    assert ranks[0]["weights"] == ranks[1]["weights"]


def test_a_first_send_is_refused_because_it_could_only_hang(ranks: list[dict[str, Any]]) -> None:
    assert "the first use of the group of ranks [0, 2] is send" in ranks[0]["send"]


def test_outside_the_body_nothing_changes(ranks: list[dict[str, Any]]) -> None:
    assert all(one["later is real"] for one in ranks)


def test_objects_are_gathered_together(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert one["together"] == [[0, 1, 2], [{"square": 0}, {"square": 1}, {"square": 4}]]
        assert one["gathers"] == 1
        assert one["uneven"] == "ranks gave different numbers of objects: [0, 1, 2], by rank"
        assert one["nothing to send"] == [[1], [2]]
