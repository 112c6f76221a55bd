"""torchtitan's parts with our checkpoint manager: an interrupted run ends with the same bits."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

titan: Any = pytest.importorskip(
    "torchtitan.components.checkpointer", reason="NOT TESTED: torchtitan 0.3 is not installed"
)
titan_trainer: Any = pytest.importorskip(
    "titan_trainer", reason="NOT TESTED: this torchtitan has other parts than 0.3"
)

from trainer import Training, flip  # noqa: E402, F401  (nothing is recorded, see conftest.py)

from torchett.levers.checkpoint.frameworks.torchtitan import CheckpointManager  # noqa: E402

STEPS = titan_trainer.STEPS


class StoppedError(Exception):
    pass


def stop() -> None:
    raise StoppedError


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> str:
    trainer = titan_trainer.Trainer(tmp_path_factory.mktemp("unbroken"))
    trainer.train()
    return str(trainer.digest())


def interrupted(folder: Path, before: int) -> None:
    trainer = titan_trainer.Trainer(folder)
    save = trainer.checkpointer.save

    def and_wait(*args: Any, **kwargs: Any) -> None:
        save(*args, **kwargs)
        trainer.checkpointer.checkpointer.wait()

    trainer.checkpointer.save = and_wait
    with pytest.raises(StoppedError):
        trainer.train(before, stop)
    trainer.checkpointer.close()


@pytest.mark.parametrize("before", [2, 7, STEPS])
def test_an_interrupted_run_ends_with_the_same_bits(
    tmp_path: Path, unbroken: str, before: int
) -> None:
    interrupted(tmp_path, before)
    trainer = titan_trainer.Trainer(tmp_path)
    trainer.train()
    assert trainer.first == before - 1
    assert trainer.digest() == unbroken
    assert trainer.checkpointer.checkpointer.durable == {"local": STEPS - 1}


def test_it_is_what_torchtitan_expects(tmp_path: Path) -> None:
    assert issubclass(CheckpointManager, titan.BaseCheckpointManager)
    trainer = titan_trainer.Trainer(tmp_path, enable=False)
    trainer.train()
    assert trainer.step == STEPS
    assert not (tmp_path / "checkpoint").exists()


def test_an_error_saves_no_state_in_the_middle_of_a_step(tmp_path: Path) -> None:
    trainer = titan_trainer.Trainer(tmp_path, every="1000")
    with pytest.raises(StoppedError):
        trainer.train(5, stop)
    trainer.checkpointer.close()
    assert trainer.checkpointer.checkpointer.durable == {}


def test_load_only_saves_nothing(tmp_path: Path, unbroken: str) -> None:
    interrupted(tmp_path, 7)
    before = sorted(path.name for path in (tmp_path / "checkpoint").glob("step-*"))
    trainer = titan_trainer.Trainer(tmp_path, load_only=True)
    trainer.train()
    assert trainer.digest() == unbroken
    assert sorted(path.name for path in (tmp_path / "checkpoint").glob("step-*")) == before


def test_what_is_excluded_is_left_as_it_is(tmp_path: Path) -> None:
    interrupted(tmp_path, 7)
    trainer = titan_trainer.Trainer(tmp_path, exclude_from_loading=["dataloader"])
    trainer.checkpointer.load()
    next(iter(trainer.dataloader))
    assert (trainer.step, trainer.dataloader.dataset.position) == (6, 2)


def test_initial_weights_are_torchtitans_business(tmp_path: Path) -> None:
    """Its own manager wrote them; ours has no checkpoint yet."""
    theirs = titan_trainer.Trainer(tmp_path / "theirs", enable=False)
    theirs.train()
    own = titan.CheckpointManager.Config(enable=True, keep_latest_k=0).build(
        dataloader=None, model_parts=theirs.model_parts, optimizers=theirs.optimizers,
        lr_schedulers=theirs.lr_schedulers, states={}, sd_adapter=None,
        base_folder=str(tmp_path / "theirs"),
    )  # fmt: skip
    own.save(STEPS, last_step=True)
    path = str(tmp_path / "theirs" / "checkpoint" / f"step-{STEPS}")
    trainer = titan_trainer.Trainer(tmp_path / "ours", initial_load_path=path, keep_latest_k=0)
    assert trainer.checkpointer.load()
    assert trainer.step == 0
    for part, same in zip(trainer.model_parts, theirs.model_parts, strict=True):
        for name, value in part.state_dict().items():
            assert value.equal(same.state_dict()[name]), name


def test_the_last_export_is_torchtitans_business(tmp_path: Path) -> None:
    """In addition to a whole last checkpoint."""
    pytest.importorskip("safetensors")

    class Adapter:
        fqn_to_index_mapping = None

        def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
            return {f"hf.{name}": value for name, value in state.items()}

    trainer = titan_trainer.Trainer(
        tmp_path, adapter=Adapter(), last_save_in_hf=True, keep_latest_k=0, every="1000"
    )
    trainer.train()
    assert trainer.checkpointer.checkpointer.durable == {"local": STEPS - 1}
    (exported,) = (tmp_path / "checkpoint-export" / f"step-{STEPS}").glob("*.safetensors")
    assert b"hf.layers0.0.weight" in exported.read_bytes()


def test_a_config_of_torchtitans_is_built_and_changed_from_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchtitan.trainer")  # it needs triton
    from torchtitan.config import ConfigManager

    page = (Path(__file__).parents[3] / "docs" / "torchtitan.md").read_text()
    (tmp_path / "my_configs.py").write_text(re.findall(r"```python\n(.*?)```", page, re.S)[-1])
    monkeypatch.syspath_prepend(tmp_path)
    told = ["--module", "my_configs", "--config", "llama3_8b_ett", "--checkpoint.every", "10m"]
    checkpoint = ConfigManager().parse_args(told).checkpoint
    assert type(checkpoint) is CheckpointManager.Config
    assert (checkpoint.enable, checkpoint.every, checkpoint.keep_latest_k) == (True, "10m", 3)


def test_another_step_than_the_newest_is_refused(tmp_path: Path) -> None:
    trainer = titan_trainer.Trainer(tmp_path)
    with pytest.raises(ValueError, match="load_step=5"):
        trainer.checkpointer.load(5)


def run(folder: Path, *launcher: str, kill: tuple[str, ...] = ()) -> str:
    """What two ranks printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("ETT_")}
    env |= {"ETT_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1"}
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    script = (titan_trainer.__file__, str(folder), *kill)
    done = subprocess.run(
        [*launcher, *torchrun, *script], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_torchtitans_own_trainer_resumes_with_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="NOT TESTED: torchtitan's Trainer imports triton")
    script = str(Path(__file__).with_name("titan_whole.py"))
    env = {k: v for k, v in os.environ.items() if not k.startswith("ETT_")}
    env |= {"ETT_DISABLE": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(21_000 + os.getpid() % 9_000)}

    def train(*told: str) -> str:
        done = subprocess.run(
            [sys.executable, script, *told], env=env, capture_output=True, text=True, timeout=150
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    whole = train(str(tmp_path / "unbroken"))
    assert train(str(tmp_path / "b"), "5") == ""
    again = train(str(tmp_path / "b"))
    assert "began with 5 " in again
    assert again.split()[-1] == whole.split()[-1]


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_killed_ranks_under_ett_run_go_on_from_memory_with_the_same_bits(tmp_path: Path) -> None:
    """Two ranks with FSDP2."""
    ett = (sys.executable, "-m", "torchett.cli.main", "run", "--job", "tt", "--max-restarts", "1")
    expected = set(re.findall(r"digest (\w{64})", run(tmp_path / "unbroken")))
    said = run(tmp_path / "killed", *ett, "--", kill=("9",))
    assert re.findall(r"began at (\d+) from (\w+)", said) == [("6", "memory")] * 2, said
    assert set(re.findall(r"digest (\w{64})", said)) == expected
