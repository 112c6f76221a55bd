"""Nodes that are told nothing but where torchrun meets."""

import multiprocessing
from pathlib import Path

import pytest

from torchett.launch.scheduler.placement import Placement
from torchett.launch.scheduler.rendezvous import placed_by, rendezvous_of

TORCHRUN = ["python", "-m", "torch.distributed.run"]
C10D = ["--rdzv-backend=c10d", "--rdzv-id", "gpt"]


def test_what_torchrun_is_told_names_job_nodes_and_head() -> None:
    words = [*C10D, "--nnodes", "2:4", "--rdzv_endpoint=gpu-1:29400", "train.py", "--nnodes=9"]
    found = rendezvous_of([*TORCHRUN, *words], {})
    assert found is not None
    assert (found.series, found.host, found.most_nodes) == ("train-gpt", "gpu-1", 4)
    env = {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "gpt", "PET_NNODES": "4"}
    assert rendezvous_of([*TORCHRUN, "train.py"], env | {"PET_RDZV_ENDPOINT": "gpu-1"}) == found


@pytest.mark.parametrize(
    ("words", "env"),
    [
        ([*C10D, "--nnodes=1", "--rdzv-endpoint=a:1"], {}),
        ([*C10D, "--nnodes=2"], {}),
        (["--nnodes=2", "--master-addr=a"], {}),
        (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a:1"], {}),
        ([*C10D, "--nnodes=2", "--rdzv-endpoint=a:1"], {"SLURM_JOB_ID": "7"}),
        ([*C10D, "--nnodes=2", "--rdzv-endpoint=a:1"], {"ETT_NODE": "1"}),
    ],
)
def test_where_it_is_not_told_or_somebody_else_says_it_nothing_is_concluded(
    words: list[str], env: dict[str, str]
) -> None:
    assert rendezvous_of([*TORCHRUN, *words, "train.py"], env) is None
    assert rendezvous_of(["python", "train.py"], env) is None


def _number(runs: Path, host: str, spares: int, said: "multiprocessing.Queue[int]") -> None:
    found = rendezvous_of([*TORCHRUN, *C10D, "--nnodes=2", f"--rdzv-endpoint={host}:1", "t.py"], {})
    assert found is not None
    said.put(placed_by(found, Placement(), runs, spares).node)
    said.close()
    multiprocessing.Event().wait(20)


def test_each_launcher_gets_a_number_of_its_own_and_gives_it_back(tmp_path: Path) -> None:
    forking = multiprocessing.get_context("fork")
    said: multiprocessing.Queue[int] = forking.Queue()  # type: ignore[assignment]
    running = []
    numbers = []
    for host in ("127.0.0.1", "127.0.0.1", "192.0.2.7"):  # the last is nobody's address
        one = forking.Process(target=_number, args=(tmp_path, host, 1, said))
        one.start()
        running.append(one)
        numbers.append(said.get(timeout=10))
    assert numbers == [0, 1, 2]
    running[1].kill()
    running[1].join()
    again = forking.Process(target=_number, args=(tmp_path, "192.0.2.7", 1, said))
    again.start()
    assert said.get(timeout=10) == 1
    for one in (*running, again):
        one.kill()
        one.join()
