"""Hooks in the processes that people start: scripts nobody changed, under `ett run`."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from torchett.record.plugins import SITE
from torchett.runs.reader import RunReader

ENV = {
    **{key: value for key, value in os.environ.items() if not key.startswith("ETT_")},
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
LOOP = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = TensorDataset(torch.randn(40, 8), torch.randn(40, 1))

def train(steps, after=lambda step: None, first=0):
    batches = iter(DataLoader(data, batch_size=4))
    for step in range(first, steps):
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(DataLoader(data, batch_size=4))
            x, y = next(batches)
        optimizer.zero_grad()
        ((net(x) - y) ** 2).mean().backward()
        optimizer.step()
        after(step)
"""


def ett(folder: Path, *words: str, env: dict[str, str] | None = None) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "torchett.cli.main", *words],
        cwd=folder, env=ENV | {"ETT_RUNS": str(folder / "runs")} | (env or {}),
        capture_output=True, text=True,
    )  # fmt: skip


def script(folder: Path, body: str, name: str = "train.py") -> str:
    (folder / name).write_text(LOOP + textwrap.dedent(body))
    return name


def run(folder: Path, *words: str, env: dict[str, str] | None = None) -> Any:
    return ett(folder, "run", "--job", "job", *words, env=env)


def report(folder: Path) -> dict[str, Any]:
    told = ett(folder, "report", "job", "--json")
    assert told.returncode == 0, told.stderr
    result: dict[str, Any] = json.loads(told.stdout)
    return result


def test_a_script_that_nobody_changed(tmp_path: Path) -> None:
    done = run(tmp_path, "--", script(tmp_path, "train(12)"))
    assert done.returncode == 0, done.stderr
    told = report(tmp_path)
    assert told["last_step"] == 11
    seen = {"effective", "imports", "train_module_creation", "get_first_batch_data", "data_wait"}
    assert seen <= set(told["accounts"])
    assert told["accounts"].get("unattributed", 0) < 0.1 * told["rank_seconds"]


def test_a_first_batch_that_is_late_before_a_compile(tmp_path: Path) -> None:
    """torch traces a backward pass while it compiles: by then it is clear what the fetch was."""
    body = """
    import time

    class Late(torch.utils.data.IterableDataset):
        def __iter__(self):
            time.sleep(1.5)
            return iter(rows)

    rows, data = data, Late()
    net = torch.compile(net, backend="aot_eager")
    train(8)
    """
    assert run(tmp_path, "--", script(tmp_path, body)).returncode == 0
    told = report(tmp_path)["accounts"]
    assert told["get_first_batch_data"] >= 1.5
    assert told["pt2_compile"] > 0


def test_hooks_can_be_left_out(tmp_path: Path) -> None:
    look = "import sys; print('torchett.record.hooks' in sys.modules)"
    command = ("--", sys.executable, "-c", look)
    assert run(tmp_path, *command).stdout == "True\n"
    assert run(tmp_path, "--no-hooks", *command).stdout == "False\n"
    assert run(tmp_path, "--as-is", *command).stdout == "False\n"
    assert run(tmp_path, *command, env={"ETT_DISABLE": "1"}).stdout == "False\n"


RANKS = """
import sys
from torch import distributed as dist

dist.init_process_group("gloo")
dist.new_group([0, 1])
net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
first = 0
try:
    state = torch.load("c.pt")
    net.load_state_dict(state["net"])
    first = state["next"]
except FileNotFoundError:
    pass

def after(step):
    if step == 4 and dist.get_rank() == 0:
        torch.save({"net": net.state_dict(), "next": step + 1}, "c.pt")
    if step == 7 and first == 0:
        dist.barrier()
        sys.exit(3)

train(12, after, first)
dist.destroy_process_group()
"""


