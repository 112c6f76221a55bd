"""The output of sinks agrees with the ledger."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from torchett.cli.main import main
from torchett.ledger import History, settle
from torchett.model.errors import RunError
from torchett.runs import events
from torchett.sinks import perfetto
from torchett.sinks.scalars import final, points

JOB = """\
{"event":"job","format":"events/1","job":"toy","ranks":2}
{"event":"attempt_start","attempt":0,"t":0.0,"submitted":-30,"allocated":-5}
{"event":"span","attempt":0,"rank":0,"account":"imports","t0":0.5,"t1":3}
{"event":"span","attempt":0,"rank":1,"account":"x-mine","t0":1,"t1":2}
{"event":"step","attempt":0,"rank":0,"step":0,"t0":4,"t1":8}
{"event":"step","attempt":0,"rank":0,"step":1,"t0":8,"t1":12}
{"event":"step","attempt":0,"rank":1,"step":0,"t0":4,"t1":8}
{"event":"span","attempt":0,"rank":1,"account":"x-mine","t0":9,"t1":10}
{"event":"checkpoint","attempt":0,"step":0,"durable":10}
{"event":"attempt_end","attempt":0,"t":14,"outcome":"failed","cause":"nccl_timeout"}
{"event":"attempt_start","attempt":1,"t":16}
{"event":"step","attempt":1,"rank":0,"step":1,"t0":20,"t1":24}
{"event":"step","attempt":1,"rank":1,"step":1,"t0":21,"t1":24}
{"event":"attempt_end","attempt":1,"t":26,"outcome":"success"}
"""


@pytest.fixture
def history() -> History:
    return events.parse(JOB.splitlines())


@pytest.fixture
def ett(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ETT_RUNS", str(tmp_path / "runs"))
    (tmp_path / "toy.jsonl").write_text(JOB)

    def call(*args: str) -> Result:
        return CliRunner().invoke(main, args)

    assert call("import", str(tmp_path / "toy.jsonl"), "toy").exit_code == 0
    return call


def test_the_last_point_is_the_ledger(history: History) -> None:
    ledger = settle(history)
    found = points(ledger, history, 31)
    assert len(found) == 31
    last = found[-1].values
    assert last["ett/percent"] == pytest.approx(ledger.ett_percent)
    for group, ns in ledger.groups.items():
        assert last[f"ett/seconds/{group}"] == pytest.approx(ns / 1e9)
    assert found[-1].at_s == pytest.approx(31)


def test_earlier_points_are_the_time_up_to_them(history: History) -> None:
    found = {round(p.at_s): p.values for p in points(settle(history), history, 31)}
    # The window begins with the allocation, 5 s before the start.
    assert found[5]["ett/seconds/start"] == pytest.approx(10)
    assert found[13]["ett/seconds/effective"] == pytest.approx(8)
    assert found[13]["ett/percent"] == pytest.approx(100 * 8 / 26)
    assert found[13]["ett/step_seconds"] == 4
    assert "ett/step_seconds" not in found[15]


def test_final_figures_are_the_reports(history: History) -> None:
    ledger = settle(history)
    found, report = final(ledger), ledger.to_json()
    assert found["ett/final/ett_percent"] == report["ett_percent"]
    assert found["ett/final/accounts/unsaved"] == report["accounts"]["unsaved"]
    assert found["ett/final/failures/infra"] == 1
    assert found["ett/final/time_to_recover_s/count"] == 1


def test_a_trace_sums_to_the_ledger_and_has_a_track_per_rank(history: History) -> None:
    ledger = settle(history)
    trace = json.loads("".join(perfetto.write(ledger, history)))
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    sums: Counter[str] = Counter()
    for event in slices:
        sums[event["name"]] += round(event["dur"] * 1e3)
    assert dict(sums) == ledger.accounts
    assert {event["tid"] for event in slices} == {0, 1}
    assert trace["otherData"]["ett_percent"] == ledger.ett_percent
    names = [e["name"] for e in trace["traceEvents"] if e["pid"] == 0 and e["ph"] in "Xi"]
    assert names == [
        "attempt 0: failed (nccl_timeout)", "attempt 1: success", "checkpoint of step 0",
    ]  # fmt: skip
    mine = [(e["ts"] / 1e6, e["cat"]) for e in slices if e["name"] == "x-mine"]
    assert mine == [(6, "start"), (14, "in_loop")]


def test_a_long_jobs_steps_are_joined(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "_MOST_STEPS", 1)
    trace = json.loads("".join(perfetto.write(settle(history), history)))
    lane = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1 and e["tid"] == 1]
    sums = sum(event["dur"] for event in lane) / 1e6
    assert sums == pytest.approx(31)


def test_a_trace_that_fails_leaves_no_file(ett: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def broken(*_: object) -> Any:
        yield "{"
        raise RunError("toy: the slices of its trace do not sum to the ledger")

    monkeypatch.setattr(perfetto, "write", broken)
    said = ett("export", "toy", "--format", "perfetto", "-o", str(tmp_path / "t.json"))
    assert said.exit_code == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs", "toy.jsonl"]


def records(path: Path) -> list[bytes]:
    """The records of an event file."""
    data, at, out = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        out.append(data[at + 12 : at + 12 + size])
        at += size + 16
    return out


def test_tensorboard(ett: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    said = ett("export", "toy", "--format", "tensorboard", "-o", str(tmp_path / "tb"))
    assert said.exit_code == 0, said.output
    found: dict[str, float] = {}
    for file in (tmp_path / "tb").iterdir():
        for record in records(file):
            for value in Event.FromString(record).summary.value:
                number = value.tensor.float_val[0] if value.tensor.float_val else value.simple_value
                found[value.tag] = number
    report = json.loads(ett("report", "toy", "--json").stdout)
    assert found["ett/percent"] == pytest.approx(report["ett_percent"], rel=1e-5)
    assert found["ett/final/rank_seconds"] == pytest.approx(report["rank_seconds"])


def test_mlflow(ett: Any, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    said = ett("export", "toy", "--format", "mlflow", "-o", str(tmp_path / "ml"))
    assert said.exit_code == 0, said.output
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "ml").as_uri())
    experiment = client.get_experiment_by_name("torchett")
    (run,) = client.search_runs([experiment.experiment_id])
    report = json.loads(ett("report", "toy", "--json").stdout)
    assert run.data.metrics["ett/percent"] == pytest.approx(report["ett_percent"])
    assert len(client.get_metric_history(run.info.run_id, "ett/percent")) == 100


def test_wandb(ett: Any, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    said = ett("export", "toy", "--format", "wandb", "-o", str(tmp_path / "wb"))
    assert said.exit_code == 0, said.output
    (file,) = (tmp_path / "wb").glob("wandb/offline-run-*/run-*.wandb")
    assert b"ett/percent" in file.read_bytes()


@pytest.mark.parametrize("form", ["tensorboard", "wandb", "mlflow"])
def test_a_sink_that_is_not_installed_is_one_line(form: str, ett: Any, tmp_path: Path) -> None:
    hidden = {"tensorboard": ["tensorboard", "tensorboardX"]}.get(form, [form])
    code = (
        f"import sys\nfor name in {hidden}: sys.modules[name] = None\n"
        "from torchett.cli.main import main\nmain()"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, "export", "toy", "--format", form, "-o", str(tmp_path / "o")],
        env=os.environ | {"ETT_RUNS": str(tmp_path / "runs")},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert said.returncode == 2
    assert said.stderr == f"ett: {form}: not installed; pip install 'torchett[{form}]'\n"
    assert not (tmp_path / "o").exists()


def test_a_running_job_is_followed_to_its_end(tmp_path: Path) -> None:
    from torchett.record.attempt_log import AttemptLog
    from torchett.record.clock import anchor, now_ns
    from torchett.runs.reader import RunReader
    from torchett.sinks.feed import follow

    log = AttemptLog(tmp_path / "job", job="job", node=0, anchor=anchor())
    log.append({"event": "start", "attempt": 0, "t_ns": now_ns()})
    seen: list[Any] = []
    looks = 0

    class Sink:
        def log(self, point: Any) -> None:
            seen.append(point)

        def close(self, ledger: Any) -> None:
            seen.append(ledger.to_json()["attempts"])

    def wait() -> None:
        nonlocal looks
        looks += 1
        log.beat()
        if looks == 2:
            log.append({"event": "end", "attempt": 0, "t_ns": now_ns(), "outcome": "success"})

    follow(Sink(), RunReader(tmp_path / "job"), wait)
    assert looks == 3  # one look more after the end: no other attempt came
    assert [point.at_s for point in seen[:3]] == sorted(point.at_s for point in seen[:3])
    assert seen[-1] == 1


def test_only_sinks_follow(ett: Any) -> None:
    said = ett("export", "toy", "--follow", "3")
    assert said.exit_code == 2
    assert "--follow: expected tensorboard, wandb or mlflow, found events" in said.stderr


def test_a_sink_needs_a_folder(ett: Any, tmp_path: Path) -> None:
    said = ett("export", "toy", "--format", "wandb")
    assert said.exit_code == 2
    assert said.stderr.startswith("ett: --format wandb: expected a folder to write to (-o DIR)")
    said = ett("export", "toy", "--format", "mlflow", "-o", str(tmp_path / "toy.jsonl"))
    assert said.exit_code == 2
    assert "expected a folder, found a file" in said.stderr


def test_the_frameworks_are_not_needed_to_import_a_sink() -> None:
    for name in ("tensorboard", "wandb", "mlflow", "perfetto", "feed"):
        assert importlib.util.find_spec(f"torchett.sinks.{name}") is not None
        __import__(f"torchett.sinks.{name}")
