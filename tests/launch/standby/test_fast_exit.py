"""A rank exits with its script's status, whatever goes wrong on the way out."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

RANK_PROCESS = "torchett.launch.standby.rank_process"


def run(script: str, folder: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    (folder / "x.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-u", "-m", RANK_PROCESS, "x.py"],
        cwd=folder, env=os.environ | env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize(
    "missing",
    [
        "import threading; del threading._shutdown",
        "import atexit; atexit._run_exitfuncs = None",
        "import gc; gc.get_objects = None",
        "import ctypes; ctypes.CDLL = None",
        "import atexit; atexit.register(lambda: 1 / 0)",
        "import sys; sys.modules['torch._inductor.async_compile'] = 0",
    ],
)
def test_the_status_is_the_scripts_own(missing: str, status: int, tmp_path: Path) -> None:
    script = f"import sys\nprint('last line')\n{missing}\nsys.exit({status})\n"
    done = run(script, tmp_path)
    assert (done.returncode, done.stdout) == (status, "last line\n"), done.stderr


def test_what_profilers_need_is_run_if_asked_for(tmp_path: Path) -> None:
    """They write their results in exit handlers of C."""
    script = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)\n"
    )
    assert run(script, tmp_path).returncode == 0
    assert run(script, tmp_path, ETT_FAST_EXIT="0").returncode == -signal.SIGABRT


GROUPS = """
import weakref
import torch.distributed as dist
from torchett.launch.standby import fast_exit

for number in range({times}):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    other = dist.new_group([0])
    dist.destroy_process_group({which})
    if {which!r}:
        dist.destroy_process_group()
del other
print(len(fast_exit._kept), dist.is_initialized())
"""


@pytest.mark.parametrize(
    ("which", "times", "kept"),
    [("", 1, 2), ("other", 1, 2), ("dist.group.WORLD", 1, 2), ("", 40, 16)],
)
def test_destroyed_process_groups_are_kept_but_not_without_end(
    which: str, times: int, kept: int, tmp_path: Path
) -> None:
    """Their destructor would join gloo's thread while it holds the GIL that the thread wants."""
    pytest.importorskip("torch")
    script = GROUPS.replace("{times}", str(times)).replace("{which!r}", repr(which == "other"))
    done = run(script.replace("{which}", which), tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{kept} False\n"), done.stderr


def test_without_fast_exit_nothing_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = GROUPS.replace("{times}", "1").replace("{which!r}", "False").replace("{which}", "")
    assert run(script, tmp_path, ETT_FAST_EXIT="0").stdout == "0 False\n"


# Without kept groups it hangs within some forty rounds.
DDP_IN_A_FUNCTION = """
import os, sys
import torch
import torch.distributed as dist

rank, port = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)

def main(store):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    layers = [torch.nn.Linear(64, 64) for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    for _ in range(2):
        model(torch.zeros(4, 64)).sum().backward()
    dist.destroy_process_group()

store = dist.TCPStore("localhost", port, is_master=rank == 0)
for number in range(80):
    main(dist.PrefixStore(str(number), store))
print("ended", flush=True)
"""


@pytest.mark.timeout(180)
def test_a_model_in_ddp_that_goes_after_its_group_is_no_deadlock(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "x.py").write_text(DDP_IN_A_FUNCTION)
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-u", "-m", RANK_PROCESS, "x.py"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(port)], cwd=tmp_path, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=150)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert said == [b"ended\n"] * 2
    assert [rank.returncode for rank in ranks] == [0, 0]
