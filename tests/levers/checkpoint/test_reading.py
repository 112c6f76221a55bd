"""A checkpoint is read without training, and goes to and from the files of other tools."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from test_ranks import HERE
from torch import nn
from trainer import Training, flip

from torchett.cli.main import main
from torchett.levers.checkpoint import Checkpointer, CheckpointError, CorruptCheckpoint
from torchett.levers.checkpoint.stored.catalog import entries
from torchett.levers.checkpoint.stored.storage import open_storage
from torchett.levers.checkpoint.stored.tensors import stored_tensors


@pytest.fixture
def where(tmp_path: Path) -> Path:
    training = Training()
    ckpt = Checkpointer(tmp_path / "c", every=2, keep=5)
    training.run(ckpt, 4, at=lambda step: ckpt.wait() and None)
    ckpt.close()
    return tmp_path / "c"


def trained(steps: int = 4) -> Training:
    training = Training()
    for _ in range(steps):
        training.step()
    return training


def ett(*args: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["checkpoint", *map(str, args)])
    assert done.exit_code == code, done.output
    return done.output


def refused(*args: object) -> str:
    """The one line that is said of bad input."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ett")), "checkpoint", *map(str, args)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_all_or_a_part_is_read_without_a_model(where: Path) -> None:
    before = sorted(path.name for path in where.rglob("*"))
    truth = trained()
    state = Checkpointer.load(where)
    same(state["model"], truth.model.state_dict())
    assert state["scheduler"]["last_epoch"] == 4
    assert "rng" not in state  # each rank's own
    weight = state["optimizer"]["state"]["model.0.weight"]["exp_avg"]
    assert weight.equal(truth.optimizer.state[truth.model[0].weight]["exp_avg"])
    part = Checkpointer.load(where / "step-00000001", ["model.0", "model.*.bias"], dtype=torch.half)
    assert set(part["model"]) == {"0.weight", "0.bias", "1.bias", "3.bias"}
    assert part["model"]["0.weight"].dtype == torch.half
    same(
        {n: t.half() for n, t in trained(2).model.state_dict().items() if n in part["model"]},
        part["model"],
    )
    assert Checkpointer.load(where, "loader")["loader"]["rank-0"] == {"position": 4}
    assert Checkpointer.load(where, "model", device="meta")["model"]["0.weight"].is_meta
    assert sorted(path.name for path in where.rglob("*")) == before


