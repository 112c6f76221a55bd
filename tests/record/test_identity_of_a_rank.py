"""Who a process is, by its environment alone."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchett.record.identity import Identity, identify, safe_name

STARTED = "20260801-120000-42"
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NAME": "gpt",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
}
ALONE = Identity(job=f"train-{STARTED}", run=Path(f"ett-runs/train-{STARTED}"))
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
                job="train-exp%2F1",
                run=Path("ett-runs/train-exp%2F1"),
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
            SLURM | {"SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "6"},
            Identity(job="gpt-77.2", run=Path("ett-runs/gpt-77.2"), rank=5, ranks=6, local_rank=1),
            id="srun, a later step of the allocation, of fewer tasks",
        ),
        pytest.param(
            {"SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "interactive", "SLURM_NTASKS": "8"},
            ALONE,
            id="the shell of an allocation",
        ),
        pytest.param(
            SLURM | {"SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"},
            ALONE,
            id="the shell of an allocation, on its first node",
        ),
        pytest.param(
            SLURM | {"SLURM_PTY_PORT": "4242", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
            ALONE,
            id="the shell of srun --pty",
        ),
        pytest.param(
            SLURM | {"SLURM_PTY_PORT": "4242", "SLURM_STEP_NUM_TASKS": "8"},
            Identity(job="gpt-77", run=Path("ett-runs/gpt-77"), rank=5, ranks=8, local_rank=1),
            id="srun, in the shell of srun --pty",
        ),
        pytest.param(
            {k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"}
            | {"SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "1"},
            ALONE,
            id="a batch script, without srun",
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
        pytest.param({"JOB_NAME": "nightly", "JENKINS_URL": "x"}, ALONE, id="a build of Jenkins"),
        pytest.param(
            {"JOB_NAME": "nightly", **TORCHRUN, "RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0"}
            | {"LOCAL_RANK": "0", "WORLD_SIZE": "1"},
            ALONE,
            id="a build of Jenkins that runs torchrun",
        ),
        pytest.param(
            {"JOB_NAME": "gpt", "KUBERNETES_SERVICE_HOST": "x", "RANK": "1", "WORLD_SIZE": "2"},
            Identity(job="gpt", run=Path("ett-runs/gpt"), rank=1, ranks=2),
            id="Kubernetes, an operator's RANK and a JOB_NAME",
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


def test_the_launcher_has_made_the_name_safe() -> None:
    env = {"ETT_RUN": "/runs/a%2Fb", "ETT_JOB": "a%2Fb"}
    assert (who(env).job, who(env).run) == ("a%2Fb", Path("/runs/a%2Fb"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gpt-2.5_b", "gpt-2.5_b"),
        ("a b/c", "a%20b%2Fc"),
        ("../../etc", "%2E.%2F..%2Fetc"),
        ("100%", "100%25"),
        ("", "job"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("-x", "%2Dx"),
        ("größe", "größe"),
        ("gro\u0308ße", "größe"),  # typed as o and a mark
        ("訓練 7", "訓練%207"),
        ("🚀", "%F0%9F%9A%80"),
        ("\udcff", "%FF"),  # a byte that is no UTF-8
    ],
)
def test_a_job_is_named_so_that_it_is_one_folder(text: str, name: str) -> None:
    assert safe_name(text) == name


@given(st.lists(st.text("ab/.-% ä\x00🚀", max_size=4), min_size=2, max_size=2, unique=True))
def test_two_names_have_two_folders(names: list[str]) -> None:
    one, other = map(safe_name, names)
    assert one != other or {"job"} == {one, *filter(None, names)}  # no name at all is `job`
    assert "/" not in one


def test_a_replica_group_is_a_run_of_its_own() -> None:
    alone = who({"ETT_JOB": "gpt", "REPLICA_GROUP_ID": "1", "RANK": "0"})
    assert alone.run == Path("ett-runs/gpt.group-1")
    launched = who({"ETT_RUN": "/r/gpt.group-1", "ETT_JOB": "gpt.group-1", "ETT_GROUP": "1"})
    assert (launched.run, launched.launched) == (Path("/r/gpt.group-1"), True)
    inside = who({"ETT_RUN": "/r/gpt", "ETT_JOB": "gpt", "REPLICA_GROUP_ID": "0"})
    assert (inside.run, inside.launched) == (Path("/r/gpt.group-0"), False)
