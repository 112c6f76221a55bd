"""A real Lightning Trainer that is interrupted and resumes ends with the same bits."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pl: Any = pytest.importorskip("lightning.pytorch")
StatefulDataLoader: Any = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

import lightning_trainer  # noqa: E402
from lightning_trainer import Kill, TwoOptimizers, digest, made  # noqa: E402
from trainer import Training, flip  # noqa: E402, F401  (nothing is recorded)

LOADERS = {"plain": torch.utils.data.DataLoader, "stateful": StatefulDataLoader}
UPDATES = 18


class StoppedError(Exception):
    pass


class Interrupt(Kill):
    """Each save is durable before the next step; an error in the middle of one."""

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.ours.checkpointer.wait()
        if trainer.global_step == self.before:
            raise StoppedError


@pytest.fixture(scope="module", params=LOADERS)
def unbroken(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, list[Any]]:
    """The loader's kind, the digest, and each batch's epoch, index and counters."""
    trainer, model, _, seen = made(
        tmp_path_factory.mktemp("unbroken"), loader=LOADERS[request.param]
    )
    trainer.fit(model)
    return request.param, digest(trainer, model), seen.steps


def interrupted(folder: Path, before: int, kind: str = "plain") -> None:
    trainer, model, ours, _ = made(
        folder, kill=before, watch=Interrupt, loader=LOADERS[kind], every=1, keep=20
    )
    with pytest.raises(StoppedError):
        trainer.fit(model)
    ours.checkpointer.close(final=False)


@pytest.mark.parametrize(
    "before", [[1], [4], [6], [9], [12], [17], [3, 6, 7, 14]],
    ids=["first", "mid-epoch", "epoch", "after validation", "next epoch", "last", "four times"],
)  # fmt: skip
def test_an_interrupted_run_ends_with_the_same_bits(
    tmp_path: Path, unbroken: tuple[str, str, list[Any]], before: list[int]
) -> None:
    kind, expected, steps = unbroken
    for update in before:
        interrupted(tmp_path, update, kind)
    trainer, model, ours, seen = made(tmp_path, loader=LOADERS[kind])
    trainer.fit(model)
    assert seen.steps[0][2] == before[-1]
    assert seen.steps == steps[-len(seen.steps) :]
    assert digest(trainer, model) == expected
    assert ours.checkpointer.durable == {"local": UPDATES - 1}


def test_the_callback_changes_nothing_of_a_run(
    tmp_path: Path, unbroken: tuple[str, str, list[Any]]
) -> None:
    kind, expected, _ = unbroken
    trainer, model, ours, _ = made(tmp_path, loader=LOADERS[kind])
    trainer.callbacks = [one for one in trainer.callbacks if one is not ours]
    trainer.fit(model)
    assert digest(trainer, model) == expected


@pytest.mark.parametrize("before", [11, 12, 29])
def test_two_optimizers_and_manual_optimization(tmp_path: Path, before: int) -> None:
    """36 batches, 72 of Lightning's global steps."""

    class InterruptSecond(Interrupt):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            super().on_train_batch_start(trainer, module, batch, index)
            self.ours.checkpointer.wait()
            if self.steps[-1][3] == self.before:
                raise StoppedError

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            pass

    def fit(folder: Path, watch: type[Kill], **settings: Any) -> tuple[Any, Any, Any, Any]:
        trainer, model, ours, seen = made(
            folder, watch=watch, accumulate=1, module=TwoOptimizers, **settings
        )
        if watch is Kill:
            trainer.fit(model)
        else:
            with pytest.raises(StoppedError):
                trainer.fit(model)
        ours.checkpointer.close(final=False)
        return trainer, model, ours, seen

    whole, model, _, steps = fit(tmp_path / "unbroken", Kill)
    fit(tmp_path / "b", InterruptSecond, kill=before, every=1, keep=20)
    again, same, _, seen = fit(tmp_path / "b", Kill)
    assert seen.steps[0][3] == before
    assert seen.steps == steps.steps[-len(seen.steps) :]
    assert digest(again, same) == digest(whole, model)


