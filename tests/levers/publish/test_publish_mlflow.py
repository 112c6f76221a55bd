"""A version in MLflow's registry, on a real MLflow server; without MLflow skipped, and said."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from publish_shelf import HERE, one_rank_saves

from torchett.cli.main import main
from torchett.levers.publish.registry import mlflow_target
from torchett.levers.publish.registry.registry import Registry

LINE = f"{HERE}/small_models.py:line"
COMPILED = f"{HERE}/small_models.py:line_compiled"


def ett(*words: str) -> Result:
    return CliRunner().invoke(main, ["publish", *words])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a spool, and a registry in which line@1 is live."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETT_REGISTRY", str(tmp_path / "registry"))
    drop(tmp_path, seed=1)
    assert ett("work", "spool", "--drain", "--poll", "0.1").exit_code == 0
    return tmp_path


def drop(place: Path, *, seed: int, recipe: str = LINE, name: str = "line") -> None:
    torch.manual_seed(seed)
    anchor = one_rank_saves(place / f"{name}-{seed}", torch.nn.Linear(8, 2), step=seed)
    words = ("--recipe", recipe, "--anchor", anchor, "--name", name)
    assert ett("add", "spool", *words).exit_code == 0


def test_without_mlflow_one_line_says_what_to_install(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    said = ett("push", "line@live", "--mlflow", "http://127.0.0.1:9")
    assert said.exit_code == 2
    assert said.output.strip().endswith("pip install 'torchett[mlflow]'")


def test_a_worker_that_cannot_reach_mlflow_has_published_and_tries_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    drop(place, seed=2)
    work = ("work", "spool", "--drain", "--poll", "0.1", "--tries", "2")
    said = ett(*work, "--mlflow", "http://127.0.0.1:9")
    assert said.exit_code == 1
    assert "MLflow is not installed" in said.output
    (parked,) = (row for row in jobs() if row["state"] != "done")
    assert (parked["state"], parked["failures"]) == ("parked", 2)
    model = Registry(str(place / "registry")).model("line")
    assert [version.version for version in model.versions()] == [1, 2]  # once, and live here
    ett("retry", "spool", parked["id"])
    assert ett(*work).exit_code == 0
    assert [version.version for version in model.versions()] == [1, 2]


def jobs() -> list[dict[str, Any]]:
    return json.loads(ett("jobs", "spool", "--json").output)["jobs"]  # type: ignore[no-any-return]


# On a real server ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        import flask  # noqa: F401  (mlflow-skinny has no server)
        import mlflow  # noqa: F401
    except ImportError as error:
        said = f"no test on a real MLflow server: {error}; pip install mlflow"
        warnings.warn(said, stacklevel=1)
        pytest.skip(said)
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/store.db", "--workers", "1"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    env = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    with open(folder / "server.log", "wb") as log:
        running = subprocess.Popen(
            command, env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        uri = f"http://127.0.0.1:{port}"
        _wait_for(uri, running, folder / "server.log")
        yield uri
    finally:
        os.killpg(running.pid, 15)
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, 9)
            running.wait()


def _wait_for(uri: str, running: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 180
    while running.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{uri}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"the MLflow server did not come up: {log.read_text()[-2000:]}")


@pytest.mark.timeout(300)
def test_a_version_and_its_alias_are_there_once_and_follow_a_rollback(
    server: str, place: Path
) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=server)
    drop(place, seed=2)
    done = ett("work", "spool", "--drain", "--poll", "0.1", "--mlflow", server)
    assert done.exit_code == 0, done.output
    here = Registry(str(place / "registry")).find("line@2")
    there = client.get_model_version_by_alias("line", "live")
    assert there.tags["torchett.version"] == "2"
    assert there.tags["torchett.key"] == here.key
    assert there.tags["torchett.anchor_sha256"] == here.anchor["sha256"]
    (told,) = (row["told"] for row in jobs() if row["told"]["version"] == "line@2")
    assert told["mlflow"] == {"uri": server, "name": "line", "version": there.version}
    fetched = Path(client.download_artifacts(there.run_id, "version", str(place)))
    held = (fetched / "data" / "weights.safetensors").read_bytes()
    assert len(held) == here.files["weights.safetensors"].size

    again = ett("push", "line@2", "--mlflow", server)
    assert "was there already" in again.output
    assert len(client.search_model_versions("name = 'line'")) == 1
    assert ett("rollback", "line@live").exit_code == 0
    said = json.loads(ett("push", "line@live", "--mlflow", server, "--json").stdout)
    assert (said["pushed"], said["was_there"], said["aliases"]) == ("line@1", False, ["live"])
    live = client.get_model_version_by_alias("line", "live")
    assert live.tags["torchett.version"] == "1"
    assert len(client.search_model_versions("name = 'line'")) == 2


@pytest.mark.timeout(300)
def test_of_two_that_push_one_version_at_once_one_stays(
    server: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    drop(place, seed=3, name="twice")
    ett("work", "spool", "--drain", "--poll", "0.1")
    registry = Registry(str(place / "registry"))
    version = registry.find("twice@1")
    first, looked = mlflow_target._first, []

    def nobody_yet(client: Any, version: Any) -> Any:
        """At the first look another worker's push comes right after it."""
        if looked:
            return first(client, version)
        looked.append(True)
        mlflow_target.push(registry, version, server)
        return None

    monkeypatch.setattr(mlflow_target, "_first", nobody_yet)
    pushed = mlflow_target.push(registry, version, server)
    client = MlflowClient(tracking_uri=server)
    (there,) = client.search_model_versions("name = 'twice'")
    assert (str(there.version), there.tags["torchett.key"]) == (pushed.version, version.key)
    assert str(client.get_model_version_by_alias("twice", "live").version) == pushed.version


@pytest.mark.timeout(300)
def test_mlflow_loads_it_and_refuses_what_was_not_declared(server: str, place: Path) -> None:
    mlflow = pytest.importorskip("mlflow.pyfunc")
    drop(place, seed=4, recipe=COMPILED, name="code")
    done = ett("work", "spool", "--drain", "--poll", "0.1", "--mlflow", server)
    assert done.exit_code == 0, done.output
    os.environ["MLFLOW_TRACKING_URI"] = server
    try:
        model = mlflow.load_model("models:/code@live")
    finally:
        del os.environ["MLFLOW_TRACKING_URI"]
    torch.manual_seed(4)
    trained = torch.nn.Linear(8, 2)
    x = torch.randn(5, 8)
    answer = model.predict({"x": x.numpy()})
    assert abs(answer - trained(x).detach().numpy()).max() <= 1e-5
    with pytest.raises(Exception, match="'x': expected 1 to 16 in dimension 0"):
        model.predict({"x": torch.ones(17, 8).numpy()})
    with pytest.raises(Exception, match=r"expected torch\.float32, found torch\.float64"):
        model.predict({"x": torch.ones(3, 8).double().numpy()})


@pytest.mark.timeout(300)
def test_a_server_that_fails_is_one_line(server: str, place: Path) -> None:
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "1"
    try:
        said = ett("push", "line@1", "--mlflow", "http://127.0.0.1:9")
    finally:
        del os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]
    assert said.exit_code == 2
    assert "MLflow at http://127.0.0.1:9:" in said.output
    assert said.output.strip().endswith("push it again")