def test_ranks_of_torchrun_resume_where_they_were_saved(tmp_path: Path) -> None:
    name = script(tmp_path, RANKS)
    torchrun = (str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node=2")
    done = run(tmp_path, "--", *torchrun, "--max-restarts=1", name)
    assert done.returncode == 0, done.stderr
    told = report(tmp_path)
    assert (told["ranks"], told["attempts"], told["last_step"]) == (2, 2, 11)
    assert told["accounts"]["unsaved"] > 0  # steps 5 to 7
    assert {"process_group_init", "checkpoint_restore", "checkpoint_blocked"} <= set(
        told["accounts"]
    )
    exported = ett(tmp_path, "export", "job").stdout.splitlines()
    steps = [e for e in map(json.loads, exported) if e["event"] == "step" and e["rank"] == 1]
    assert [e["step"] for e in steps] == [*range(8), *range(5, 12)]


def test_ranks_that_a_script_spawns_itself(tmp_path: Path) -> None:
    body = """
    import os
    from torch import distributed as dist

    def rank(number):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        store = dist.FileStore("store", 2)
        dist.init_process_group("gloo", store=store, rank=number, world_size=2)
        train(5)

    if __name__ == "__main__":
        torch.multiprocessing.spawn(rank, nprocs=2)
    """
    done = run(tmp_path, "--", script(tmp_path, body))
    assert done.returncode == 0, done.stderr
    told = report(tmp_path)
    assert (told["ranks"], told["last_step"]) == (2, 4), done.stderr
    slow = "did not train"  # a busy machine's steps of more than a second
    assert [note for note in told.get("notes", []) if slow not in note] == []


def test_a_module_with_workers_of_every_kind(tmp_path: Path) -> None:
    body = """
    def main():
        for method in ("fork", "spawn", "forkserver"):
            loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context=method)
            for x, y in loader:
                optimizer.zero_grad()
                ((net(x) - y) ** 2).mean().backward()
                optimizer.step()

    if __name__ == "__main__":
        main()
    """
    script(tmp_path, body, "package.py")
    done = run(tmp_path, "--", sys.executable, "-m", "package")
    assert done.returncode == 0, done.stderr
    told = report(tmp_path)
    assert (told["ranks"], told["last_step"]) == (1, 29)
    assert len(list((tmp_path / "runs" / "job").glob("attempt-*/rank-*.ett"))) == 1


def test_what_the_script_says_itself_is_not_said_twice(tmp_path: Path) -> None:
    body = """
    import torchett as ett

    with ett.stage("pre_train"):
        pass
    for x, y in ett.steps(DataLoader(data, batch_size=4), start=100):
        for micro in range(2):  # two updates to what the script calls one step
            optimizer.zero_grad()
            ((net(x) - y) ** 2).mean().backward()
            optimizer.step()
    with ett.blocked("final_checkpoint"):
        torch.save(net.state_dict(), "w.pt")
    """
    assert run(tmp_path, "--", script(tmp_path, body)).returncode == 0
    exported = [json.loads(line) for line in ett(tmp_path, "export", "job").stdout.splitlines()]
    assert [e["step"] for e in exported if e["event"] == "step"] == list(range(100, 110))
    accounts = [e["account"] for e in exported if e["event"] == "span"]
    assert accounts.count("pre_train") <= 1
    assert accounts.count("get_first_batch_data") == 1
    assert "final_checkpoint" in accounts
    assert "checkpoint_blocked" not in accounts


def test_an_evaluation_inside_a_stage_of_the_script_is_that_stage(tmp_path: Path) -> None:
    """It is told when the loop goes on: the script has left its stage by then."""
    body = """
    import time
    import torchett as ett

    with ett.stage("pre_train"):
        net.eval()
        with torch.no_grad():
            for x, _ in DataLoader(data, batch_size=4):
                net(x)
                time.sleep(0.02)
        net.train()
    train(5)
    """
    assert run(tmp_path, "--", script(tmp_path, body)).returncode == 0
    accounts = report(tmp_path)["accounts"]
    assert accounts["pre_train"] >= 10 * 0.02
    assert accounts.get("evaluation", 0.0) < 0.02


def test_the_first_batch_after_an_evaluation_at_the_start_is_no_evaluation(tmp_path: Path) -> None:
    """A Hugging Face Trainer puts its model back into training mode when it has the batch."""
    body = """
    import time

    class Slow(TensorDataset):
        def __getitem__(self, index):
            time.sleep(0.05)
            return super().__getitem__(index)

    net.eval()
    for x, _ in DataLoader(data, batch_size=20):
        with torch.no_grad():
            net(x)
    for x, y in DataLoader(Slow(*data.tensors), batch_size=4):
        net.train()
        optimizer.zero_grad()
        ((net(x) - y) ** 2).mean().backward()
        optimizer.step()
    """
    assert run(tmp_path, "--", script(tmp_path, body)).returncode == 0
    told = report(tmp_path)
    assert told["last_step"] == 9
    assert told["accounts"]["get_first_batch_data"] >= 0.2
    assert 0.0 < told["accounts"]["evaluation"] < 0.2


def test_waits_in_steps_that_the_script_says_are_waits(tmp_path: Path) -> None:
    body = """
    import time
    import torchett as ett

    class Slow(TensorDataset):
        def __getitem__(self, index):
            time.sleep(0.005)
            return super().__getitem__(index)

    batches = iter(DataLoader(Slow(*data.tensors), batch_size=4))
    for step in range(10):
        with ett.step(step):
            x, y = next(batches)
            optimizer.zero_grad()
            ((net(x) - y) ** 2).mean().backward()
            optimizer.step()
    """
    assert run(tmp_path, "--", script(tmp_path, body)).returncode == 0
    told = report(tmp_path)
    assert told["last_step"] == 9
    assert told["accounts"]["data_wait"] >= 9 * 0.02  # the first is get_first_batch_data


ENDINGS = [
    "exception", "leaves", "leaves_with_a_message", "interrupted", "terminated", "killed",
    "loader_fails", "backward_fails", "update_fails_and_is_left_behind", "weights",
]  # fmt: skip
BREAKS = [
    "detector.updated", "detector.fetched", "detector.backward", "detector.forward",
    "saves.begins", "writer.follow",
]  # fmt: skip


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """Where the runs are; how each script ended without hooks and with them."""
    folder = tmp_path_factory.mktemp("endings")
    path = os.pathsep.join([SITE, ENV.get("PYTHONPATH", "")])
    plugins = {"ETT_PLUGINS": "torchett.record.hooks", "PYTHONPATH": path}
    names = [*ENDINGS, *(f"breaks:{broken}" for broken in BREAKS)]
    told = []
    for env in (ENV, ENV | plugins):
        command = [sys.executable, Path(__file__).with_name("endings.py"), folder, *names]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout))
    return folder, *told


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_as_it_would_without(endings: tuple[Path, Any, Any], ending: str) -> None:
    folder, bare, hooked = endings
    assert hooked[ending]["status"] == bare[ending]["status"]
    assert hooked[ending]["out"] == bare[ending]["out"]  # of `weights`: bit by bit
    assert hooked[ending]["err"].splitlines()[-1:] == bare[ending]["err"].splitlines()[-1:]
    rows = RunReader(folder / ending).poll().history().rows
    assert rows.count[rows.is_step].sum() == (30 if ending == "weights" else 3)


