"""ETT's scalars are added to the run that the user's script writes."""

import os
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from _histories import Long

from torchett.cli.main import main
from torchett.runs.reader import RunReader
from torchett.sinks.own_runs import find_tensorboard, find_wandb


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Long(steps=40, restarts=2).write_records(tmp_path / "job")
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI", "WANDB_RUN_ID", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "job"


def test_the_folder_of_the_newest_event_file_is_used(tmp_path: Path) -> None:
    for age, name in ((100, "a"), (1, "b"), (50, "c")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "events.out.tfevents.1.host").write_bytes(b"")
        at = time.time() - age
        os.utime(folder / "events.out.tfevents.1.host", (at, at))
    assert find_tensorboard(tmp_path) == tmp_path / "runs" / "b"


def test_the_newest_run_of_wandb(tmp_path: Path) -> None:
    for age, name in ((9, "run-20261118_101112-abc123"), (1, "offline-run-20261119_101112-def456")):
        (tmp_path / "wandb" / name).mkdir(parents=True)
        at = time.time() - age
        os.utime(tmp_path / "wandb" / name, (at, at))
    assert find_wandb({}, tmp_path).id == "def456"
    assert find_wandb({"WANDB_RUN_ID": "mine"}, tmp_path).id == "mine"


@pytest.mark.parametrize("form", ["tensorboard", "wandb"])
def test_no_own_run_is_one_line(run: Path, form: str) -> None:
    said = CliRunner().invoke(main, ["export", str(run), "--format", form, "--own"])
    assert said.exit_code == 2
    assert said.output.startswith(f"ett: {form}: no ")


def test_own_with_a_file_or_a_folder_is_refused(run: Path) -> None:
    for more in (["--format", "events"], ["--format", "mlflow", "-o", "x"]):
        assert CliRunner().invoke(main, ["export", str(run), *more, "--own"]).exit_code == 2


def test_mlflows_own_run_gets_true_totals(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    mine = client.create_run(client.create_experiment("theirs")).info.run_id
    client.log_metric(mine, "loss", 0.5, step=7)
    said = CliRunner().invoke(main, ["export", str(run), "--format", "mlflow", "--own"])
    assert said.exit_code == 0, said.output
    found = client.get_run(mine)
    ledger = RunReader(run).poll().ledger()
    assert found.data.metrics["loss"] == 0.5
    assert found.data.metrics["ett/percent"] == pytest.approx(ledger.ett_percent)
    assert found.data.metrics["ett/final/rank_seconds"] == pytest.approx(ledger.rank_ns / 1e9)
    assert found.info.status == "RUNNING"  # who began it ends it
