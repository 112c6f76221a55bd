"""Who a process is, by its environment alone."""

from pathlib import Path

import pytest

from torchett.record.identity import Identity, identify, safe_name

STARTED = "20260801-120000-42"
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NAME": "gpt",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
}


def who(env: dict[str, str], **arguments: object) -> Identity:
    return identify(env, script="train", started=STARTED, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param(
            {},
            Identity(job=f"train-{STARTED}", run=Path(f"ett-runs/train-{STARTED}")),
            id="nothing",
        ),
        pytest.param(
            {"ETT_RUNS": "/data"},
            Identity(job=f"train-{STARTED}", run=Path(f"/data/train-{STARTED}")),
            id="a folder for runs",
        ),
        pytest.param(
            {"ETT_RUN": "/runs/gpt", "ETT_JOB": "gpt", "ETT_ATTEMPT": "4"},
            Identity(job="gpt", run=Path("/runs/gpt"), attempt=4, launched=True),
            id="ett run",
        ),
        pytest.param(
            {"ETT_RUN": "/runs/gpt", "ETT_JOB": "gpt", "ETT_ATTEMPT": "1", **TORCHRUN},
            Identity(
                job="gpt",
                run=Path("/runs/gpt"),
                attempt=1,
                restart=2,
                rank=3,
                ranks=4,
                local_rank=1,
                launched=True,
            ),
            id="ett run with torchrun inside",
        ),
        pytest.param(
            TORCHRUN,
            Identity(
                job=f"train-{STARTED}",
                run=Path(f"ett-runs/train-{STARTED}"),
                restart=2,
                rank=3,
                ranks=4,
                local_rank=1,
            ),
            id="torchrun",
        ),
        pytest.param(
            TORCHRUN | {"TORCHELASTIC_RUN_ID": "exp/1"},
            Identity(
                job="train-exp-1",
                run=Path("ett-runs/train-exp-1"),
                restart=2,
                rank=3,
                ranks=4,
                local_rank=1,
            ),
            id="torchrun with an id",
        ),
        pytest.param(
            SLURM,
            Identity(job="gpt-77", run=Path("ett-runs/gpt-77"), rank=5, ranks=8, local_rank=1),
            id="srun",
        ),
        pytest.param(
            SLURM | {"SLURM_RESTART_COUNT": "3"},
            Identity(
                job="gpt-77", run=Path("ett-runs/gpt-77"), attempt=3, rank=5, ranks=8, local_rank=1
            ),
            id="srun, requeued",
        ),
        pytest.param(
            SLURM | TORCHRUN,
            Identity(
                job="gpt-77", run=Path("ett-runs/gpt-77"), restart=2, rank=3, ranks=4, local_rank=1
            ),
            id="srun with torchrun inside: the rank is torchrun's",
        ),
        pytest.param(
            {"JOB_NAME": "gpt", "JOB_COMPLETION_INDEX": "6"},
            Identity(job="gpt", run=Path("ett-runs/gpt"), rank=6, ranks=7),
            id="Kubernetes, an indexed job",
        ),
        pytest.param(
            {"ETT_JOB": "gpt", "ETT_ATTEMPT": "2", "RANK": "1", "WORLD_SIZE": "2"},
            Identity(job="gpt", run=Path("ett-runs/gpt"), attempt=2, rank=1, ranks=2),
            id="Kubernetes, an operator's RANK",
        ),
        pytest.param(
            {"ETT_JOB": "gpt", "RANK": "x", "WORLD_SIZE": "-2", "ETT_ATTEMPT": "1.5"},
            Identity(job="gpt", run=Path("ett-runs/gpt")),
            id="what is no number is not one",
        ),
    ],
)
def test_identity(env: dict[str, str], expected: Identity) -> None:
    assert who(env) == expected


def test_arguments_win_over_the_environment() -> None:
    found = who(SLURM, job="mine", rank=1, ranks=2)
    assert (found.job, found.run, found.rank, found.ranks) == (
        "mine",
        Path("ett-runs/mine"),
        1,
        2,
    )


def test_a_job_named_in_the_script_does_not_write_into_the_launchers_run() -> None:
    """`ett run` made a run of its own; a script that names another job records there."""
    found = who({"ETT_RUN": "/runs/gpt", "ETT_JOB": "gpt"}, job="mine")
    assert (found.run, found.launched) == (Path("ett-runs/mine"), False)


def test_a_rank_is_always_below_its_ranks() -> None:
    assert who({"RANK": "9", "WORLD_SIZE": "4"}).ranks == 10


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gpt-2.5_b", "gpt-2.5_b"),
        ("a b/c", "a-b-c"),
        ("../../etc", "etc"),
        ("", "job"),
        ("..", "job"),
        ("größe", "größe"),
        ("訓練 7", "訓練-7"),
    ],
)
def test_a_job_is_named_so_that_it_is_one_folder(text: str, name: str) -> None:
    assert safe_name(text) == name
