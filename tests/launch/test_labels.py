"""A job's labels come from its scheduler, its environment and the user, in this order."""

import subprocess
from pathlib import Path

import pytest

from torchett.launch.labels import LONGEST, MOST, labels_of, parsed_labels
from torchett.model.errors import InputError


def test_the_user_wins_over_the_environment_and_that_over_the_scheduler(tmp_path: Path) -> None:
    env = {
        "SLURM_JOB_ACCOUNT": "slurm-team",
        "SLURM_JOB_PARTITION": "a100",
        "SLURM_JOB_ID": "77",
        "USER": "ada",
        "ETT_LABELS": "team=env-team,stage=sft",
        "CONTAINER_IMAGE": "nvcr.io/x:1",
    }
    found = labels_of(env, {"stage": "dpo"}, tmp_path)
    assert found["team"] == "env-team"
    assert found["stage"] == "dpo"
    assert (found["queue"], found["slurm_job"], found["user"]) == ("a100", "77", "ada")
    assert found["image"] == "nvcr.io/x:1"
    assert "revision" not in found


def test_the_revision_is_the_commit_of_the_working_folder(tmp_path: Path) -> None:
    def git(*args: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            ["git", *who, *args], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    assert "revision" not in labels_of({}, {}, tmp_path)
    git("commit", "-q", "--allow-empty", "-m", "x")
    inside = tmp_path / "deep" / "er"
    inside.mkdir(parents=True)
    for pack in (False, True):
        if pack:
            git("pack-refs", "--all")
        assert labels_of({}, {}, inside)["revision"] == git("rev-parse", "HEAD")[:12]


def test_labels_are_bounded(tmp_path: Path) -> None:
    many = ",".join(f"k{i}=v" for i in range(1000))
    assert len(labels_of({"ETT_LABELS": many}, {}, tmp_path)) == MOST
    long = labels_of({"USER": "u" * 9999}, {}, tmp_path)
    assert len(long["user"]) == LONGEST


@pytest.mark.parametrize("text", ["team", "=x", "", "k=" + "v" * 1000])
def test_what_is_no_label_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match="--label: expected KEY=VALUE"):
        parsed_labels([text], "--label")
