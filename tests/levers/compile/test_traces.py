"""Reading a TORCH_TRACE folder, whole or damaged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchett.levers.compile.doctor.doctor import diagnose
from torchett.levers.compile.observe.traces import is_trace, read_trace
from torchett.model.errors import InputError

SCRIPT = """
import torch
def f(x, s=2): return (x * s).sum()
g = torch.compile(f, backend="aot_eager")
w = torch.ones(4, requires_grad=True)
g(w).backward()
g(torch.ones(4))                 # no requires_grad: another kind of tensor
g(torch.ones(6))                 # size
g(torch.ones(6), 3)              # number
with torch.no_grad(): g(torch.ones(7), 9)
torch._dynamo.reset()
g(torch.ones(4))
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace folder that torch itself wrote."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("trace")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    env = os.environ | {"TORCH_TRACE": str(folder / "logs"), "ETT_DISABLE": "1"}
    subprocess.run([sys.executable, str(script)], env=env, check=True, timeout=120)
    return folder / "logs"


def test_a_trace_gives_the_recompiles_and_their_reasons(trace: Path) -> None:
    found = read_trace(trace)
    assert (found.files, found.damaged) == (1, 0)
    forwards = [one for _, _, one in found.compiles if one.part == "forward"]
    assert [one.id for one in forwards] == ["0/0", "0/1", "0/2", "0/3", "0/4", "0/0"]
    assert [one.part for _, _, one in found.compiles].count("backward") == 1
    assert {(one.name, Path(one.file or "").name, one.line) for one in forwards} == {
        ("f", "train.py", 3)
    }
    for one in forwards:
        assert sum(one.by_ns.values()) == pytest.approx(one.ns, rel=0.01)
        assert one.by_ns["dynamo"] > 0 < one.by_ns["backend"]
    diagnosis = diagnose(found.compiles)
    assert [one.reason.kind for one in diagnosis.recompiles] == [
        "dtype", "size", "number", "grad_mode",
    ]  # fmt: skip
    assert set(diagnosis.sources) == {"L['x']", "L['s']"}
    assert diagnosis.lost_ns < diagnosis.ns


def test_a_trace_cut_anywhere_or_full_of_holes_is_read_as_far_as_it_goes(
    trace: Path, tmp_path: Path
) -> None:
    whole = next(trace.glob("*.log")).read_bytes()
    most = len(read_trace(trace).compiles)
    counts = []
    for cut in range(0, len(whole), len(whole) // 40):
        (tmp_path / "cut.log").write_bytes(whole[:cut])
        if is_trace(tmp_path):
            counts.append(len(read_trace(tmp_path).compiles))
    assert counts == sorted(counts)
    assert counts[-1] >= most - 1
    for start in range(2000, len(whole), len(whole) // 20):
        holed = whole[:start] + b"\xff\x00{]" * 100 + whole[start + 900 :]
        (tmp_path / "cut.log").write_bytes(holed)
        assert len(read_trace(tmp_path).compiles) >= most - 2


OLD = """\
V0403 07:28:48.051000 1398 torch/_logging/structured.py:19] {"str": ["/data/train.py", 0]}
V0403 07:28:49.051000 1398 torch/_dynamo/utils.py:8] {"compilation_metrics": {"co_name": "fn",\
 "co_filename": "/data/train.py", "co_firstlineno": 7, "start_time": 100.0,\
 "entire_frame_compile_time_s": 0.5}, "frame_id": 0, "frame_compile_id": 0, "attempt": 0}
a line of the program's own
V0403 07:28:50.051000 1398 torch/_dynamo/guards.py:9] {"artifact": {"name": "recompile_reasons",\
 "encoding": "json"}, "rank": 3, "frame_id": 0, "frame_compile_id": 1, "has_payload": "abc"}
\t[
\t"0/0: ___check_obj_id(fn, 139645370122560)                   "
\t]
V0403 07:28:51.051000 1398 torch/_dynamo/utils.py:8] {"compilation_metrics": {"co_name": "fn",\
 "co_filename": "/data/train.py", "co_firstlineno": 7, "start_time": 101.0,\
 "entire_frame_compile_time_s": 0.25}, "frame_id": 0, "frame_compile_id": 1, "attempt": 0}
V0403 07:28:52.051000 1398 torch/_dynamo/utils.py:8] {"compilation_metrics": "broken", "frame
"""


def test_a_trace_of_an_older_torch_has_its_times_in_the_metrics(tmp_path: Path) -> None:
    (tmp_path / "dedicated_log_torch_trace_old.log").write_text(OLD)
    (tmp_path / "notes.txt").write_text("not a trace")
    found = read_trace(tmp_path)
    assert (found.files, found.damaged) == (1, 2)
    diagnosis = diagnose(found.compiles)
    assert (diagnosis.graphs, diagnosis.ns) == (2, 750_000_000)
    (again,) = diagnosis.recompiles
    assert (again.rank, again.reason.kind, again.ns) == (3, "object", 250_000_000)
    assert again.place == "fn (/data/train.py:7)"


def test_a_file_for_each_rank_keeps_ranks_apart(tmp_path: Path) -> None:
    for rank in (0, 12):
        name = f"dedicated_log_torch_trace_rank_{rank}_x1.log"
        (tmp_path / name).write_text(OLD.replace('"rank": 3, ', ""))
    assert {rank for _, rank, _ in read_trace(tmp_path).compiles} == {0, 12}


def test_a_file_that_is_not_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("hello")
    with pytest.raises(InputError, match="found no trace in it"):
        read_trace(tmp_path)


def ett(*args: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "torchett.cli.main", *args],
        env=os.environ | (env or {}), capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def test_the_command_reads_a_trace_folder(trace: Path) -> None:
    found = json.loads(ett("compile", "doctor", str(trace), "--json").stdout)
    assert found["recompiles"] == 4
    assert {cause["kind"] for cause in found["causes"]} == {"dtype", "size", "number", "grad_mode"}
    assert r"L\['s'\]$" in found["dynamic_sources"].split(",")
    page = ett("compile", "doctor", str(trace)).stdout
    for words in ("a size changed", "cured by dynamic sources", "TORCH_COMPILE_DYNAMIC_SOURCES=",
                  "training and evaluation need a graph each"):  # fmt: skip
        assert words in page, words


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nothing"], "nothing: no such run"),
        ([], "expected one run or TORCH_TRACE folder"),
        (["a", "b"], "found a b"),
        (["--apply", "--"], "expected a command after --"),
        (["--apply", "--", "no-such-command"], "expected a command that exists"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args: list[str], said: str, tmp_path: Path) -> None:
    done = ett("compile", "doctor", *args, env={"ETT_RUNS": str(tmp_path)})
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
