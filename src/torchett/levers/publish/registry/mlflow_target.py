"""Versions in MLflow's registry, too: the same files, hashes and aliases, once each.

    registry            MLflow
    dlrm@7   ─────────► model dlrm, version 3, tags torchett.version=7, torchett.key=5f3a…
    dlrm@live → 7 ────► dlrm@live → 3

This registry stays the one that decides. MLflow has no exclusive creation: of two workers that push
one key at once, the version with the lower number stays and the other takes its own back.
"""

import json
import logging
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchett.levers.publish.errors import RegistryError, one_line
from torchett.levers.publish.registry.registry import Registry
from torchett.levers.publish.registry.version import Version
from torchett.levers.publish.serving import pyfunc
from torchett.levers.publish.serving.fetched import fetched

EXPERIMENT = "torchett published"
_KEY = "torchett.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a version is called there."""

    uri: str
    name: str
    version: str
    was_there: bool
    aliases: tuple[str, ...]  # that name it here, and there now


def push(registry: Registry, version: Version, uri: str) -> Pushed:
    """Bring a version and the aliases that name it to the MLflow server at `uri`.

    RegistryError with what the server said; calling it again goes on where it stopped.
    """
    client = _client(uri)
    try:
        _ensure_model(client, version.name)
        found = _first(client, version)
        if found is None:
            _add(client, registry, version)
            found = _first(client, version)
            assert found is not None
            was_there = False
        else:
            was_there = True
        flips = registry.model(version.name).aliases.live()
        aliases = tuple(flip.alias for flip in flips if flip.version == version.version)
        for alias in aliases:  # last, as everywhere
            client.set_registered_model_alias(version.name, alias, found.version)
    except RegistryError:
        raise
    except Exception as error:  # whatever MLflow, requests or the server raise
        raise RegistryError(f"MLflow at {uri}: {one_line(error)}; push it again") from error
    return Pushed(
        uri=uri,
        name=version.name,
        version=str(found.version),
        was_there=was_there,
        aliases=aliases,
    )


def _client(uri: str) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # 7 take minutes
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    try:
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise RegistryError("MLflow is not installed: pip install 'torchett[mlflow]'") from None
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _ensure_model(client: Any, name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, description="Published by torchett.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _same(client: Any, version: Version) -> list[Any]:
    """The versions there that were made of this key, the first one first."""
    made_of = f"name = '{version.name}' and tags.`{_KEY}` = '{version.key}'"
    return sorted(client.search_model_versions(made_of), key=lambda one: int(one.version))


def _first(client: Any, version: Version) -> Any:
    same = _same(client, version)
    return same[0] if same else None


def _add(client: Any, registry: Registry, version: Version) -> None:
    """Upload the files as a run's artifacts, then create the version."""
    run = client.create_run(_experiment(client), run_name=version.label)
    run_id = run.info.run_id
    try:
        with fetched(registry, version) as files:
            folder = files.parent / "mlflow"
            _lay_out(files, folder, version, run_id)
            client.log_artifacts(run_id, str(folder), "version")
        made = client.create_model_version(
            version.name, f"runs:/{run_id}/version", run_id, tags=_tags(version)
        )
    except BaseException:
        client.set_terminated(run_id, "FAILED")
        raise
    client.set_terminated(run_id)
    if int(_same(client, version)[0].version) != int(made.version):
        client.delete_model_version(version.name, made.version)  # another worker was first


def _experiment(client: Any) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        try:
            return str(client.create_experiment(EXPERIMENT))
        except MlflowException:  # another worker made it meanwhile
            found = client.get_experiment_by_name(EXPERIMENT)
    return str(found.experiment_id)


def _lay_out(files: Path, folder: Path, version: Version, run_id: str) -> None:
    """The files as an MLflow model: loaded by `mlflow.pyfunc.load_model` if there is code."""
    flavors = {}
    (folder / "code").mkdir(parents=True)
    files.rename(folder / "data")
    if "model.pt2" in version.files:
        shutil.copyfile(pyfunc.__file__, folder / "code" / "ett_pyfunc.py")
        flavors["python_function"] = {
            "loader_module": "ett_pyfunc",
            "code": "code",
            "data": "data",
            "env": {"virtualenv": "python_env.yaml"},
        }
        needs = {"dependencies": [f"torch=={version.torch.partition('+')[0]}", "numpy"]}
        (folder / "python_env.yaml").write_text(json.dumps(needs))
    told = {
        "flavors": flavors,
        "run_id": run_id,
        "artifact_path": "version",
        "model_uuid": version.key[:32],
        "utc_time_created": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(version.created_s)),
    }
    (folder / "MLmodel").write_text(json.dumps(told, indent=1))  # JSON is YAML


def _tags(version: Version) -> dict[str, str]:
    told = {
        "version": version.version,
        "key": version.key,
        "anchor": version.anchor.get("path"),
        "anchor_sha256": version.anchor.get("sha256"),
        "step": version.anchor.get("step"),
        "job": version.job.get("job"),
        "max_error": version.parity.get("max_error"),
        "torch": version.torch,
        "isa": version.isa,
    }
    return {f"torchett.{key}": str(value) for key, value in told.items() if value is not None}