def test_a_run_that_is_over_trains_no_more(tmp_path: Path) -> None:
    for begins_at in (0, UPDATES):
        trainer, model, _, seen = made(tmp_path)
        trainer.fit(model)
        assert [one[2] for one in seen.steps[:1]] == ([0] if not begins_at else [])
    assert trainer.global_step == UPDATES


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    interrupted(tmp_path, 8)
    flip(tmp_path / "c" / "step-00000007" / "__0_0.distcp", 3000)
    trainer, model, _, seen = made(tmp_path)
    trainer.fit(model)
    assert seen.steps[0][2] == 7


def test_a_ckpt_path_counts_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    trainer, model, _, _ = made(tmp_path, trainer={"max_steps": 9})
    trainer.fit(model)
    trainer.save_checkpoint(tmp_path / "theirs.ckpt")
    trainer, model, _, seen = made(tmp_path / "other")
    trainer.fit(model, ckpt_path=tmp_path / "theirs.ckpt", weights_only=False)
    assert seen.steps[0][2] == 9
    end = trainer.global_step
    trainer, model, _, seen = made(tmp_path / "other")
    trainer.fit(model, ckpt_path=tmp_path / "theirs.ckpt", weights_only=False)
    assert seen.steps == []
    assert trainer.global_step == end


def test_a_notice_is_answered_by_a_checkpoint_and_the_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, lightning_trainer.__file__, str(tmp_path), "notice", "7"],
        env=environment(tmp_path), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == -signal.SIGTERM, done.stderr[-3000:]
    assert (tmp_path / "c" / "latest").read_text().strip() == "step-00000007"


def test_strategies_that_hide_the_optimizer_are_refused(tmp_path: Path) -> None:
    _, _, ours, _ = made(tmp_path)

    class FSDPStrategy:
        pass

    class OfFsdp:
        strategy, world_size = FSDPStrategy(), 1

    with pytest.raises(ValueError, match="FSDP2"):
        ours.setup(OfFsdp(), None, "fit")


def environment(folder: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("ETT_")}
    return env | {"ETT_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1"}


def run(folder: Path, *launcher: str, kill: tuple[str, ...] = ()) -> str:
    """What two ranks printed."""
    env = environment(folder)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    script = (lightning_trainer.__file__, str(folder), *kill)
    done = subprocess.run(
        [*launcher, *torchrun, *script], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_killed_ranks_under_ett_run_go_on_from_memory_with_the_same_bits(tmp_path: Path) -> None:
    ett = (sys.executable, "-m", "torchett.cli.main", "run", "--job", "lit", "--max-restarts", "1")
    expected = set(re.findall(r"\b\w{64}\b", run(tmp_path / "unbroken")))
    said = run(tmp_path / "killed", *ett, "--", kill=("kill", "8"))
    assert re.findall(r"began at (\d+) from (\w+)", said) == [("6", "memory")] * 2, said
    assert set(re.findall(r"\b\w{64}\b", said)) == expected


def test_a_lightning_without_a_private_name_trains_on_without_saves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from types import SimpleNamespace

    from torchett.levers.checkpoint.frameworks.lightning import LightningCheckpoints

    callback = LightningCheckpoints(tmp_path / "checkpoints")
    trainer = SimpleNamespace(
        strategy=object(), world_size=1, global_step=0, _checkpoint_connector=object(),
        fit_loop=SimpleNamespace(epoch_loop=object()),
    )  # fmt: skip
    callback.setup(trainer, None, "fit")
    callback.on_fit_start(trainer, None)
    callback.on_train_start(trainer, None)
    callback.on_train_batch_start(trainer, None, None, 0)
    callback.teardown(trainer, None, "fit")
    assert "nothing is saved: this Lightning has no Trainer._checkpoint_connector" in caplog.text
    assert not (tmp_path / "checkpoints").exists()
