"""Queue and allocation times from Slurm, Kubernetes and the environment; silence is a note."""

import json
import os
import stat
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from torchett.launch.scheduler import kubernetes, slurm
from torchett.launch.scheduler.placement import Placement, asked, placement

# What `scontrol show job` prints, shortened: of 22.05 recorded, of later ones written after it.
SLURM_22 = """\
JobId=1 JobName=j.sh
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A
   SubmitTime=1794746238 EligibleTime=1794746241
   AccrueTime=1794746241
   StartTime=1794746241 EndTime=1794749841 Deadline=N/A
   PreemptEligibleTime=1794746241 PreemptTime=None
   Comment=StartTime
"""
SLURM_23 = """\
JobId=902 JobName=train
   JobState=PENDING Reason=Resources Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   SubmitTime=2026-11-15T07:25:03 EligibleTime=2026-11-15T07:25:03
   StartTime=Unknown EndTime=Unknown Deadline=N/A
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-11-15T07:25:03 Scheduler=Backfill:*
"""
SLURM_24 = (
    "JobId=77 JobName=gpt UserId=a(1) Restarts=1 SubmitTime=1794746000 EligibleTime=1794746000"
    " AccrueTime=1794746000 StartTime=1794746060 EndTime=N/A Partition=gpu"
    " SubmitLine=sbatch --export=SubmitTime=3 x.sh TresPerNode=gres/gpu:8"
)


def test_slurm_waits_from_when_the_job_was_eligible() -> None:
    assert slurm.parsed(SLURM_22) == {
        "scheduler": "slurm", "submit_s": 1794746238.0, "eligible_s": 1794746241.0,
        "submitted_s": 1794746241.0, "allocated_s": 1794746241.0, "restarts": 0,
    }  # fmt: skip


def test_a_time_that_slurm_does_not_know_is_left_out() -> None:
    found = slurm.parsed(SLURM_23)
    local = time.mktime((2026, 11, 15, 7, 25, 3, 0, 0, -1))
    assert found["submitted_s"] == local
    assert "allocated_s" not in found
    assert found["restarts"] == 2


def test_one_line_of_a_newer_slurm() -> None:
    found = slurm.parsed(SLURM_24)
    assert (found["submitted_s"], found["allocated_s"]) == (1794746000.0, 1794746060.0)


def fake_scontrol(folder: Path, script: str) -> dict[str, str]:
    path = folder / "scontrol"
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"SLURM_JOB_ID": "1", "PATH": f"{folder}:/usr/bin:/bin"}


def on_path(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> dict[str, str]:
    monkeypatch.setenv("PATH", env["PATH"])
    return env


def test_slurm_is_asked_for_what_the_environment_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = on_path(monkeypatch, fake_scontrol(tmp_path, f"cat <<'X'\n{SLURM_22}X"))
    found = asked(placement(env), env, 1794746250.0)
    assert (found.submitted_s, found.allocated_s) == (1794746241.0, 1794746241.0)
    assert found.said is not None
    assert found.said["submit_s"] == 1794746238.0
    # What the environment says itself is not overruled.
    env |= {"ETT_SUBMITTED": "1794746000"}
    assert asked(placement(env), env, 1794746250.0).submitted_s == 1794746000.0


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("sleep 30; true", "no answer within 1 s"),
        ("echo 'slurm_load_jobs error: Invalid job id' >&2; exit 1", "Invalid job id"),
        ("exit 1", "scontrol failed"),
    ],
)
def test_a_slurm_that_does_not_answer_costs_a_second_at_most(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = on_path(monkeypatch, fake_scontrol(tmp_path, script))
    began = time.monotonic()
    found = asked(placement(env), env, 10.0)
    assert time.monotonic() - began < 4
    assert found.allocated_s is None
    assert found.note is not None
    assert said in found.note


def test_only_node_0_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = on_path(monkeypatch, fake_scontrol(tmp_path, f"touch {tmp_path}/was-asked"))
    on_node_3 = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NODEID": "3"}
    asked(placement(env | on_node_3), env, 10.0)
    assert not (tmp_path / "was-asked").exists()


def test_times_are_put_in_order_when_clocks_differ() -> None:
    found = asked(Placement(submitted_s=12.0, allocated_s=11.5), {}, 11.0)
    assert (found.submitted_s, found.allocated_s) == (11.0, 11.0)


POD: dict[str, Any] = {
    "metadata": {"name": "gpt-0", "creationTimestamp": "2026-11-15T10:00:00Z"},
    "status": {
        "startTime": "2026-11-15T10:03:01Z",
        "conditions": [
            {"type": kind, "status": status, "lastTransitionTime": f"2026-11-15T10:03:{second}Z"}
            for kind, status, second in (
                ("PodScheduled", "True", "00"),
                ("Initialized", "True", "40"),
                ("Ready", "False", "00"),
            )
        ],
        "containerStatuses": [
            {"restartCount": 1, "state": {"running": {"startedAt": "2026-11-15T10:04:00Z"}}}
        ],
    },
}  # fmt: skip
CREATED = 1794736800.0


def test_a_pods_conditions_say_when_it_was_asked_for_and_placed() -> None:
    assert kubernetes.parsed(POD) == {
        "scheduler": "kubernetes", "submitted_s": CREATED, "allocated_s": CREATED + 180,
        "initialized_s": CREATED + 220, "container_started_s": CREATED + 240, "restarts": 1,
    }  # fmt: skip
    assert kubernetes.parsed({}) == {"scheduler": "kubernetes"}


def test_a_recorded_pod_object(tmp_path: Path) -> None:
    (tmp_path / "pod.json").write_text(json.dumps(POD))
    env = {"ETT_POD": str(tmp_path / "pod.json"), "JOB_COMPLETION_INDEX": "0"}
    found = asked(placement(env), env, CREATED + 300)
    assert (found.submitted_s, found.allocated_s, found.note) == (CREATED, CREATED + 180, None)
    (tmp_path / "pod.json").write_text("[]")
    note = asked(placement(env), env, CREATED).note
    assert note is not None
    assert note.startswith("Kubernetes' times are not known")


def test_the_api_server_is_asked_with_the_pods_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str | None]] = []

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers["Authorization"]))
            body = json.dumps(POD).encode()
            self.send_response(200 if self.path.endswith("/gpt-0") else 403)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    keys = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "ca.crt"],
        cwd=tmp_path, capture_output=True,
    )  # fmt: skip
    if keys.returncode:
        pytest.skip("no openssl here to make a certificate with")
    import ssl

    server = HTTPServer(("127.0.0.1", 0), Api)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.crt", tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "namespace").write_text("ml")
    env = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.server_port),
        "ETT_SERVICE_ACCOUNT": str(tmp_path),
        "POD_NAME": "gpt-0",
    }
    try:
        found = asked(placement(env), env, CREATED + 300)
        refused = asked(placement(env), env | {"POD_NAME": "other"}, CREATED + 300)
    finally:
        server.shutdown()
    assert (found.submitted_s, found.allocated_s) == (CREATED, CREATED + 180)
    assert seen[0] == ("/api/v1/namespaces/ml/pods/gpt-0", "Bearer secret")
    assert refused.note is not None
    assert "403" in refused.note


