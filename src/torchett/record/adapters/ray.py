"""Ray Train (v2): every worker group is an attempt, every worker a rank.

    RAY_TRAIN_CALLBACKS=torchett.record.adapters.ray.EttCallback python driver.py

It runs on the controller. It sets the identity of each worker before the train function starts,
and records when worker groups began and ended. (RunConfig's own callbacks receive reports only.)
What workers train is recorded by the other adapters, by `ett.steps`, or by the hooks of `ett run`;
a worker that records nothing is unattributed.
"""

import logging
import os
from pathlib import Path
from typing import Any

from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback

from torchett.record.adapters.phases import OpenPhases, harmless
from torchett.record.attempt_log import AttemptLog, append_fact, attempts_path
from torchett.record.clock import anchor, now_ns
from torchett.record.identity import runs_folder, safe_name

log = logging.getLogger("torchett")


class EttCallback(WorkerGroupCallback, ControllerCallback):  # type: ignore[misc]
    """One job of Ray Train, recorded by its workers and in the run folder."""

    def __init__(self) -> None:
        self.phases = OpenPhases()
        self._log: AttemptLog | None = None
        self._launched: int | None = None
        self._path: Path | None = None
        self._held: dict[str, Any] = {}
        self._run: Path | None = None
        self._job = "ray"
        self._number = -1
        self._ended = True

    @harmless
    def after_controller_start(self, train_run_context: Any) -> None:
        given = os.environ.get("ETT_RUN")
        self._launched = int(os.environ.get("ETT_ATTEMPT", "0")) if given else None
        name = str(train_run_context.get_run_config().name or "ray")
        name = os.environ.get("ETT_JOB") or name
        self._job = name if given is not None else safe_name(name)
        self._run = (Path(given) if given else runs_folder(os.environ) / self._job).absolute()
        # Under `ett run` the attempts are its launcher's: then worker groups are its restarts,
        # and written into its log if this process shares its clock.
        if given is not None:
            clock = os.environ.get("ETT_ATTEMPT_BEGAN", "").split("@")[1:2]
            self._path = attempts_path(self._run) if clock == [anchor().clock] else None
        else:
            earlier = attempts_path(self._run).exists()
            self._log = AttemptLog(self._run, job=self._job, node=0, anchor=anchor())
            self._number = len(list(self._run.glob("attempt-*"))) - 1 if earlier else -1

    @harmless
    def before_worker_group_start(self, worker_group_context: Any) -> None:
        self._number += 1
        self._ended = False
        self._append(
            {
                "event": "start",
                "attempt": self._number,
                "t_ns": now_ns(),
                "ranks": getattr(worker_group_context, "num_workers", None),
            }
        )

    @harmless
    def after_worker_group_start(self, worker_group: Any) -> None:
        alone = self._launched is None
        variables = {"ETT_RUN": str(self._run), "ETT_JOB": self._job}
        variables["ETT_ATTEMPT"] = str(self._number if alone else self._launched)
        restart = 0 if alone else self._number
        workers = worker_group.get_workers()
        for position, worker in enumerate(workers):
            context = worker.distributed_context
            rank = position if context is None else context.world_rank
            worker.execute_async(_be, variables, restart, rank, len(workers))

    @harmless
    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        if self._log is not None:
            self._log.beat()
        errors = worker_group_status.errors
        if errors:
            error = errors[min(errors)]
            cause = getattr(error, "cause", None) or error
            self._end("failed", f"{type(cause).__name__}: {cause}".splitlines()[0][:300])

    @harmless
    def after_worker_group_shutdown(self, worker_group_context: Any) -> None:
        self._end("success", None)

    @harmless
    def after_worker_group_abort(self, worker_group_context: Any) -> None:
        self._end("failed", "user_cancel")

    def _end(self, outcome: str, cause: str | None) -> None:
        if not self._ended:
            self._ended = True
            self._append(
                {
                    "event": "end",
                    "attempt": self._number,
                    "t_ns": now_ns(),
                    "outcome": outcome,
                    "cause": cause,
                }
            )

    def _append(self, fact: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.append(fact)
        elif self._path is not None:
            fact |= {"attempt": self._launched, "restart": self._number}
            if fact["event"] == "end":
                self._held = fact  # of the last worker group the end is the launcher's to see
            elif self._number > 0:
                append_fact(self._path, self._held)
                append_fact(self._path, fact)


def _be(variables: dict[str, str], restart: int, rank: int, ranks: int) -> None:
    """In a worker: become this rank. torch reads an agent's variables, too: they do not stay."""
    agents = {
        "TORCHELASTIC_RUN_ID": variables["ETT_JOB"],
        "TORCHELASTIC_RESTART_COUNT": str(restart),
    }
    before = {key: os.environ.get(key) for key in agents}
    os.environ.update(variables | agents)
    try:
        from torchett.record import api

        api.init(rank=rank, ranks=ranks)
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