@pytest.mark.parametrize("broken", BREAKS)
def test_a_hook_that_breaks_is_off_and_training_goes_on(
    endings: tuple[Path, Any, Any], broken: str
) -> None:
    hooked = endings[2][f"breaks:{broken}"]
    assert (hooked["status"], hooked["out"]) == (0, "trained\n")
    assert hooked["err"].count("a hook broke") == 1
    assert len(hooked["err"].splitlines()) == 1


def test_a_loop_that_is_not_recognised_is_said_to_be_so(tmp_path: Path) -> None:
    body = """
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    for batch in DataLoader(data, batch_size=4):
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad
    """
    assert run(tmp_path, "--", script(tmp_path, body)).returncode == 0
    (note,) = [n for n in report(tmp_path)["notes"] if "no step was recognised" in n]
    assert "ett.steps" in note


def test_a_killed_loop_is_on_record_to_its_last_step(tmp_path: Path) -> None:
    """
    s s s s s s s s s s ✗
    """
    body = """
        import os, signal, time
        began = time.monotonic()
        def after(step):
            if time.monotonic() > began + 2.0:
                print(step, time.time_ns(), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        train(10**9, after)
    """
    done = run(tmp_path, "--", script(tmp_path, body))
    last, killed_ns = map(int, done.stdout.split()[:2])
    rows = RunReader(tmp_path / "runs" / "job").poll().history().rows
    told = rows.take(rows.is_step)
    assert last + 1 == int(told.count.sum())
    assert 0 <= killed_ns - int(told.t1_ns.max()) < 60_000_000
