"""Files of jobs: what is read, and what is said of bad ones."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from torchett.model.errors import InputError
from torchett.schedule import Trace, read_failures, read_sizes, read_trace, synthetic, workload
from torchett.schedule.simulation.workload import quotas


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


PHILLY = """submit_time,vc,gpus,run_s
2017-10-03 08:00:10,b,8,3600
2017-10-03 08:00:00,a,1,60
"""


@pytest.mark.parametrize("name", ["philly.csv", "philly.csv.gz"])
def test_jobs_come_in_the_order_of_their_submission(tmp_path: Path, name: str) -> None:
    trace = read_trace(written(tmp_path, PHILLY, name))
    assert trace.name == "philly"
    assert trace.submit_s.tolist() == [0.0, 10.0]
    assert [trace.vcs[vc] for vc in trace.vc] == ["a", "b"]
    assert trace.gpus.tolist() == [1, 8]
    assert trace.gpu_s == 60 + 8 * 3600


def test_a_user_stands_in_for_a_vc_that_is_not_recorded(tmp_path: Path) -> None:
    """Helios: jobs without GPUs are left out; a user's jobs share one VC, in every process."""
    text = "submit_s,user,gpus,cpus,nodes,run_s,status\n"
    text += "".join(f"{i},{i % 7},{i % 3},4,1,{60 + i},Pass\n" for i in range(70))
    trace = read_trace(written(tmp_path, text))
    assert len(trace) == sum(i % 3 > 0 for i in range(70))
    assert set(trace.vcs) <= {f"users-{number:02}" for number in range(10)}
    assert "users-07" in trace.vcs  # crc32(b"0") % 10 and others: not Python's salted hash


SACCT = """Submit|Account|AllocTRES|ElapsedRaw|State
2026-11-01T10:00:00|vision|billing=8,cpu=8,gres/gpu=4,mem=64G,node=1|3600|COMPLETED
2026-11-01T10:05:00|speech|cpu=8,mem=64G,node=1|3600|COMPLETED
2026-11-01T10:10:00|speech|cpu=8,gres/gpu=2,mem=64G,node=1|0|CANCELLED
2026-11-01T10:20:00|speech|cpu=8,gres/gpu=2,mem=64G,node=1|120|FAILED
"""


def test_what_sacct_prints_is_read(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, SACCT))
    assert trace.gpus.tolist() == [4, 2]
    assert trace.submit_s.tolist() == [0.0, 1200.0]
    assert trace.vcs == ("speech", "vision")


def test_jobs_of_a_time_and_a_size_are_taken(tmp_path: Path) -> None:
    text = "submit,vc,gpus,run_s\n0,a,1,60\n100,a,8,60\n200,a,2,60\n300,a,1,60\n"
    path = written(tmp_path, text)
    assert read_trace(path, most_gpus=4).gpus.tolist() == [1, 2, 1]
    assert read_trace(path, since="100", until="300").gpus.tolist() == [8, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected two jobs with GPUs or more, found 0"),
        ("submit,vc,gpus,run_s\n", "expected two jobs with GPUs or more, found 0"),
        ("submit,vc,gpus\n0,a,1\n", r":2: expected a column run_s or ElapsedRaw, found submit, vc"),
        ("vc,gpus,run_s\na,1,60\n", ":2: expected a column submit or"),
        ("submit,gpus,run_s\n0,1,60\n", ":2: expected a column vc or Account or user"),
        ("submit,vc,gpus,run_s\n0,a,1,60\n1,a,1\n", ":3: expected 4 fields, found 3"),
        ("submit,vc,gpus,run_s\n0,a,1,x\n", ":2: run_s: expected a number from 0 on, found 'x'"),
        ("submit,vc,gpus,run_s\n0,a,1,nan\n", ":2: run_s: expected a number from 0 on"),
        ("submit,vc,gpus,run_s\n0,a,-1,60\n", ":2: gpus: expected a number from 0 on"),
        ("submit,vc,gpus,run_s\n0,a,1.5,60\n", ":2: gpus: expected a whole number, found '1.5'"),
        ("submit,vc,gpus,run_s\nMonday,a,1,60\n", ":2: expected a time such as"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        read_trace(written(tmp_path, text))
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(gzip.compress(PHILLY.encode())[:-9])
    for path in (tmp_path / "none.csv", torn, tmp_path):
        with pytest.raises(InputError, match="expected a readable CSV file"):
            read_trace(path)


def test_vcs_have_the_sizes_that_a_file_says(tmp_path: Path) -> None:
    sizes = read_sizes(written(tmp_path, "vc,node num\na,30\nb,10\n", "sizes.csv"))
    trace = read_trace(written(tmp_path, PHILLY), sizes=sizes)
    assert workload(trace, load=1.0, gpus=40).quotas.tolist() == [30, 10]
    with pytest.raises(InputError, match="none of its VCs has a size: a, b"):
        read_trace(written(tmp_path, PHILLY), sizes={"z": 1.0})


def test_failure_rates_are_counted_by_size(tmp_path: Path) -> None:
    text = "gpus,run_s,status\n1,1000,Pass\n1,1000,Failed\n8,100,Failed\n8,100,Failed\n0,5,Failed\n"
    rates = read_failures(written(tmp_path, text))
    overall = 3 / 2200  # where nothing is known of a size
    assert rates.of(np.array([1, 4, 8, 32, 512])).tolist() == pytest.approx(
        [1 / 2000, overall, 2 / 200, overall, overall]
    )


def test_quotas_are_whole_and_sum_to_the_cluster() -> None:
    assert quotas(10, [1.0, 1.0, 1.0]).tolist() == [4, 3, 3]
    assert quotas(100, [0.0, 1.0, 3.0]).tolist() == [0, 25, 75]


def test_a_cluster_is_as_large_as_makes_the_load() -> None:
    trace = synthetic(3000)
    work = workload(trace, load=0.5)
    assert trace.gpu_s / (work.gpus * trace.span_s) == pytest.approx(0.5, rel=0.01)
    assert (work.submit_s == trace.submit_s).all()


def test_arrivals_are_stretched_where_the_cluster_is_given() -> None:
    trace = synthetic(3000)
    work = workload(trace, load=0.5, gpus=1000)
    assert work.gpus == 1000
    assert trace.gpu_s / (1000 * work.submit_s[-1]) == pytest.approx(0.5, rel=0.001)


def test_other_seeds_shift_whole_vcs(tmp_path: Path) -> None:
    trace = synthetic(500)
    recorded, shifted = (workload(trace, load=0.5, gpus=200, seed=seed) for seed in (0, 1))
    for vc in range(len(trace.vcs)):
        gaps = [np.diff(work.submit_s[work.vc == vc]) for work in (recorded, shifted)]
        assert gaps[0] == pytest.approx(gaps[1], abs=1e-6)
    assert not np.array_equal(recorded.submit_s, shifted.submit_s)


def test_a_job_larger_than_the_cluster_is_named() -> None:
    trace = synthetic(500)
    assert isinstance(trace, Trace)
    with pytest.raises(InputError, match="a job asks for 64 GPUs, the cluster has 8"):
        workload(trace, load=0.5, gpus=8)
