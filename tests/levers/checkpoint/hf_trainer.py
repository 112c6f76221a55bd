"""A Hugging Face Trainer whose every bit depends on its whole past, as a script.

python hf_trainer.py FOLDER STEPS             it prints the digest of the end state
python hf_trainer.py FOLDER STEPS kill 8      the same, killed in that step of its first life
python hf_trainer.py FOLDER STEPS notice 7    it is sent SIGTERM in that step
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from torchett.levers.checkpoint.frameworks.huggingface import TrainerCheckpoints

torch.set_num_threads(1)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layers(x).squeeze(-1) - labels).square().mean()}


class Kill(transformers.TrainerCallback):  # type: ignore[misc]
    """Ends the process in the middle of a step, once what was due before is whole."""

    def __init__(self, ours: TrainerCheckpoints, before: int) -> None:
        self.ours, self.before = ours, before
        self.steps: list[int] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        settle(self.ours)
        if state.global_step == self.before:
            self.end()

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Notice(Kill):
    """Is sent SIGTERM in the middle of a step."""

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        met = self.ours.checkpointer._met
        while met is not None and not met.preemption._notice.received():
            time.sleep(0.001)


def settle(ours: TrainerCheckpoints) -> None:
    met = ours.checkpointer._met
    if met is not None and met.snapshots.prepared:
        met.snapshots.wait()
        while met.tier is not None and not met.tier.is_settled_here:
            time.sleep(0.001)


def made(
    folder: Path, steps: int, *, kill: int = -1, watching: type[Kill] = Kill, **settings: Any
) -> tuple[Any, TrainerCheckpoints, Kill]:
    """A Trainer of 3 epochs of 5 updates over 2 batches each."""
    transformers.set_seed(3)
    generator = torch.Generator().manual_seed(1)
    data = [
        {"x": torch.randn(4, generator=generator), "labels": torch.tensor(float(i % 3))}
        for i in range(20)
    ]
    args = transformers.TrainingArguments(
        output_dir=str(folder / "out"), max_steps=steps, save_strategy="no", report_to=[],
        use_cpu=True, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        disable_tqdm=True, logging_steps=2, learning_rate=1e-2, warmup_steps=3,
        lr_scheduler_type="cosine", dataloader_num_workers=0,
    )  # fmt: skip
    trainer = transformers.Trainer(Model(), args, train_dataset=data)
    ours = TrainerCheckpoints(
        trainer,
        folder / "c",
        **{"every": 1000, "snapshot_every": None, "upload": "thread"} | settings,
    )
    watch = watching(ours, kill)
    trainer.add_callback(watch)
    return trainer, ours, watch


def digest(trainer: Any) -> str:
    """Of everything that training depends on."""
    sha = hashlib.sha256()
    for _, tensor in sorted(trainer.model.state_dict().items()):
        sha.update(tensor.contiguous().numpy().tobytes())
    for one in trainer.optimizer.state_dict()["state"].values():
        for name in sorted(one):
            sha.update(one[name].contiguous().numpy().tobytes())
    sha.update(repr(trainer.lr_scheduler.state_dict()["last_epoch"]).encode())
    sha.update(repr(trainer.optimizer.param_groups[0]["lr"]).encode())
    sha.update(bytes(torch.get_rng_state().tolist()))
    state = trainer.state
    history = [
        {k: v for k, v in one.items() if "runtime" not in k and "second" not in k}
        for one in state.log_history
        if "loss" in one
    ]
    sha.update(repr((state.global_step, state.epoch, [h["step"] for h in history])).encode())
    return sha.hexdigest()


if __name__ == "__main__":
    where, how = Path(sys.argv[1]), "".join(sys.argv[3:4])
    kill = int(sys.argv[4]) if how else -1
    died = where / f"died-{os.environ.get('RANK', '0')}"
    if how == "kill" and died.exists():
        kill = -1
    elif how == "kill":
        where.mkdir(exist_ok=True)
        died.touch()
    watching = Notice if how == "notice" else Kill
    trainer, ours, watch = made(
        where, int(sys.argv[2]), kill=kill, watching=watching, snapshot_every=3
    )
    trainer.train()
    print("began at", watch.steps[0], "from", ours.checkpointer._restored_tier, flush=True)
    print(digest(trainer), flush=True)
