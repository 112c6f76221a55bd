"""A checkpoint is restored bit by bit, or not at all; never a bad one, never step 0 by mistake."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from trainer import Loader, Training, flip, in_child, uninterrupted

from torchett.levers.checkpoint import Checkpointer, CheckpointError, StateMismatch
from torchett.levers.checkpoint.stored.catalog import entries, latest, verify
from torchett.levers.checkpoint.stored.storage import open_storage


def saved(where: Path, steps: int = 6, every: int = 2, keep: int = 3) -> Training:
    training = Training()
    ckpt = Checkpointer(where, every=every, keep=keep)
    training.run(ckpt, steps, at=lambda step: ckpt.wait() and None)
    ckpt.close()
    assert not ckpt.errors
    return training


def resumed(where: Path) -> tuple[Training, int]:
    training = Training()
    ckpt = Checkpointer(where, every=1000)
    first = ckpt.restore(training.state)
    ckpt.close(final=False)
    return training, first


def test_a_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    def dies() -> None:
        training = Training()
        ckpt = Checkpointer(tmp_path, every=3)

        def at(step: int) -> None:
            ckpt.wait()
            if step == 8:
                os._exit(9)

        training.run(ckpt, 100, at)

    assert in_child(dies) == 9
    training = Training()
    ckpt = Checkpointer(tmp_path, every=3)
    assert training.run(ckpt, 14) == 6
    ckpt.close()
    assert training.digest() == uninterrupted(14).digest()
    assert latest(open_storage(tmp_path)) == "step-00000013"


def test_plain_dcp_reads_what_we_wrote(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    training = saved(tmp_path)
    fresh = Training()
    state = {"model": fresh.model.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path / "step-00000005")
    for name, tensor in training.model.state_dict().items():
        assert torch.equal(state["model"][name], tensor), name


def test_any_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    saved(tmp_path)
    (entry, *_) = entries(open_storage(tmp_path))
    rng = random.Random(0)
    folder = tmp_path / entry.name
    files = [path for path in folder.iterdir() if path.name != "latest"]
    for _ in range(60):
        path = rng.choice(files)
        at, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
        flip(path, at, bit)
        (found, *_) = entries(open_storage(tmp_path))
        assert found.manifest != entry.manifest or verify(found), f"{path.name} at {at}"
        flip(path, at, bit)
    assert verify(entry) == []


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest", "metadata"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_loaded(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path)
    folder = tmp_path / "step-00000005"
    data = folder / "__0_0.distcp"
    if damage == "flip":
        flip(data, data.stat().st_size // 2)
    elif damage == "truncate":
        data.write_bytes(data.read_bytes()[:-1])
    elif damage == "remove":
        data.unlink()
    elif damage == "manifest":
        (folder / "manifest.json").write_bytes(b"{}")
    else:
        flip(folder / ".metadata", 40)
    training, first = resumed(tmp_path)
    assert first == 4
    assert training.tensors()[0].equal(uninterrupted(4).tensors()[0])
    (aside,) = tmp_path.glob("step-00000005.corrupt-*")
    assert json.loads((aside / "quarantined.json").read_text())["problems"]
    assert "step-00000005 is corrupt" in caplog.text


def test_if_none_can_be_loaded_it_raises_rather_than_begin_at_0(tmp_path: Path) -> None:
    saved(tmp_path)
    for path in tmp_path.glob("step-*/__0_0.distcp"):
        flip(path, 100)
    with pytest.raises(CheckpointError, match="none can be loaded"):
        resumed(tmp_path)


def test_no_checkpoint_at_all_is_step_0(tmp_path: Path) -> None:
    assert resumed(tmp_path / "new")[1] == 0


def test_a_checkpoint_of_others_is_left_alone(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"a": torch.ones(2)}, checkpoint_id=tmp_path / "step-00000009")
    with pytest.raises(CheckpointError, match="none can be loaded"):
        resumed(tmp_path)
    assert (tmp_path / "step-00000009" / ".metadata").exists()


def test_a_model_that_does_not_fit_is_told_and_the_checkpoint_stays(tmp_path: Path) -> None:
    saved(tmp_path)
    wider = Training(width=33)
    ckpt = Checkpointer(tmp_path, every=1000)
    with pytest.raises(StateMismatch, match="does not fit this state"):
        ckpt.restore(wider.state)
    ckpt.close(final=False)
    assert (tmp_path / "step-00000005").exists()


def test_a_loader_of_another_number_of_ranks_is_refused_with_what_to_do() -> None:
    from torchett.levers.checkpoint.state.per_rank import pack, unpack

    packed = {f"rank-{rank}": pack(Loader()) for rank in range(4)}
    with pytest.raises(StateMismatch, match="saved by 4 ranks, and this job has 2") as told:
        unpack("loader", Loader(), packed, 0, 2)
    assert "load_state_dicts(states, rank)" in str(told.value)
    assert "skip=['loader']" in str(told.value)

    class Divides(Loader):
        def load_state_dicts(self, states: list[dict[str, int]], rank: int) -> None:
            self.position = sum(state["position"] for state in states) + rank

    divides = Divides()
    unpack("loader", divides, packed, 1, 2)
    assert divides.position == 1


def test_a_second_tier_takes_over_when_the_first_is_lost(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    training = Training()
    ckpt = Checkpointer(near, every=2, keep=1, remote=far, keep_remote=2)
    training.run(ckpt, 6, at=lambda step: ckpt.wait() and None)
    ckpt.close()
    assert ckpt.durable == {"local": 5, "remote": 5}
    assert latest(open_storage(far)) == "step-00000005"
    shutil.rmtree(near)
    fresh = Training()
    again = Checkpointer(near, every=1000, remote=far)
    assert again.restore(fresh.state) == 6
    again.close(final=False)
    assert fresh.digest() == uninterrupted(6).digest()


def test_an_object_store_holds_what_a_folder_does() -> None:
    fsspec = pytest.importorskip("fsspec")
    where = "memory://bucket/job"
    training = Training()
    ckpt = Checkpointer(where, every=2, keep=2)
    training.run(ckpt, 6, at=lambda step: ckpt.wait() and None)
    ckpt.close()
    store = open_storage(where)
    assert [entry.step for entry in entries(store)] == [5, 3]
    fresh = Training()
    again = Checkpointer(where, every=1000)
    assert again.restore(fresh.state) == 6
    again.close(final=False)
    assert fresh.digest() == uninterrupted(6).digest()
    newest = entries(store)[0].name  # without its manifest it is none, and the next start's broom
    fsspec.filesystem("memory").rm_file(f"/bucket/job/{newest}/manifest.json")
    once_more = Checkpointer(where, every=1000)
    assert once_more.restore(Training().state) == 4
    once_more.close(final=False)
    assert len(store.names()) == 1
