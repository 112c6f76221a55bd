"""Why an attempt ended, from an exit status, what agents saw, and what ranks wrote."""

import json
from pathlib import Path

import pytest
from player import HERE, flight, launched

from torchett.failures import classify
from torchett.model import Attempt
from torchett.runs.reader import RunReader

EXIT_1 = {"event": "end", "attempt": 0, "t_ns": 90, "outcome": "failed", "cause": "exit_1"}
START = {"event": "start", "attempt": 0, "t_ns": 1}


def failure(rank: int, cause: str, t_ns: int = 80, restart: int = 0) -> dict[str, object]:
    lane = {"attempt": 0, "restart": restart, "rank": rank}
    return {"event": "failure", **lane, "cause": cause, "t_ns": t_ns}


def read(run: Path) -> tuple[Attempt, ...]:
    reader = RunReader(run).poll()
    assert reader.notes == []
    return reader.job.attempts


def of(attempt: Attempt) -> tuple[str | None, int | None, str | None]:
    return attempt.cause, attempt.failed_rank, attempt.domain


def test_the_agent_knows_which_rank_was_killed(tmp_path: Path) -> None:
    run = tmp_path / "a"
    launched(run, START, failure(0, "exit_1"), failure(1, "SIGKILL"), EXIT_1)
    assert of(read(run)[0]) == ("SIGKILL", 1, None)


def test_another_nodes_agent_is_heard_too(tmp_path: Path) -> None:
    run = tmp_path / "a"
    launched(run, START, failure(0, "exit_1"), EXIT_1)
    launched(run, failure(9, "SIGSEGV"), node=1)
    assert of(read(run)[0]) == ("SIGSEGV", 9, None)


def test_a_restart_of_the_agent_has_its_own_cause(tmp_path: Path) -> None:
    run = tmp_path / "a"
    end = {"event": "end", "attempt": 0, "restart": 0, "t_ns": 40, "outcome": "failed"}
    launched(
        run,
        START,
        failure(1, "SIGKILL", 30),
        end | {"cause": "SIGKILL"},
        {"event": "start", "attempt": 0, "restart": 1, "t_ns": 50},
        failure(0, "hang", 80, restart=1),
        EXIT_1,
    )
    assert [of(attempt) for attempt in read(run)] == [("SIGKILL", 1, None), ("hang", 0, None)]


def test_an_exception_in_a_record_is_the_cause_and_the_users(tmp_path: Path) -> None:
    run = tmp_path / "a"
    launched(run, START, failure(0, "exit_1"), failure(1, "exit_1"), EXIT_1)
    for rank, (at, error) in enumerate(
        [(70, "RuntimeError: … Connection closed by peer"), (75, "ValueError: bad lr")]
    ):
        writer = flight(run, rank=rank, ranks=2)
        writer.close({"exit_ns": at, "error": error})
    assert of(read(run)[0]) == ("ValueError: bad lr", 1, "user")
    assert RunReader(run).poll().ledger().failures == {"infra": 0, "scheduler": 0, "user": 1}


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "AcceleratorError: CUDA error: unspecified launch failure",
        "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
        "OSError: [Errno 116] Stale file handle: '/data/a'",
    ],
)
def test_a_report_and_the_exit_line_name_the_same_domain(tmp_path: Path, error: str) -> None:
    run = tmp_path / "a"
    launched(run, START, failure(0, "exit_1"), EXIT_1)
    flight(run, rank=0, ranks=1).close({"exit_ns": 70, "error": error})
    said = classify(error).domain
    assert said != "unknown"
    assert of(read(run)[0]) == (error, 0, said)
    assert RunReader(run).poll().ledger().failures[said] == 1


def test_a_crash_before_the_record_is_open_is_known(tmp_path: Path) -> None:
    run = tmp_path / "a"
    launched(run, START, EXIT_1)
    (run / "attempt-0").mkdir()
    crash = {"attempt": 0, "restart": 0, "rank": 0, "error": "ImportError: x", "t_ns": 80}
    path = run / "attempt-0" / "crash-0-7.json"
    path.write_text(json.dumps(crash | {"anchor": HERE.to_json()}))
    assert of(read(run)[0]) == ("ImportError: x", 0, "user")
    said = RunReader(run).poll().history().unrecorded
    assert said is not None
    assert said.endswith("failed before its first step, so nothing was recorded: ImportError: x")
    path.write_text("{")
    assert RunReader(run).poll().notes == [f"{path}: expected what a rank raised, skipped"]


def test_what_the_exit_status_says_clearly_stays(tmp_path: Path) -> None:
    """A status that Python does not give for an exception, a kill of the command, a preemption."""
    for cause in ("exit_3", "SIGKILL"):
        run = tmp_path / cause
        launched(run, START, EXIT_1 | {"cause": cause})
        flight(run).close({"exit_ns": 70, "error": "ValueError: caught by a shell"})
        assert of(read(run)[0]) == (cause, None, None)
    run = tmp_path / "preempted"
    launched(run, START, failure(1, "SIGTERM"), EXIT_1 | {"outcome": "preempted"})
    assert of(read(run)[0]) == ("exit_1", None, None)


def test_why_nothing_was_recorded(tmp_path: Path) -> None:
    def said(name: str, **head: bool) -> str:
        launched(tmp_path / name, START, EXIT_1, **head)
        return str(RunReader(tmp_path / name).poll().history().unrecorded)

    assert "--as-is" in said("as-is", as_is=True)
    assert "ETT_DISABLE=1" in said("disabled", disabled=True)
    assert "no process of the command built a model" in said("plain")
    launched(tmp_path / "live", START)
    assert RunReader(tmp_path / "live").poll().history().unrecorded is None
    launched(tmp_path / "full", START, EXIT_1)
    flight(tmp_path / "full").ring_path.unlink()
    assert "the disk of" in str(RunReader(tmp_path / "full").poll().history().unrecorded)
