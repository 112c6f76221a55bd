"""One job, from its anchor to a registered version: may be done twice, and gives one version.

anchor ─ recipe ─ key ─┬─ published already ───────────────────┐
                       └─ steps ─ parity ─ files ─ manifest ───┴─► alias ─► done
"""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torchett.levers.publish.errors import PublishError
from torchett.levers.publish.recipe.anchor import find_anchor
from torchett.levers.publish.recipe.find_recipe import find_recipe
from torchett.levers.publish.registry.registry import Model, Registry
from torchett.levers.publish.registry.version import Version, version_key
from torchett.levers.publish.spool.job import PublishJob
from torchett.levers.publish.spool.scratch import scratch_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a job became."""

    version: Version
    was_there: bool  # another worker, or an earlier try, had published it
    flipped: bool  # the alias names it now
    timings: dict[str, float] = field(default_factory=dict)


def publish_job(
    job: PublishJob,
    *,
    scratch: Path | None = None,
    still_ours: Callable[[], None] = lambda: None,
) -> Published:
    """The version of a job: made now, or found where it was made before."""
    import torch

    began = time.monotonic()
    registry = Registry(job.registry)
    model = registry.model(job.name)
    anchor = find_anchor(job.anchor)
    if job.anchor_sha256 and anchor.sha256 != job.anchor_sha256:
        raise PublishError(
            f"anchor {job.anchor} is not the checkpoint that the job was dropped for: its manifest "
            "has changed; drop the job again"
        )
    found = find_recipe(job.recipe, job.path)
    key = version_key(anchor.sha256, found.hash, str(torch.__version__), found.recipe.isa)
    version = model.with_key(key)
    if version is not None:
        return Published(version=version, was_there=True, flipped=_flip(model, job, version))
    from torchett.levers.publish.recipe.steps import run_steps

    with scratch_folder(scratch) as folder:
        made = run_steps(found, anchor, folder, registry.store, still_ours=still_ours)
        still_ours()
        draft = Version(
            name=job.name,
            version=0,
            key=key,
            files={},
            created_s=time.time(),
            anchor=anchor.told(),
            recipe={"target": job.recipe, "hash": found.hash, **_kinds(found.recipe)},
            job=job.training,
            torch=str(torch.__version__),
            isa=found.recipe.isa,
            parity=made.parity,
            timings={**made.timings, "all": round(time.monotonic() - began, 3)},
            host=socket.gethostname(),
        )
        with made.step("register"):
            version = model.register(draft, made.files)
    return Published(
        version=version,
        was_there=False,
        flipped=_flip(model, job, version),
        timings={**made.timings, "all": round(time.monotonic() - began, 3)},
    )


def _kinds(recipe: "object") -> dict[str, object]:
    return {name: getattr(recipe, name) for name in ("embeddings", "linears")}


def _flip(model: Model, job: PublishJob, version: Version) -> bool:
    """Whether the job's alias came to name the version.

    It does so once: somebody may have rolled back before this job was tried again. And it does not
    go from a later step of a training job back to an earlier one that was published late.
    """
    if job.alias is None:
        return False
    history = model.aliases.history(job.alias)
    if any(flip.version == version.version and flip.why == "published" for flip in history):
        return False
    if history:
        now = model.version(history[-1].version)
        same_job = now.job.get("job") is not None and now.job.get("job") == version.job.get("job")
        if same_job and now.anchor["step"] > version.anchor["step"]:
            return False
    model.promote(version.version, job.alias, why="published", now_s=time.time())
    return True
