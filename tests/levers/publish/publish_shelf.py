"""A spool and a registry in a folder, and anchors to publish into them."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import torchett as ett
from torchett.levers.publish.recipe.anchor import find_anchor
from torchett.levers.publish.spool.job import PublishJob
from torchett.levers.publish.spool.spool import Spool

HERE = Path(__file__).parent
RECIPE = HERE.parents[2] / "examples" / "dlrm" / "publishing.py"


@dataclass(frozen=True)
class Shelf:
    """A spool, a registry, and an anchor that was published into it."""

    spool: str
    registry: str
    anchor: str
    folder: Path
    env: dict[str, str]

    def add(self, anchor: str, recipe: str, *, name: str) -> None:
        """`ett publish add`, without a process of its own."""
        found = find_anchor(anchor)
        job = PublishJob(
            name=name,
            recipe=recipe,
            anchor=found.path,
            anchor_sha256=found.sha256,
            registry=self.registry,
            dropped_s=time.time(),
        )
        assert Spool(self.spool).add(job)

    def ett(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """`ett publish …`"""
        done = subprocess.run(
            [sys.executable, "-m", "torchett.cli.main", "publish", *words],
            env=os.environ | self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done


def one_rank_saves(where: Path, model: torch.nn.Module, *, step: int) -> str:
    """The path of a checkpoint that this process wrote."""
    checkpoints = ett.Checkpointer(where, every=1000, upload="thread")
    checkpoints.save(step, {"model": model}, wait=True)
    checkpoints.close(final=False)
    return str(where / f"step-{step:08d}")


def four_ranks_save(where: Path, *, seed: int, step: int) -> str:
    """The path of a checkpoint that four ranks wrote."""
    subprocess.run(
        [sys.executable, str(HERE / "four_ranks_save.py"), str(where), str(seed), str(step)],
        env=os.environ | {"ETT_DISABLE": "1", "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=100,
    )
    return str(where / f"step-{step:08d}")
