"""A fleet takes in what other tools wrote; what Slurm held and nobody used is an account."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from torchett.cli.main import main
from torchett.fleet.intake import sacct
from torchett.model.errors import InputError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _histories import Long  # noqa: E402

S = 10**9
HEAD = "JobID|Account|User|Partition|QOS|State|Submit|Start|End|AllocTRES"
SAMPLE = ROOT.parent / "shared" / "slurm" / "sacct_sample.psv"


def lines(*rows: str) -> list[str]:
    return [HEAD, *rows]


def row(job: str, state: str, submit: int, start: int, end: int | str, gpus: int = 8) -> str:
    tres = f"billing=1,cpu=1,gres/gpu={gpus},gres/gpu:h100={gpus},node=1"
    return f"{job}|teama|ada|a100|prod|{state}|{submit}|{start}|{end}|{tres}"


def ett(place: Path, *args: str, code: int = 0) -> Any:
    done = CliRunner().invoke(
        main, ["fleet", *args, "--fleet", str(place / "fleet"), "--json"], catch_exceptions=False
    )
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if done.stdout else None


def test_time_without_a_step_is_held_idle() -> None:
    """allocated 3600 ├─ 100 idle ─┤ 77.0: 1000 ├─ 500 idle ─┤ 77.1: 1000 (0.5 over) ├ idle"""
    begin = 1_790_000_000
    (job,) = sacct.parse(
        lines(
            row("77", "COMPLETED", begin - 50, begin, begin + 3600),
            row("77.extern", "COMPLETED", begin, begin, begin + 3600),
            row("77.0", "COMPLETED", begin, begin + 100, begin + 1100),
            row("77.1", "COMPLETED", begin, begin + 1600, begin + 2600),
        ),
        "sacct",
        "default",
        0,
    )
    idle = 8 * (100 + 500 + 1000) * S
    assert job.job["held_idle_ns"] == idle
    assert job.job["unattributed_ns"] == 8 * 3600 * S - idle
    assert job.job["rank_ns"] == 8 * 3600 * S
    assert job.job["queue_ns"] == 50 * S
    assert (job.job["team"], job.job["queue"], job.job["ranks"]) == ("teama", "a100", 8)
    assert json.loads(job.job["labels"]) == {"slurm_job": "77"}
    by_account = dict.fromkeys(("held_idle", "unattributed"), 0)
    for one in job.hours:
        by_account[one["account"]] += one["ns"]
    assert by_account == {"held_idle": idle, "unattributed": 8 * 3600 * S - idle}


def test_without_steps_it_is_not_known_what_was_idle() -> None:
    (job,) = sacct.parse(lines(row("1", "COMPLETED", 5, 1000, 2000)), "sacct", "p", 0)
    assert (job.job["held_idle_ns"], job.job["unattributed_ns"]) == (0, 8000 * S)
    assert job.job["ett_percent"] is None


def test_a_requeued_job_is_one_with_several_attempts() -> None:
    (job,) = sacct.parse(
        lines(
            row("2", "PREEMPTED", 900, 1000, 1100),
            row("2", "NODE_FAIL", 1100, 1300, 1400),
            row("2", "RUNNING", 1400, 1500, "Unknown"),
        ),
        "sacct",
        "p",
        1600,
    )
    assert [one["state"] for one in job.attempts] == ["preempted", "failed", "live"]
    assert [one["domain"] for one in job.attempts] == ["scheduler", "infra", None]
    assert job.live
    assert job.job["requeue_ns"] == 300 * S
    assert job.job["rank_ns"] == 8 * 300 * S


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (["a|b|c"], ":1: expected a header"),
        ([HEAD, "1|2"], ":2: expected 10 cells"),
        ([HEAD, row("1", "COMPLETED", 1, 2, 10**15)], ": job 1: expected times"),
    ],
)
def test_what_is_not_sacct_names_file_and_line(text: list[str], expected: str) -> None:
    with pytest.raises(InputError, match=f"sacct{expected}"):
        list(sacct.parse(text, "sacct", "p", 0))


def test_jobs_that_never_held_a_gpu_are_left_out() -> None:
    rows = lines(row("1", "CANCELLED by 0", 5, "Unknown", 9), "2|a|u|p|q|COMPLETED|1|2|3|cpu=4")
    assert list(sacct.parse(rows, "sacct", "p", 0)) == []


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample of a real Slurm is not here")
def test_a_real_sacct(tmp_path: Path) -> None:
    assert ett(tmp_path, "import", "--format", "sacct", str(SAMPLE))["jobs"] == 4
    rows = {one["job"]: one for one in ett(tmp_path, "ls")}
    assert rows["slurm-2"]["attempts"] == 2
    assert rows["slurm-4"]["ranks"] == 8
    whole = ett(tmp_path, "show")["total"]
    assert whole["rank_ns"] == sum(one["rank_ns"] for one in rows.values()) > 0
    before = ett(tmp_path, "show", "--by", "user")
    ett(tmp_path, "import", "--format", "sacct", str(SAMPLE))  # again: nothing twice
    assert ett(tmp_path, "show", "--by", "user") == before


def test_a_folder_of_files_is_taken_in_at_once(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("a", "b"):
        text = "".join(
            f"2026-11-01 00:{i // 60:02}:{i % 60:02} step {i} loss 1.0\n" for i in range(99)
        )
        (logs / f"{name}.log").write_text(text)
    (logs / "c.log").write_text("no steps here\n")
    done = ett(tmp_path, "import", "--format", "log", str(logs), "--label", "team=x")
    assert done["jobs"] == 2
    assert len(done["errors"]) == 1
    assert {one["job"] for one in ett(tmp_path, "ls", "--where", "team=x")} == {"a", "b"}
    assert all(one["source"] == "imported" for one in ett(tmp_path, "ls"))
    ett(tmp_path, "import", "--format", "log", str(logs), "--label", "team=x")
    assert len(ett(tmp_path, "ls")) == 2
    assert ett(tmp_path, "rollup", "--all")["jobs"] == 2


def test_goodput_entries_are_taken_in(tmp_path: Path) -> None:
    file = tmp_path / "gp.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in Long(steps=50, restarts=1).entries()))
    assert ett(tmp_path, "import", "--format", "goodput", str(file))["jobs"] == 1
    (row_,) = ett(tmp_path, "ls")
    assert row_["job"] == "gp"
    assert row_["ett_percent"] > 10


def test_a_job_that_recorded_itself_is_not_counted_twice(tmp_path: Path) -> None:
    Long(steps=50, restarts=0).write_records(tmp_path / "gpt")
    ett(tmp_path, "rollup", str(tmp_path / "gpt"), "--label", "slurm_job=77")
    file = tmp_path / "s.psv"
    rows = lines(row("77", "COMPLETED", 5, 1000, 2000), row("78", "COMPLETED", 5, 1000, 2000))
    file.write_text("\n".join(rows))
    assert ett(tmp_path, "import", "--format", "sacct", str(file))["jobs"] == 1
    assert {one["job"] for one in ett(tmp_path, "ls")} == {"gpt", "slurm-78"}
