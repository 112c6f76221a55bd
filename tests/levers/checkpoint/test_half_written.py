"""A `checkpoint-N` that a killed Trainer left is put aside; whole ones stay."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from torchett.levers.checkpoint.huggingface.half_written import problem_of, put_aside

save_file = pytest.importorskip("safetensors.torch").save_file


def written(folder: Path, step: int) -> Path:
    """What a Trainer writes, in its order."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    save_file({"w": torch.arange(1000.0), "b": torch.zeros(7)}, path / "model.safetensors")
    torch.save({"state": torch.zeros(100)}, path / "optimizer.pt")
    for rank in range(2):
        torch.save({"python": 1}, path / f"rng_state_{rank}.pth")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def cut(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
def test_a_file_that_is_cut_short(tmp_path: Path, name: str, share: float) -> None:
    whole, half = written(tmp_path, 100), written(tmp_path, 200)
    assert problem_of(whole) is None
    cut(half / name, share)
    (said,) = put_aside(tmp_path)
    assert name in said
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint-100",
        "half-written-checkpoint-200",
    ]
    assert put_aside(tmp_path) == []


@pytest.mark.parametrize("name", ["trainer_state.json", "rng_state_0.pth"])
def test_a_file_that_is_missing(tmp_path: Path, name: str) -> None:
    half = written(tmp_path, 200)
    (half / name).unlink()
    assert "is missing" in (problem_of(half) or "")


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    half = written(tmp_path, 200)
    index = {"weight_map": {"w": "model-00001-of-00002.safetensors"}}
    (half / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00001-of-00002.safetensors, which is missing" in (problem_of(half) or "")


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-7").write_text("a file")
    assert put_aside(tmp_path) == []


def test_a_trainer_resumes_from_the_last_whole_one(tmp_path: Path) -> None:
    """With the real Trainer, killed in the middle of its last save."""
    transformers: Any = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from torchett.levers.checkpoint.huggingface.callback import WholeCheckpoints

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.linear(x).squeeze(-1) - labels).square().mean()}

    data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(16)]

    def trainer(steps: int) -> Any:
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=steps, save_steps=2, report_to=[], use_cpu=True,
            per_device_train_batch_size=2, disable_tqdm=True, logging_steps=1000,
        )  # fmt: skip
        return transformers.Trainer(
            Model(), args, train_dataset=data, callbacks=[WholeCheckpoints()]
        )

    trainer(4).train()
    cut(tmp_path / "checkpoint-4" / "model.safetensors", 0.5)
    again = trainer(6)
    assert (tmp_path / "half-written-checkpoint-4").is_dir()
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 6
