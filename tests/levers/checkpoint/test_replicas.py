"""What the ranks of a node hold alike is held by one of them, and restored bit by bit."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch

from torchett.levers.checkpoint.staging import fence, live_sum
from torchett.levers.checkpoint.staging.live_sum import sum_of, weighted_sum
from torchett.levers.checkpoint.staging.staging import Copier, stage
from torchett.levers.checkpoint.state.division import owners_of

HERE = Path(__file__).parent


def replicas(scenario: str, folder: Path, size: int) -> str:
    """What replicas.py says of a scenario; it forks the ranks and compares what they find."""
    command = [sys.executable, str(HERE / "replicas.py"), scenario, str(folder), str(size)]
    env = {**os.environ, "ETT_DISABLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.e2e
@pytest.mark.parametrize("size", [2, 4])
def test_ddp_is_copied_once_a_node_and_restored_after_a_kill(tmp_path: Path, size: int) -> None:
    said = replicas("killed", tmp_path, size)
    assert said.count("same, from memory") == size
    assert said.count("same, from durable") == sum({1, 2, 3} - {size})


@pytest.mark.e2e
def test_replicas_that_differ_are_refused_and_stay_each_ranks_own(tmp_path: Path) -> None:
    assert replicas("differ", tmp_path, 2).count("its own") == 2


@pytest.mark.e2e
def test_replicas_that_differ_later_are_refused_too(tmp_path: Path) -> None:
    assert replicas("drift", tmp_path, 2).count("refused") == 2


@pytest.mark.e2e
def test_what_comes_later_is_divided_from_the_next_save_on(tmp_path: Path) -> None:
    assert replicas("grow", tmp_path, 2).count("divided") == 2


@pytest.mark.e2e
def test_a_piece_that_nobody_copied_is_no_checkpoint(tmp_path: Path) -> None:
    assert "whole" in replicas("gone", tmp_path, 2)


def test_ranks_have_about_the_same_to_copy() -> None:
    alike = {f"w{n}": 100 + n for n in range(20)}
    told = {4: alike, 5: {**alike, "own": 500}, 7: alike}
    owners = owners_of(told)
    assert owners.keys() == alike.keys(), "what one rank has is its own"
    loads = {4: 0, 5: 500, 7: 0}
    for name, rank in owners.items():
        loads[rank] += alike[name]
    assert max(loads.values()) - min(loads.values()) < 120
    backwards = {rank: dict([*told[rank].items()][::-1]) for rank in (7, 5, 4)}
    assert owners_of(backwards) == owners


def test_what_differs_between_ranks_is_copied_by_each() -> None:
    told = {0: {"same": 9, "other": 5}, 1: {"same": 9, "another": 5}, 2: {}}
    assert owners_of(told) == {"same": 0}


@pytest.mark.parametrize("sum_up", [sum_of, weighted_sum])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
def test_a_change_of_any_bit_or_place_is_another_sum(
    sum_up: object, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(sum_up)
    torch.manual_seed(3)
    whole = torch.randint(0, 256, (80_004 * dtype.itemsize,), dtype=torch.uint8)
    tensor = whole.view(dtype)
    monkeypatch.setattr(live_sum, "_WORDS", 1024)
    before = int(sum_up(tensor))
    assert int(sum_up(tensor.clone())) == before
    seen = {before}
    for at in (0, 1, 4097, len(whole) - 1):
        for bit in (1, 128):
            whole[at] ^= bit
            seen.add(int(sum_up(tensor)))
            whole[at] ^= bit
    assert len(seen) == 9
    assert int(sum_up(tensor.flip(0).contiguous())) not in seen


def test_what_is_summed_where_it_is_is_of_the_moment_of_the_call() -> None:
    fence.install()
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    tensors = {"owned": model.weight.detach(), "free": torch.randn(300, 300)}
    truth = {key: zlib.crc32(tensor.numpy().tobytes()) for key, tensor in tensors.items()}
    staged = stage([], [], Copier(), tensors)
    tensors["free"].zero_()
    optimizer.step()  # waits for the checksum of the weight
    staged.wait()
    fence.forget()
    assert staged.sums == truth
