"""A job's labels: whose it is and what it runs, from the environment and the folder it starts in.

torch, revision                 the installed torch; git's commit of the working folder
team, user, queue, priority,    Slurm's account, user, partition, QOS, cluster and job number
cluster, slurm_job
image                           the container's image, where the environment names it
ETT_LABELS=team=nlp,stage=sft   and `--label team=nlp`: these win, in this order
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from torchett.model.errors import InputError

MOST, LONGEST = 64, 256
_SLURM = {
    "team": "SLURM_JOB_ACCOUNT",
    "user": "SLURM_JOB_USER",
    "queue": "SLURM_JOB_PARTITION",
    "priority": "SLURM_JOB_QOS",
    "cluster": "SLURM_CLUSTER_NAME",
    "slurm_job": "SLURM_JOB_ID",
}
_IMAGES = ("ETT_IMAGE", "CONTAINER_IMAGE", "SLURM_CONTAINER", "APPTAINER_CONTAINER")
_TORCH = re.compile(r"torch-(.+)\.dist-info")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")


def labels_of(env: Mapping[str, str], given: Mapping[str, str], folder: Path) -> dict[str, str]:
    """All labels of a job that is started in this folder."""
    found = {name: env[key] for name, key in _SLURM.items() if env.get(key)}
    found.setdefault("user", env.get("USER") or env.get("LOGNAME") or "")
    found["image"] = next((env[key] for key in _IMAGES if env.get(key)), "")
    found["torch"] = _torch_version()
    found["revision"] = (_commit(folder) or "")[:12]
    said = {name: value for name, value in found.items() if value}
    from_variable = [part for part in env.get("ETT_LABELS", "").split(",") if part]
    labels = said | parsed_labels(from_variable, "ETT_LABELS") | dict(given)
    return {name: value[:LONGEST] for name, value in list(labels.items())[:MOST]}


def parsed_labels(given: list[str] | tuple[str, ...], option: str) -> dict[str, str]:
    """KEY=VALUE, each, as a mapping."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key or max(len(key), len(value)) > LONGEST:
            raise InputError(f"{option}: expected KEY=VALUE, found '{text[:80]}'")
        found[key] = value
    return found


def _torch_version() -> str:
    """The installed torch's version, by its folder's name: importlib.metadata takes 30 ms."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if found := _TORCH.fullmatch(name):
                return found[1]
    return ""


def _commit(folder: Path) -> str | None:
    """The commit that is checked out here; None if git does not say. No process is started."""
    for parent in (folder, *folder.parents):
        git = parent / ".git"
        try:
            if git.is_file():  # a worktree: it says where its own files lie
                git = parent / git.read_text().removeprefix("gitdir:").strip()
            elif not git.is_dir():
                continue
            head = (git / "HEAD").read_text().strip()
            if head.startswith("ref:"):
                return _resolved(git, head.removeprefix("ref:").strip())
            return head if _COMMIT.fullmatch(head) else None
        except OSError:
            return None
    return None


def _resolved(git: Path, ref: str) -> str | None:
    common = git / "commondir"
    folders = [git, git / common.read_text().strip()] if common.exists() else [git]
    for folder in folders:
        if (folder / ref).is_file():
            text = (folder / ref).read_text().strip()
            return text if _COMMIT.fullmatch(text) else None
        if (folder / "packed-refs").is_file():
            for line in (folder / "packed-refs").read_text().splitlines():
                commit, _, name = line.partition(" ")
                if name == ref and _COMMIT.fullmatch(commit):
                    return commit
    return None
