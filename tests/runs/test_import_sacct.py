"""Slurm's accounting read as attempts: queue, requeues, ends, GPUs without a process."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchett.cli.main import main
from torchett.ledger.history import settle
from torchett.model.errors import InputError
from torchett.runs.importers.sacct import history_of, parse_sacct

HEAD = "JobID|JobName|Account|QOS|State|ExitCode|Submit|Eligible|Start|End|AllocTRES"
ATTEMPTS = [
    HEAD,
    "7|gpt|team|low|REQUEUED|0:0|1000|1010|1100|1200|cpu=4,gres/gpu=8,node=1",
    "7.batch|batch||||0:0|1100|1100|1100|1200|",
    "7.0|ett||||0:0|1130|1130|1130|1190|",
    "7|gpt|team|low|COMPLETED|0:0|1200|1321|1330|1430|cpu=4,gres/gpu=8,node=1",
    "7.batch|batch||||0:0|1330|1330|1330|1430|",
    "7.0|ett||||0:0|1330|1330|1330|1430|",
    "8|eval|team|low|PENDING|0:0|1000|1000|Unknown|Unknown|",
]


def test_every_attempt_of_a_requeued_job_counts_with_its_queue() -> None:
    job, waiting = parse_sacct(ATTEMPTS, "sacct")
    ledger = settle(history_of(job, 2000.0))
    said = ledger.to_json()
    assert (said["attempts"], said["ranks"], said["queue_s"]) == (2, 8, 90.0)
    assert said["requeue_s"] == 130.0  # given back at 1200, given anew at 1330
    assert said["failures"] == {"infra": 0, "scheduler": 1, "user": 0}
    assert said["rank_seconds"] == 8 * 200.0
    assert waiting.attempts == ()


def test_gpus_that_were_held_without_a_process_are_seen() -> None:
    """30 s before srun began and 10 s after it ended; none where the step took it all."""
    job = parse_sacct(ATTEMPTS, "sacct")[0]
    assert [one.without_process_s(2000.0) for one in job.attempts] == [40.0, 0.0]


def test_without_steps_it_is_not_known() -> None:
    job = parse_sacct([line for line in ATTEMPTS if "." not in line], "sacct")[0]
    assert [one.without_process_s(2000.0) for one in job.attempts] == [None, None]


@pytest.mark.parametrize(
    ("state", "code", "outcome", "cause", "domain"),
    [
        ("PREEMPTED", "0:0", "preempted", "preemption", "scheduler"),
        ("FAILED", "3:0", "failed", "exit_3", "infra"),
        ("TIMEOUT", "0:15", "failed", "time_limit", "scheduler"),
        ("NODE_FAIL", "1:0", "failed", "node_failure", "infra"),
        ("CANCELLED by 1000", "0:15", "failed", "user_cancel", "user"),
        ("OUT_OF_MEMORY", "0:125", "failed", "host_oom_kill", "infra"),
    ],
)
def test_a_state_of_slurm_says_who_answers(
    state: str, code: str, outcome: str, cause: str, domain: str
) -> None:
    line = f"7|gpt|team|low|{state}|{code}|1000|1000|1100|1200|gres/gpu=1"
    history = history_of(parse_sacct([HEAD, line], "sacct")[0], 2000.0)
    attempt = history.job.attempts[0]
    assert (attempt.outcome, attempt.cause) == (outcome, cause)
    assert settle(history).failures[domain] == 1  # type: ignore[index]


def test_a_job_that_still_runs_is_live() -> None:
    line = "7|gpt|team|low|RUNNING|0:0|1000|1000|1100|Unknown|gres/gpu=1"
    history = history_of(parse_sacct([HEAD, line], "sacct")[0], 1500.0)
    ledger = settle(history)
    assert ledger.to_json()["rank_seconds"] == 400.0
    assert sum(ledger.failures.values()) == 0


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["JobID|State", "1|x"], "expected a header of `sacct -P` with Submit, Start, End"),
        ([], "f:1: expected a header"),
        ([HEAD, "7|a"], "f:2: expected 11 cells, found 2"),
        ([HEAD, "7|g|t|q|FAILED|1:0|1000|1000|1100|1050|"], "f:2: expected Submit ≤ Start ≤ End"),
    ],
)
def test_what_is_not_sacct_is_refused_in_one_line(lines: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_sacct(lines, "f")


def test_what_sacct_says_is_one_line(tmp_path: Path) -> None:
    sacct = tmp_path / "sacct"
    sacct.write_text("#!/bin/sh\necho 'sacct: fatal: no configuration' >&2\nexit 1\n")
    sacct.chmod(0o755)
    said = CliRunner().invoke(main, ["slurm", "jobs"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert (said.exit_code, said.output) == (2, "ett: sacct: fatal: no configuration\n")


def test_jobs_become_run_folders_once(tmp_path: Path) -> None:
    table = tmp_path / "jobs.psv"
    table.write_text("\n".join(ATTEMPTS) + "\n")
    into = tmp_path / "runs"
    for said in ("1 jobs written", "0 jobs written", "1 were there already"):
        done = CliRunner().invoke(main, ["slurm", "jobs", str(table), "--into", str(into)])
        assert done.exit_code == 0
        assert said in done.output or said.startswith("1 were")
    shown = CliRunner().invoke(main, ["report", str(into / "gpt-7"), "--json"])
    assert json.loads(shown.output)["requeue_s"] == 130.0
    listed = CliRunner().invoke(main, ["slurm", "jobs", str(table), "--json"])
    job = json.loads(listed.output)["jobs"][0]
    assert job["without_process_gpu_h"] == pytest.approx(8 * 40 / 3600)
    assert (job["attempts"], job["preempted"], job["state"]) == (2, 1, "COMPLETED")


def test_jobs_are_taken_into_a_fleet(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    table = tmp_path / "jobs.psv"
    table.write_text("\n".join(ATTEMPTS) + "\n")
    done = CliRunner().invoke(
        main, ["slurm", "jobs", str(table), "--fleet", str(tmp_path / "fleet")]
    )
    assert "1 jobs taken into" in done.output
    sql = "SELECT attempts FROM jobs"
    asked = ["fleet", "query", sql, "--json", "--fleet", str(tmp_path / "fleet")]
    assert json.loads(CliRunner().invoke(main, asked).output) == [{"attempts": 2}]
