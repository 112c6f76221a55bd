"""Finds the user's own run of W&B, MLflow or TensorBoard, and writes into it.

    mlflow       MLFLOW_RUN_ID, else the newest unfinished run of the store (MLFLOW_TRACKING_URI,
                 else ./mlruns)
    wandb        WANDB_RUN_ID, else the newest run of WANDB_DIR/wandb (else ./wandb)
    tensorboard  the folder of the newest event file below ./runs, ./logs, ./lightning_logs, .

The scalars are those of the whole job, with all attempts: they continue in a resumed run.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchett.ledger.ledger import Ledger
from torchett.model.errors import RunError
from torchett.sinks.scalars import Point, final

_RUN_FOLDER = re.compile(r"(?:offline-)?run-\d{8}_\d{6}-(\w+)$")
_EVENT_FOLDERS: Final = ("runs", "logs", "lightning_logs", "tb_logs", ".")
_MOST_FILES: Final = 50_000  # event files checked in one folder
_STEP: Final = "ett/job_seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """The place of a user's run: a store or folder, and the run's id there."""

    place: str
    id: str


def find_mlflow(env: Mapping[str, str], here: Path) -> OwnRun:
    """The run of MLflow that the job writes."""
    store = env.get("MLFLOW_TRACKING_URI") or (here / "mlruns").absolute().as_uri()
    if env.get("MLFLOW_RUN_ID"):
        return OwnRun(place=store, id=env["MLFLOW_RUN_ID"])
    client = _mlflow_client(store)
    experiments = [one.experiment_id for one in client.search_experiments()]
    found = client.search_runs(
        experiments, order_by=["attributes.start_time DESC"], max_results=1
    ) if experiments else []  # fmt: skip
    if not found:
        raise RunError(f"mlflow: no run in {store}: set MLFLOW_RUN_ID and MLFLOW_TRACKING_URI")
    return OwnRun(place=store, id=found[0].info.run_id)


def find_wandb(env: Mapping[str, str], here: Path) -> OwnRun:
    """The run of W&B that the job writes."""
    folder = Path(env.get("WANDB_DIR") or here) / "wandb"
    if env.get("WANDB_RUN_ID"):
        return OwnRun(place=str(folder), id=env["WANDB_RUN_ID"])
    known = [(path.stat().st_mtime, match[1]) for path in folder.glob("*run-*")
             if (match := _RUN_FOLDER.search(path.name))]  # fmt: skip
    if not known:
        raise RunError(f"wandb: no run in {folder}: set WANDB_RUN_ID")
    return OwnRun(place=str(folder), id=max(known)[1])


def find_tensorboard(here: Path) -> Path:
    """The folder of the newest event file."""
    newest: tuple[float, Path] | None = None
    for name in _EVENT_FOLDERS:
        for count, path in enumerate((here / name).rglob("events.out.tfevents.*")):
            if count > _MOST_FILES:
                break
            at = path.stat().st_mtime
            if newest is None or at > newest[0]:
                newest = at, path.parent
        if newest is not None:
            return newest[1]
    raise RunError(f"tensorboard: no event file below {here}: give its folder by -o DIR")


class OwnMLflow:
    """Metrics `ett/…` in a run that the user's script starts and ends."""

    def __init__(self, run: OwnRun) -> None:
        self._client = _mlflow_client(run.place)
        self._id = run.id

    def log(self, point: Point) -> None:
        self._send(point.values, point.wall_s, round(point.at_s))

    def close(self, ledger: Ledger) -> None:
        self._send(final(ledger), ledger.window.end_ns / 1e9, round(ledger.window_ns / 1e9))

    def _send(self, values: Mapping[str, float], wall_s: float, step: int) -> None:
        from mlflow.entities import Metric

        at_ms = max(0, int(wall_s * 1000))
        metrics = [Metric(name, value, at_ms, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)


class OwnWandB:
    """Metrics `ett/…` in a run that the user's script also writes, in W&B's shared mode."""

    def __init__(self, run: OwnRun) -> None:
        try:
            import wandb
        except ImportError:
            raise RunError("wandb: not installed; pip install 'torchett[wandb]'") from None
        offline = os.environ.get("WANDB_MODE") == "offline"
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
        if not offline:
            settings = wandb.Settings(
                silent=True, console="off", x_disable_stats=True, mode="shared",
                x_primary=False, x_update_finish_state=False,
            )  # fmt: skip
        self._run: Any = wandb.init(
            id=run.id, dir=str(Path(run.place).parent), resume="allow", settings=settings
        )
        self._run.define_metric("ett/*", step_metric=_STEP)

    def log(self, point: Point) -> None:
        self._run.log({**point.values, _STEP: point.at_s})

    def close(self, ledger: Ledger) -> None:
        self._run.summary.update(final(ledger))
        self._run.finish()


def _mlflow_client(store: str) -> Any:
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise RunError("mlflow: not installed; pip install 'torchett[mlflow]'") from None
    return MlflowClient(tracking_uri=store)
