"""Absent ranks, by dumps that torch itself writes and reads."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from torchett.failures.flight_recorder import (
    absent_ranks,
    is_dump,
    read_dump,
    stuck_collectives,
)
from torchett.model.errors import InputError

JOB = """
import datetime, os, sys, time
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

rank, folder, absent = int(os.environ["RANK"]), sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
for _ in range(3):
    dist.all_reduce(torch.ones(4))
try:
    if rank == absent:
        time.sleep(4)
    else:
        dist.all_reduce(torch.ones(4))
except RuntimeError:
    pass
with open(f"{folder}/pickled/trace_{rank}", "wb") as file:
    file.write(_dump_fr_trace())
with open(f"{folder}/text/trace_{rank}", "wb") as file:
    file.write(_dump_fr_trace_json())
os._exit(0)
"""


def entries(*sequences: int, group: str = "0") -> list[dict[str, object]]:
    return [
        {
            "collective_seq_id": one,
            "process_group": [group, "x"],
            "profiling_name": "nccl:all_reduce",
        }
        for one in sequences
    ]


def written(folder: Path, rank: int, made: list[dict[str, object]], **groups: list[int]) -> Path:
    config = {name.strip("g"): {"ranks": str(ranks)} for name, ranks in groups.items()}
    path = folder / f"trace_{rank}"
    path.write_text(json.dumps({"version": "2.10", "pg_config": config, "entries": made}))
    return path


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch._C._distributed_c10d")
    folder = tmp_path_factory.mktemp("dumps")
    for name in ("pickled", "text"):
        (folder / name).mkdir()
    (folder / "job.py").write_text(JOB)
    ring = {"TORCH_FR_BUFFER_SIZE": "100", "TORCH_NCCL_TRACE_BUFFER_SIZE": "100"}
    env = {**os.environ, **ring, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    job = [*command, str(folder / "job.py"), str(folder), "2"]
    done = subprocess.run(job, env=env, capture_output=True, text=True)
    last = folder / "text" / "trace_2"
    if not last.exists() or not json.loads(last.read_text())["entries"]:
        pytest.skip(f"this torch writes no dumps: {done.stderr[-300:]}")
    return folder


@pytest.mark.parametrize("form", ["pickled", "text"])
def test_the_absent_rank_is_named_from_dumps_of_torch(dumps: Path, form: str) -> None:
    paths = sorted((dumps / form).iterdir())
    read = [read_dump(path, path.read_bytes()) for path in paths]
    stuck = stuck_collectives(read)
    assert absent_ranks(stuck) == {2}
    assert "all_reduce, number 4 of group 0 (default_pg): ranks 0, 1 wait, absent: 2" in str(
        stuck[0]
    )


def test_torchs_own_reader_names_the_same_rank(dumps: Path, tmp_path: Path) -> None:
    """It finds no group in gloo's dumps, whose only group has an empty name: named, it does."""
    for path in (dumps / "pickled").iterdir():
        content = pickle.loads(path.read_bytes())
        only = content["pg_config"].get("") or content["pg_config"]["0"]
        content["pg_config"] = {"0": {**only, "name": "0", "desc": "default_pg"}}
        (tmp_path / path.name).write_bytes(pickle.dumps(content))
    code = "from torch.distributed.flight_recorder.fr_trace import main; main()"
    command = [sys.executable, "-c", code, str(tmp_path), "-p", "trace_"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "missing ranks: {2}" in done.stdout + done.stderr
    read = [read_dump(path, path.read_bytes()) for path in tmp_path.iterdir()]
    assert absent_ranks(stuck_collectives(read)) == {2}


def test_a_rank_that_waits_elsewhere_did_not_begin_it(tmp_path: Path) -> None:
    """Rank 1 is absent from group 0 because it waits for rank 2 in group 1."""
    made = [
        written(tmp_path, 0, entries(5), g0=[0, 1]),
        written(tmp_path, 1, entries(4) + entries(9, group="1"), g0=[0, 1], g1=[1, 2]),
        written(tmp_path, 2, entries(8, group="1"), g1=[1, 2]),
    ]
    stuck = stuck_collectives(read_dump(path, path.read_bytes()) for path in made)
    assert {one.group: one.absent for one in stuck} == {"0 (x)": {1}, "1 (x)": {2}}
    assert absent_ranks(stuck) == {2}


def test_ranks_without_a_dump_are_absent_where_no_other_is(tmp_path: Path) -> None:
    made = [written(tmp_path, rank, entries(5), g0=[0, 1, 2]) for rank in (0, 1)]
    read = [read_dump(path, path.read_bytes()) for path in made]
    assert absent_ranks(stuck_collectives(read)) == {2}
    assert stuck_collectives(read[:1]) == []


def test_all_in_step_is_nothing(tmp_path: Path) -> None:
    made = [written(tmp_path, rank, entries(5), g0=[0, 1]) for rank in (0, 1)]
    assert stuck_collectives(read_dump(path, path.read_bytes()) for path in made) == []


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/ran",)

    path = tmp_path / "trace_0"
    path.write_bytes(pickle.dumps({"entries": Bad()}))
    assert is_dump(path.read_bytes())
    with pytest.raises(InputError, match=r"trace_0: expected a flight recorder's dump: .*system"):
        read_dump(path, path.read_bytes())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("data", [b"\x80", b"\x80\x04K\x01.", b'{"pg_config": 1, "entries": [3]}'])
def test_damaged_dumps_are_one_line(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match="expected a flight recorder's dump"):
        read_dump(tmp_path / "trace_0", data)


def test_the_name_says_the_rank(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a name that ends with the rank"):
        read_dump(tmp_path / "trace", b'{"pg_config": {}, "entries": []}')
    assert read_dump(tmp_path / "nccl_trace_rank_13", b'{"pg_config":{},"entries":[]}').rank == 13
