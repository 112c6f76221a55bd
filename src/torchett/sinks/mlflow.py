"""A run as an MLflow run in a local store, to be seen with `mlflow ui --backend-store-uri DIR`."""

import os
from pathlib import Path

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.model.errors import RunError
from torchett.sinks.scalars import final, points

_BATCH = 1000  # the most metrics MLflow takes at once


def write(ledger: Ledger, history: History, folder: Path) -> None:
    """Write the run into the folder's store."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise RunError("mlflow: not installed; pip install 'torchett[mlflow]'") from None
    client = MlflowClient(tracking_uri=folder.absolute().as_uri())
    known = client.get_experiment_by_name("torchett")
    experiment = known.experiment_id if known else client.create_experiment("torchett")
    found = points(ledger, history)
    begin_ms = _ms(found[0].wall_s - found[0].at_s) if found else None
    run = client.create_run(experiment, run_name=ledger.job, start_time=begin_ms)
    metrics = [
        Metric(name, value, _ms(point.wall_s), round(point.at_s))
        for point in found
        for name, value in point.values.items()
    ]
    last_ms = _ms(found[-1].wall_s) if found else 0
    metrics += [Metric(name, value, last_ms, 0) for name, value in final(ledger).items()]
    params = [Param("ranks", str(ledger.ranks)), Param("attempts", str(len(ledger.attempts)))]
    for at in range(0, len(metrics), _BATCH):
        client.log_batch(run.info.run_id, metrics=metrics[at : at + _BATCH], params=params)
        params = []
    client.set_terminated(run.info.run_id, end_time=last_ms or None)


def _ms(wall_s: float) -> int:
    """Milliseconds since the epoch; a job on a clock of its own may begin before it."""
    return max(0, int(wall_s * 1000))