def test_a_pod_without_an_account_is_not_a_complaint(tmp_path: Path) -> None:
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "ETT_SERVICE_ACCOUNT": str(tmp_path)}
    assert asked(placement(env), env, 10.0) == placement(env)


# A busy machine may take longer to answer than anybody's start-up should wait.
PATIENT = """
from torchett.cli.main import main
from torchett.launch import scheduler
scheduler.ASK_S = 30
main()
"""


def ett_run(runs: Path, env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "SLURM_", "PET_"))}
    return subprocess.run(
        [sys.executable, "-c", PATIENT, *args],
        env=kept | {"ETT_RUNS": str(runs)} | env,
        capture_output=True,
        text=True,
        timeout=60,
    )


def report(runs: Path, job: str) -> dict[str, Any]:
    said = ett_run(runs, {}, "report", job, "--json")
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def test_queue_and_setup_come_from_slurm_and_a_requeue_goes_on_with_the_job(
    tmp_path: Path,
) -> None:
    def launch(submitted: float, started: float, code: int) -> None:
        asked, given = int(submitted), int(started)
        text = f"SubmitTime={asked} EligibleTime={asked} StartTime={given}"
        env = fake_scontrol(tmp_path, f"echo '{text}'") | {"SLURM_JOB_ID": "41"}
        env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
        done = ett_run(
            tmp_path / "runs", env, "run", "--progress", "0", "--", "bash", "-c", f"exit {code}"
        )
        assert done.returncode == code, done.stderr

    now = time.time()
    launch(now - 100, now - 40, 1)
    found = report(tmp_path / "runs", "bash-41")
    assert found["queue_s"] == pytest.approx(60, abs=1.01)
    assert found["accounts"]["hardware_setup"] == pytest.approx(40, abs=3)
    # A second command in the same allocation: the hardware was not given back in between.
    launch(now - 100, now - 40, 1)
    assert report(tmp_path / "runs", "bash-41")["requeue_s"] == 0
    # Requeued: given anew after the last attempt's end.
    time.sleep(2.1)
    launch(time.time(), time.time(), 0)
    found = report(tmp_path / "runs", "bash-41")
    assert found["attempts"] == 3
    assert 0 < found["requeue_s"] < 4
    assert "notes" not in found


def test_a_scheduler_that_does_not_answer_is_a_note_in_the_report(tmp_path: Path) -> None:
    env = fake_scontrol(tmp_path, "exit 1") | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ett_run(tmp_path / "runs", env, "run", "--job", "a", "--progress", "0", "--", "true")
    found = report(tmp_path / "runs", "a")
    assert found["notes"] == ["Slurm's times are not known: scontrol failed"]


def test_an_allocation_is_not_a_step() -> None:
    """In its shell Slurm counts the nodes of the allocation, not those of a job that runs there."""
    shell = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "4", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}
    assert (placement(shell).node, placement(shell).nodes) == (0, 1)
    step = shell | {"SLURM_STEP_ID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2"}
    assert (placement(step).node, placement(step).nodes) == (1, 2)
