"""A real Trainer that is interrupted and resumes by a Checkpointer ends with the same bits."""

import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import hf_trainer  # noqa: E402
from trainer import Training, flip  # noqa: E402, F401  (nothing is recorded, see conftest.py)

from torchett.levers.checkpoint import CheckpointError  # noqa: E402

STEPS = 13


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> str:
    trainer, _, _ = hf_trainer.made(tmp_path_factory.mktemp("unbroken"), STEPS)
    trainer.train()
    return hf_trainer.digest(trainer)


class StoppedError(Exception):
    pass


class Interrupt(transformers.TrainerCallback):  # type: ignore[misc]
    """Each save is durable before the next step; an error in the middle of one."""

    def __init__(self, ours: Any, before: int) -> None:
        self.ours, self.before = ours, before

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.ours.checkpointer.wait()
        if state.global_step == self.before:
            raise StoppedError


def interrupted(folder: Path, before: int) -> None:
    trainer, ours, _ = hf_trainer.made(folder, STEPS, every=1, keep=20)
    trainer.add_callback(Interrupt(ours, before))
    with pytest.raises(StoppedError):
        trainer.train()
    ours.checkpointer.close(final=False)


@pytest.mark.parametrize("before", [1, 4, 5, 12], ids=["first", "mid-epoch", "epoch", "last"])
def test_an_interrupted_run_ends_with_the_same_bits(
    tmp_path: Path, unbroken: str, before: int
) -> None:
    interrupted(tmp_path, before)
    trainer, ours, watch = hf_trainer.made(tmp_path, STEPS)
    trainer.train()
    assert watch.steps == list(range(before, STEPS))
    assert hf_trainer.digest(trainer) == unbroken
    assert ours.checkpointer.durable == {"local": STEPS - 1}


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, unbroken: str, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(tmp_path, 8)
    flip(tmp_path / "c" / "step-00000007" / "__0_0.distcp", 3000)
    trainer, _, watch = hf_trainer.made(tmp_path, STEPS)
    trainer.train()
    assert watch.steps[0] == 7
    assert hf_trainer.digest(trainer) == unbroken
    assert list((tmp_path / "c").glob("step-00000007.corrupt-*"))


def test_what_the_user_resumes_from_counts_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    trainer, ours, _ = hf_trainer.made(tmp_path, STEPS)
    trainer.args.save_strategy, trainer.args.save_steps = "steps", 4
    trainer.train()
    theirs = tmp_path / "out" / "checkpoint-8"
    assert theirs.is_dir()
    trainer, ours, watch = hf_trainer.made(tmp_path / "other", STEPS)
    trainer.train(resume_from_checkpoint=str(theirs))
    assert watch.steps[0] == 8
    assert ours.checkpointer.durable == {"local": STEPS - 1}


def test_what_is_logged_may_be_anything(tmp_path: Path) -> None:
    """As numbers of numpy, which JSON does not know."""

    class Logs(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            state.log_history.append({"one": torch.tensor(0.5), "two": torch.zeros(2)})

    trainer, ours, _ = hf_trainer.made(tmp_path, 5)
    trainer.add_callback(Logs())
    trainer.train()
    assert ours.checkpointer.durable == {"local": 4}
    trainer, _, watch = hf_trainer.made(tmp_path, 7)
    trainer.train()
    assert watch.steps == [5, 6]
    assert trainer.state.log_history[0]["one"] == 0.5


def test_a_second_train_begins_anew_and_saves_nothing(tmp_path: Path) -> None:
    trainer, ours, watch = hf_trainer.made(tmp_path, 5)
    trainer.train()
    trainer.train()
    assert watch.steps == [*range(5), *range(5)]
    assert ours.checkpointer.durable == {"local": 4}


def test_switched_off_it_leaves_the_trainer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ETT_WITHOUT", "trainer-checkpoints")
    trainer, ours, _ = hf_trainer.made(tmp_path, 5)
    assert {"train", "_load_from_checkpoint"}.isdisjoint(vars(trainer))
    with caplog.at_level(logging.WARNING, logger="torchett"):
        trainer.train()
    assert ours.checkpointer.durable == {}
    assert "does not save" in caplog.text


def test_what_hides_the_optimizer_is_refused(tmp_path: Path) -> None:
    plugin = SimpleNamespace(fsdp_version=1)
    accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin))
    for match, trainer in {
        "DeepSpeed": SimpleNamespace(is_deepspeed_enabled=True),
        "use FSDP2": SimpleNamespace(is_fsdp_enabled=True, accelerator=accelerator),
    }.items():
        with pytest.raises(ValueError, match=match):
            hf_trainer.TrainerCheckpoints(trainer, tmp_path)


def test_a_search_is_refused(tmp_path: Path) -> None:
    trainer, _, _ = hf_trainer.made(tmp_path, 5)
    with pytest.raises(CheckpointError, match="a folder each"):
        trainer.train(trial={"learning_rate": 0.1})


def environment(folder: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("ETT_")}
    return env | {"ETT_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1"}


def test_a_notice_is_answered_by_a_checkpoint_and_the_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, hf_trainer.__file__, str(tmp_path), str(STEPS), "notice", "7"],
        env=environment(tmp_path), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == -signal.SIGTERM, done.stderr[-3000:]
    assert (tmp_path / "c" / "latest").read_text().strip() == "step-00000007"


def run(folder: Path, *launcher: str, kill: tuple[str, ...] = ()) -> str:
    """What two ranks printed."""
    env = environment(folder)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    script = (hf_trainer.__file__, str(folder), str(STEPS), *kill)
    done = subprocess.run(
        [*launcher, *torchrun, *script], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_killed_ranks_under_ett_run_go_on_from_memory_with_the_same_bits(tmp_path: Path) -> None:
    ett = (sys.executable, "-m", "torchett.cli.main", "run", "--job", "hf", "--max-restarts", "1")
    expected = set(re.findall(r"\b\w{64}\b", run(tmp_path / "unbroken")))
    said = run(tmp_path / "killed", *ett, "--", kill=("kill", "8"))
    assert re.findall(r"began at (\d+) from (\w+)", said) == [("6", "memory")] * 2, said
    assert set(re.findall(r"\b\w{64}\b", said)) == expected
