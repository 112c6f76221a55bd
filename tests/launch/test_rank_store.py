"""The ranks' store: served by the agent, a new one for each start of the ranks."""

import datetime
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchett.launch.elastic import rank_store

dist = pytest.importorskip("torch.distributed")


def group(*, backend: str = "c10d", shared: bool = False, rank: int = 0, size: int = 1) -> Any:
    """A worker group as torch's agent leaves it after a rendezvous."""
    handler = SimpleNamespace(use_agent_store=shared, get_backend=lambda: backend)
    spec = SimpleNamespace(rdzv_handler=handler)
    return SimpleNamespace(spec=spec, group_rank=rank, group_world_size=size, master_port=1)


def client(port: int) -> Any:
    soon = datetime.timedelta(seconds=10)
    return dist.TCPStore("localhost", port, is_master=False, timeout=soon, wait_for_workers=False)


def test_each_start_has_a_store_of_its_own() -> None:
    """In one for all starts a rank would read the addresses of dead ranks."""
    first, second = group(), group()
    stores = [rank_store.serve(first), rank_store.serve(second)]
    client(first.master_port).set("address", "of a dead rank")
    assert not client(second.master_port).check(["address"])
    assert rank_store.environment(stores[0]) == {"TORCHELASTIC_USE_AGENT_STORE": "True"}


def test_several_nodes_meet_at_the_port_they_have_agreed_on() -> None:
    other = group()
    held = rank_store.serve(other)
    several = group(size=2)
    several.master_port = other.master_port
    assert rank_store.serve(several) is None, "taken: rank 0 will say so"
    del held
    several.master_port = _free_port()
    agreed = several.master_port
    assert rank_store.serve(several) is not None
    assert several.master_port == agreed


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("what", [{"backend": "static"}, {"shared": True}, {"rank": 1, "size": 2}])
def test_where_another_serves_it_none_is_served(what: dict[str, Any]) -> None:
    assert rank_store.serve(group(**what)) is None
    assert rank_store.environment(None) == {}


@pytest.mark.parametrize("given", ["0", "1"])
def test_what_the_user_has_decided_stays(given: str) -> None:
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": given}
    assert not rank_store.claim(env)
    assert env == {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": given}


# As torchft's manager does: it needs a store at MASTER_ADDR before any process group is there.
NO_PROCESS_GROUP = """
import os, torch.distributed as dist
at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(*at, is_master=False, wait_for_workers=False)
store.set(os.environ["RANK"], "here")
store.wait(["0", "1"])
"""


@pytest.mark.parametrize("fork", ["0", "1"])
def test_ranks_find_a_store_without_a_process_group(fork: str, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(NO_PROCESS_GROUP)
    ett = [sys.executable, "-m", "torchett.cli.main", "run", "--progress", "0", "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d"]
    torchrun += ["--rdzv-endpoint", "localhost:0", "--nproc-per-node", "2"]
    env = os.environ | {"ETT_RUNS": str(tmp_path / "runs"), "ETT_STANDBY_FORK": fork}
    done = subprocess.run(
        [*ett, *torchrun, "ranks.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
