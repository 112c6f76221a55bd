"""`ett failure classify`: files, folders and runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from torchett.cli.main import main


def ett(*args: str | Path, stdin: str | None = None, **env: str) -> Result:
    command = ["failure", "classify", *map(str, args)]
    return CliRunner().invoke(main, command, input=stdin, env=env)


def objects(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_one_object_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 1\n[rank3]: torch.OutOfMemoryError: CUDA out of memory\n")
    (tmp_path / "b.log").write_text(
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT X DUE TO TIME LIMIT ***"
    )
    first, second = objects(ett(tmp_path / "a.log", tmp_path / "b.log", "--json"))
    assert first == {
        "file": str(tmp_path / "a.log"),
        "category": "cuda_oom",
        "domain": "user",
        "outlook": "stop",
        "evidence": {
            "file": str(tmp_path / "a.log"),
            "line": 2,
            "text": "[rank3]: torch.OutOfMemoryError: CUDA out of memory",
            "rule": "cuda/cuda-out-of-memory",
            "role": "initiating",
        },
        "ranks": {"3": "initiating"},
        "initiating_ranks": [3],
    }
    assert (second["category"], second["domain"]) == ("time_limit", "scheduler")


def test_unknown_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("ChildFailedError\nexitcode  : 1\n")
    (tmp_path / "empty").write_text("")
    found = objects(ett(tmp_path / "a.log", tmp_path / "empty", "--json"))
    assert [(one["category"], one["domain"]) for one in found] == [("unknown", "unknown")] * 2
    assert found[1]["evidence"] is None


def test_standard_input_and_the_table() -> None:
    shown = ett("-", stdin="ModuleNotFoundError: No module named 'flash_attn'\n")
    assert shown.exit_code == 0
    assert "import_error" in shown.output
    assert "flash_attn" in shown.output


def test_error_file_of_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "none_x" / "attempt_0" / "3" / "error.json"
    path.parent.mkdir(parents=True)
    stack = (
        'Traceback (most recent call last):\n  File "t.py", line 1, in f\n    g()\nKeyError: 1\n'
    )
    said = {"message": "KeyError: 1", "extraInfo": {"py_callstack": stack, "timestamp": "1"}}
    path.write_text(json.dumps({"message": said}))
    (found,) = objects(ett(path, "--json"))
    assert (found["category"], found["initiating_ranks"]) == ("user_code_exception", [3])


def test_folder_of_the_agents_logs(tmp_path: Path) -> None:
    """The last attempt counts; a rank is its folder's name."""
    texts = {
        (0, 0): "CUDA out of memory",
        (1, 0): "Connection closed by remote peer n1<1>",
        (1, 1): "OSError: [Errno 28] No space left on device",
    }
    for (attempt, rank), text in texts.items():
        folder = tmp_path / "none_abc" / f"attempt_{attempt}" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(f"{text}\n")
        (folder / "stdout.log").write_text("")
    (found,) = objects(ett(tmp_path, "--json"))
    assert (found["category"], found["initiating_ranks"]) == ("storage_full", [1])
    assert found["ranks"] == {"0": "cascade", "1": "initiating"}
    assert found["evidence"]["file"].endswith("attempt_1/1/stderr.log")


