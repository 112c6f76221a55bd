"""A run as an MLflow run in a local store; show it with `mlflow ui --backend-store-uri DIR`."""

import os
from pathlib import Path
from typing import Any

from torchett.ledger.ledger import Ledger
from torchett.model.errors import RunError
from torchett.sinks.scalars import Point, final

_BATCH = 1000  # MLflow's limit of metrics in one call


class MLflow:
    """One run of the experiment `torchett`, in a store in a folder."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise RunError("mlflow: not installed; pip install 'torchett[mlflow]'") from None
        self._metric = Metric
        self._client = MlflowClient(tracking_uri=folder.absolute().as_uri())
        known = self._client.get_experiment_by_name("torchett")
        experiment = known.experiment_id if known else self._client.create_experiment("torchett")
        begin_ms = _ms(ledger.window.start_ns / 1e9)
        run = self._client.create_run(experiment, run_name=ledger.job, start_time=begin_ms)
        self._id = run.info.run_id
        self._client.log_param(self._id, "ranks", ledger.ranks)
        self._last_ms = begin_ms
        self._held: list[Any] = []

    def log(self, point: Point) -> None:
        self._last_ms = _ms(point.wall_s)
        for name, value in point.values.items():
            self._held.append(self._metric(name, value, self._last_ms, round(point.at_s)))
        if len(self._held) > _BATCH - 100:
            self._send()

    def close(self, ledger: Ledger) -> None:
        self._send()
        for name, value in final(ledger).items():
            self._held.append(self._metric(name, value, self._last_ms, 0))
        self._send()
        self._client.set_terminated(self._id, end_time=self._last_ms or None)

    def _send(self) -> None:
        held, self._held = self._held, []
        for at in range(0, len(held), _BATCH):
            self._client.log_batch(self._id, metrics=held[at : at + _BATCH])


def _ms(wall_s: float) -> int:
    """Milliseconds since the epoch, at least 0: an imported job may have another clock."""
    return max(0, int(wall_s * 1000))
