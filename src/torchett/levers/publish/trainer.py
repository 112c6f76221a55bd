"""What a trainer calls at its end: publish, and give the devices back.

checkpoints.step(step, state)
…
ett.publish("publishing.py:recipe", checkpoints, name="dlrm")      # every rank, at the end

standalone   ├ final_checkpoint ┤ exit        devices free   CPU worker: export … register
in_trainer   ├ final_checkpoint ┼ publish: export … register ┤ exit
"""

import inspect
import logging
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torchett.levers.publish.errors import PublishError, RecipeError, one_line
from torchett.levers.publish.spool.job import PublishJob
from torchett.record.api import blocked, init, note

log = logging.getLogger("torchett")


def publish(
    recipe: str | Callable[..., Any],
    checkpoint: Any,
    *,
    name: str,
    spool: str | None = None,
    registry: str | None = None,
    alias: str | None = "live",
    in_trainer: bool = False,
) -> str | None:
    """The id of a publish job, once its anchor is durable; None where that failed, with a warning.

    `checkpoint` is the job's `ett.Checkpointer`, which is closed, or the path of a checkpoint.
    Call it on every rank. Workers (`ett publish work SPOOL`) do the rest; `in_trainer=True` does it
    here instead, while the devices are held, and gives the version's label.
    """
    spool = spool or os.environ.get("ETT_SPOOL") or "ett-spool"
    registry = registry or os.environ.get("ETT_REGISTRY") or "ett-registry"
    first = int(os.environ.get("RANK", "0")) == 0
    try:
        if not in_trainer:
            where = _committed(checkpoint)
            return _drop(_job(recipe, where, name, registry, alias), spool) if first else None
        try:
            where = _committed(checkpoint)
            with blocked("publish"):
                return _publish_here(_job(recipe, where, name, registry, alias)) if first else None
        finally:
            with blocked("publish"):
                _all_ranks()
    except Exception as error:
        log.warning(
            "torchett: %s is not published: %s; by hand: ett publish add %s --recipe FILE.py:NAME "
            "--anchor CHECKPOINT --name %s",
            *(name, one_line(error), spool, name),
        )
        return None


def _committed(checkpoint: Any) -> str:
    """The path of the anchor: the last step's state, durable."""
    if isinstance(checkpoint, str | os.PathLike):
        return os.fspath(checkpoint)
    checkpoint.close()
    durable = checkpoint.durable
    if "local" not in durable and not checkpoint.expected_step():
        raise PublishError("the last checkpoint was not saved")
    step = durable.get("local", checkpoint.expected_step() - 1)
    return str(checkpoint.pin(step))  # nothing deletes it from now on


def _job(
    recipe: str | Callable[..., Any], where: str, name: str, registry: str, alias: str | None
) -> PublishJob:
    from torchett.levers.publish.recipe.anchor import find_anchor

    anchor = find_anchor(_absolute(where))
    return PublishJob(
        name=name,
        recipe=target_of(recipe),
        anchor=anchor.path,
        anchor_sha256=anchor.sha256,
        registry=_absolute(registry),
        alias=alias,
        path=_import_path(),
        training=_training(anchor.step),
        dropped_s=time.time(),
    )


def _drop(job: PublishJob, spool: str) -> str:
    from torchett.levers.publish.spool.spool import Spool

    url = _absolute(spool)
    Spool(url).add(job)
    note("publish", {"spool": url, "id": job.id, "name": job.name, "dropped_s": job.dropped_s})
    return job.id


def _publish_here(job: PublishJob) -> str:
    """The label of the version, made in this process.

    On a thread of its own: a compile on the trainer's thread would be booked as a recompile.
    """
    from torchett.levers.publish.spool.publish_job import publish_job

    with ThreadPoolExecutor(1, "ett-publish") as pool:
        done = pool.submit(publish_job, job).result()
    note("publish", {"version": done.version.label, "timings": done.timings})
    return done.version.label


def target_of(recipe: str | Callable[..., Any]) -> str:
    """FILE.py:NAME or MODULE:NAME of a recipe, as a worker elsewhere can import it."""
    if isinstance(recipe, str):
        where, _, name = recipe.rpartition(":")
        return f"{Path(where).absolute()}:{name}" if where.endswith(".py") else recipe
    name = getattr(recipe, "__qualname__", "")
    if not name.isidentifier():
        raise RecipeError(f"recipe {recipe!r}: expected a module's function or class")
    if recipe.__module__ == "__main__":
        return f"{Path(inspect.getfile(recipe)).absolute()}:{name}"
    return f"{recipe.__module__}:{name}"


def _training(step: int) -> dict[str, Any]:
    """The training job, as its run folder is named."""
    run = init()
    return {"job": run.name if run else None, "run": str(run) if run else None, "step": step}


def _import_path() -> tuple[str, ...]:
    """Folders of the user's own code that this process imports from."""
    installed = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
    folders = [os.path.abspath(entry or ".") for entry in sys.path]
    own = [entry for entry in folders if os.path.isdir(entry) and not entry.startswith(installed)]
    return tuple(dict.fromkeys([*own, os.getcwd()]))


def _absolute(where: str) -> str:
    return where if "://" in where else os.path.abspath(where)


def _all_ranks() -> None:
    """Wait until every rank is here, for hours if need be: NCCL would give up after minutes."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    from datetime import timedelta

    group = dist.new_group(backend="gloo", timeout=timedelta(hours=24))
    dist.barrier(group)