POD = {
    "kind": "Pod",
    "metadata": {"name": "w-0"},
    "status": {
        "phase": "Failed",
        "containerStatuses": [
            {"name": "t", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
        ],
    },
}


@pytest.mark.parametrize(
    ("status", "category"),
    [
        (POD["status"], "host_oom_kill"),
        ({"reason": "Evicted", "message": "The node was low on resource: memory."}, "k8s_eviction"),
        (
            {"conditions": [{"type": "DisruptionTarget", "reason": "PreemptionByScheduler"}]},
            "preemption",
        ),
        ({"reason": "NodeLost"}, "node_failure"),
        ({"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the"
          " specified deadline"}, "time_limit"),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
         "user_code_exception"),
        ({"containerStatuses": [{"lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
                                 "state": {"running": {}}}]}, "unknown"),
        ({"containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]}, "unknown"),
    ],
)  # fmt: skip
def test_pods(tmp_path: Path, status: dict[str, Any], category: str) -> None:
    (tmp_path / "pod.json").write_text(json.dumps({**POD, "status": status}))
    listed = {"kind": "List", "items": [{**POD, "status": status}]}
    (tmp_path / "pods.json").write_text(json.dumps(listed, indent=1))
    found = objects(ett(tmp_path / "pod.json", tmp_path / "pods.json", "--json"))
    assert [one["category"] for one in found] == [category] * 2


def run_of(folder: Path, *causes: str | None) -> Path:
    run = folder / "ett-runs" / "gpt"
    run.mkdir(parents=True)
    facts: list[dict[str, Any]] = [{"format": "attempts/1", "job": "gpt", "node": 0}]
    for number, cause in enumerate(causes):
        facts.append({"event": "start", "attempt": number, "t_ns": number})
        end = {"event": "end", "attempt": number, "t_ns": number + 1}
        facts.append(end | {"outcome": "failed" if cause else "success", "cause": cause})
    (run / "attempts-0.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    return run


@pytest.mark.parametrize(
    ("causes", "category", "line"),
    [
        (["SIGKILL"], "host_oom_kill", 3),
        (["exit_143", None], "external_sigterm", 3),
        (["SIGKILL", "ValueError: bad rows"], "user_code_exception", 5),
        (["gpu_ecc"], "gpu_ecc", 3),
        (["exit_1"], "unknown", 3),
    ],
)
def test_runs(tmp_path: Path, causes: list[str | None], category: str, line: int) -> None:
    run = run_of(tmp_path, *causes)
    (found,) = objects(ett(run, "--json"))
    assert found["category"] == category
    assert found["evidence"]["line"] == line
    (named,) = objects(ett("gpt", "--json", ETT_RUNS=str(run.parent)))
    assert named["category"] == category


def test_a_run_with_the_agents_logs(tmp_path: Path) -> None:
    run = run_of(tmp_path, "exit_1")
    folder = run / "torchelastic-0" / "x" / "attempt_0" / "1"
    folder.mkdir(parents=True)
    (folder / "error.json").write_text(json.dumps({"message": {"message": "KeyError: 'a'"}}))
    (found,) = objects(ett(run, "--json"))
    assert (found["category"], found["initiating_ranks"]) == ("user_code_exception", [1])


def test_a_run_that_went_well_has_no_verdict(tmp_path: Path) -> None:
    result = ett(run_of(tmp_path, None))
    assert result.exit_code == 2
    assert "expected a failed attempt" in result.output


def test_of_a_very_long_file_the_end_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchett.restarts.sources._LONGEST", 200)
    (tmp_path / "a.log").write_text("CUDA out of memory\n" + "step\n" * 1000 + "KeyError: 1\n")
    (found,) = objects(ett(tmp_path / "a.log", "--json"))
    assert (found["category"], found["evidence"]["line"]) == ("user_code_exception", 1002)


def test_own_rules_and_a_good_log(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        "[[rule]]\nname='x'\ncategory='node_failure'\npattern='KeyError'\nstrength='decisive'"
    )
    (tmp_path / "a.log").write_text("KeyError: 1\n")
    (tmp_path / "good.log").write_text("KeyError: 7\n")
    (found,) = objects(ett(tmp_path / "a.log", "--json", "--rules", tmp_path / "own.toml"))
    assert found["category"] == "node_failure"
    (found,) = objects(
        ett(tmp_path / "a.log", "--json", ETT_FAILURE_RULES=str(tmp_path / "own.toml"))
    )
    assert found["category"] == "node_failure"
    (found,) = objects(ett(tmp_path / "a.log", "--json", "--good", tmp_path / "good.log"))
    assert found["category"] == "unknown"


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "trace_1").write_bytes(b"\x80\x04garbage")
    (tmp_path / "own.toml").write_text("[[rule]")
    (tmp_path / "a.log").write_text("x")
    for args in (
        [tmp_path / "nowhere"],
        [tmp_path / "binary"],
        [tmp_path / "trace_1"],
        [tmp_path / "a.log", "--rules", tmp_path / "own.toml"],
        [tmp_path / "a.log", "--good", tmp_path / "nowhere"],
    ):
        result = ett(*args)
        assert result.exit_code == 2, args
        assert result.output.startswith("ett: "), result.output
        assert result.output.count("\n") <= 2
    assert ett().exit_code == 2