def test_what_is_not_there_or_damaged_is_said(where: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no 'models': it holds loader, model, optimizer"):
        Checkpointer.load(where, "models")
    with pytest.raises(CheckpointError, match="has no checkpoints"):
        Checkpointer.load(tmp_path)
    flip(where / "step-00000003" / "__0_0.distcp", 1000)
    same(Checkpointer.load(where)["model"], trained(2).model.state_dict())  # the one before
    assert (where / "step-00000003").exists()
    with pytest.raises(CorruptCheckpoint, match="CRC"):
        Checkpointer.load(where / "step-00000003")


@pytest.mark.e2e
def test_what_several_ranks_wrote_is_read_by_one_process(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "shardings.py"), str(tmp_path), "fsdp2_tp:4:4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    where = tmp_path / "fsdp2_tp-4"
    truth = torch.load(where / "truth-0", weights_only=False)["whole"]
    state = Checkpointer.load(where / "checkpoints")
    same({f"model.{n}": t for n, t in state["model"].items()},
         {n: t for n, t in truth.items() if n.startswith("model.")})  # fmt: skip
    names = [name for name in truth if name.startswith("optimizer") and name.count(" ") == 2]
    for name in names:
        _, parameter, part = name.split()
        assert torch.equal(state["optimizer"]["state"][parameter][part], truth[name])
    # torch's own DCP reads it as well, in a process without ranks:
    fresh = {"model": {n: torch.empty_like(t) for n, t in state["model"].items()}}
    dcp.load(fresh, checkpoint_id=where / "checkpoints" / "step-00000002", no_dist=True)
    same(fresh["model"], state["model"])


def test_an_export_to_safetensors_has_the_models_names(where: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    file = tmp_path / "model.safetensors"
    assert f"{len(trained().model.state_dict())} tensors" in ett("export", where, file)
    same(safetensors.load_file(file), trained().model.state_dict())
    ett("export", where, file, "--dtype", "bfloat16")
    assert safetensors.load_file(file)["0.weight"].dtype == torch.bfloat16
    assert not list(tmp_path.glob(".*"))


def test_an_export_to_one_torch_file_has_all(where: Path, tmp_path: Path) -> None:
    file = tmp_path / "state.pt"
    ett("export", where, file)
    state = torch.load(file, weights_only=True)
    same(state["model"], trained().model.state_dict())
    ett("export", where, file, "--key", "model")
    same(torch.load(file, weights_only=True), trained().model.state_dict())


def resumes(where: Path, model: nn.Module, step: int) -> None:
    ckpt = Checkpointer(where, every=1000)
    assert ckpt.restore({"model": model}) == step + 1
    ckpt.close(final=False)
    same(model.state_dict(), trained().model.state_dict())


def test_what_torch_save_wrote_is_imported(tmp_path: Path) -> None:
    training = trained()
    torch.save(training.model.state_dict(), tmp_path / "model.pt")
    ett("import", tmp_path / "model.pt", tmp_path / "a", "--step", "7")
    resumes(tmp_path / "a", Training().model, 7)
    parts = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
    torch.save({**parts, "epoch": 3}, tmp_path / "all.pt")
    ett("import", tmp_path / "all.pt", tmp_path / "b")
    fresh = Training()
    state: dict[str, Any] = {"model": fresh.model, "optimizer": fresh.optimizer, "epoch": 0}
    ckpt = Checkpointer(tmp_path / "b", every=1000)
    assert ckpt.restore(state) == 1
    ckpt.close(final=False)
    assert state["epoch"] == 3
    for one, other in zip(fresh.tensors(), training.tensors(), strict=True):
        assert one.equal(other)


def test_a_dcp_folder_and_a_hugging_face_folder_are_imported(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    whole = trained().model.state_dict()
    dcp.save({"model": whole}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    ett("import", tmp_path / "dcp", tmp_path / "a")
    resumes(tmp_path / "a", Training().model, 0)
    (tmp_path / "hf").mkdir()
    names = list(whole)
    for number, part in enumerate((names[:3], names[3:])):
        file = tmp_path / "hf" / f"model-0000{number + 1}-of-00002.safetensors"
        safetensors.save_file({name: whole[name].contiguous() for name in part}, file)
    ett("import", tmp_path / "hf", tmp_path / "b")
    resumes(tmp_path / "b", Training().model, 0)


def test_a_checkpoint_with_numbered_optimizer_state_is_still_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As checkpoints were written before states had names."""
    from torchett.levers.checkpoint.state import optimizer_names

    training = trained()
    with monkeypatch.context() as old:
        old.setattr(optimizer_names, "by_name", lambda optimizer, names: optimizer.state_dict())
        ckpt = Checkpointer(tmp_path, every=1000)
        ckpt.save(3, training.state, wait=True)
        ckpt.close(final=False)
    assert "0" in Checkpointer.load(tmp_path, "optimizer.state")["optimizer"]["state"]
    fresh = Training()
    ckpt = Checkpointer(tmp_path, every=1000)
    assert ckpt.restore(fresh.state) == 4
    ckpt.save(4, fresh.state, wait=True)
    ckpt.close(final=False)
    assert fresh.digest() == training.digest()
    found = Checkpointer.load(tmp_path)["optimizer"]["state"]
    assert "model.0.weight" in found  # and from then on by names


@pytest.mark.e2e
def test_bad_input_is_one_line_and_writes_nothing(where: Path, tmp_path: Path) -> None:
    assert "expected a file that ends in .safetensors" in refused("export", where, tmp_path / "x.y")
    assert "does not exist" in refused("import", tmp_path / "none", tmp_path / "new")
    (tmp_path / "empty").mkdir()
    assert "found none" in refused("import", tmp_path / "empty", tmp_path / "new")
    (tmp_path / "bad.pt").write_bytes(b"no")
    assert "cannot be loaded" in refused("import", tmp_path / "bad.pt", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not entries(open_storage(tmp_path / "new"))


def test_tensors_are_read_one_by_one_in_pieces(tmp_path: Path) -> None:
    state = {"model": {"table": torch.arange(1000.0).view(250, 4), "one": torch.tensor(3.0)}}
    with Checkpointer(tmp_path, every=1) as ckpt:
        ckpt.save(0, {**state, "epoch": 3}, wait=True)
    with stored_tensors(tmp_path, "model") as found:
        assert {(t.name, t.shape, t.dtype) for t in found} == {
            ("model.table", (250, 4), torch.float32),
            ("model.one", (), torch.float32),
        }
        table = next(t for t in found if t.name == "model.table")
        pieces = list(table.pieces(most_bytes=1600))
        assert [offsets for offsets, _ in pieces] == [(0, 0), (100, 0), (200, 0)]
        assert torch.cat([piece for _, piece in pieces]).equal(state["model"]["table"])
        assert all(t.read().equal(state["model"][t.path[1]]) for t in found)


def test_a_damaged_file_is_found_before_a_piece_of_it_is_used(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, every=1) as ckpt:
        ckpt.save(0, {"weights": torch.ones(5000)}, wait=True)
    file = tmp_path / "step-00000000" / "__0_0.distcp"
    flip(file, file.stat().st_size // 2)
    with stored_tensors(tmp_path) as found, pytest.raises(CorruptCheckpoint):
        next(found[0].pieces())
