"""torch's own elastic agent, with standbys: what `ett run -- torchrun …` starts.

All of torchrun is torch's: options, rendezvous, logs, restarts. Two seams are ours: a rank is
handed to a standby where one waits, and the agent's restarts are written down as they happen.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchett.launch.standbys import Standbys
from torchett.launch.watch import Watch, look
from torchett.record.attempts import append_fact, attempts_path
from torchett.record.clock import anchor, now_ns
from torchett.record.layout import attempt_folder

_REFILL_S = 2.0
_LOOK_NS = 500_000_000


def main(argv: Sequence[str]) -> None:
    """Run torchrun with these arguments."""
    ranks = _ranks_asked_for(argv)
    # The agent's own store keeps the addresses of dead ranks: a restarted one may wait for them.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    env = dict(os.environ)
    if ranks > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does for its ranks
    size = int(os.environ.get("ETT_STANDBY", "0")) and ranks
    standbys = Standbys(size, env)
    standbys.fill()
    try:
        _torchrun(list(argv), standbys)
    finally:
        standbys.close()


def _torchrun(argv: list[str], standbys: Standbys) -> None:
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.agent.server import local_elastic_agent
    from torch.distributed.elastic.multiprocessing import api

    journal = _Journal()
    handler_class = api.SubprocessHandler

    class Handler(handler_class):  # type: ignore[misc, valid-type]
        """A rank's process: a standby if one fits, else a new interpreter."""

        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            env = env | journal.environment()
            files = [stream.name if stream else None for stream in (self._stdout, self._stderr)]
            python, *rest = args
            if python == sys.executable and len(rest) > 1 and rest[0] == "-u":
                taken = standbys.take(rest[1:], env, files[0], files[1])
                if taken is not None:
                    return taken
            return super()._popen(args, env)

    def handler(**kwargs: Any) -> Any:
        return Handler(**kwargs)

    agent_class = local_elastic_agent.LocalElasticAgent
    start, stop, monitor = (
        getattr(agent_class, name)
        for name in ("_start_workers", "_stop_workers", "_monitor_workers")
    )

    def start_workers(self: Any, group: Any) -> Any:
        started = start(self, group)
        standbys.fill_later(_REFILL_S)
        return started

    def monitor_workers(self: Any, group: Any) -> Any:
        journal.end_hung_ranks(self._pcontext.pids() if self._pcontext else {})
        result = monitor(self, group)
        if result.failures:
            first = min(result.failures.values(), key=lambda failure: failure.timestamp)
            journal.failed(_cause(first.exitcode))
        return result

    def stop_workers(self: Any, group: Any) -> Any:
        stopped = stop(self, group)
        journal.over(group.spec.max_restarts - self._remaining_restarts)
        return stopped

    api.get_subprocess_handler = handler
    agent_class._start_workers = start_workers
    agent_class._monitor_workers = monitor_workers
    agent_class._stop_workers = stop_workers
    torchrun.main(argv)


class _Journal:
    """Watches the ranks and writes down restarts (the latter if this agent is node 0's)."""

    def __init__(self) -> None:
        run = os.environ.get("ETT_RUN")
        node = int(os.environ.get("ETT_NODE", "0"))
        self._run = Path(run or ".")
        self._path = attempts_path(self._run) if run and node == 0 else None
        timeout_s = float(os.environ.get("ETT_HANG_TIMEOUT", "0"))
        self._watch = Watch(timeout_s) if timeout_s > 0 else None
        self._looked_ns = 0
        self._hung = False
        self._attempt = int(os.environ.get("ETT_ATTEMPT", "0"))
        self._clock = anchor().clock
        self._began = os.environ.get("ETT_ATTEMPT_BEGAN", "")
        self._restarts = 0
        self._cause: str | None = None
        self._ended_ns = 0

    def environment(self) -> dict[str, str]:
        return {"ETT_ATTEMPT_BEGAN": self._began}

    def end_hung_ranks(self, pids: dict[int, int]) -> None:
        """Kill ranks that show no life: the agent then does as for any rank that died."""
        now = now_ns()
        if self._watch is None or now - self._looked_ns < _LOOK_NS or not pids:
            return
        self._looked_ns = now
        folder = attempt_folder(self._run, self._attempt, self._restarts)
        for pid in self._watch.hung(look(pids, folder), now):
            local_rank = next(rank for rank, known in pids.items() if known == pid)
            print(
                f"ett: local rank {local_rank} (pid {pid}) shows no sign of life: ended",
                file=sys.stderr,
                flush=True,
            )
            self._hung = True
            os.kill(pid, signal.SIGKILL)

    def failed(self, cause: str) -> None:
        """A rank has failed, and its peers are stopped."""
        self._cause = "hang" if self._hung else cause
        self._hung, self._ended_ns = False, now_ns()

    def over(self, restarts: int) -> None:
        """The workers are stopped, and `restarts` (counting this one) have been used."""
        if restarts == self._restarts:
            return  # the last attempt: its end is the launcher's to see
        self._restarts = restarts
        now = now_ns()
        self._began = f"{now}@{self._clock}@{restarts}"
        if self._path is None:
            return
        lane = {"attempt": self._attempt, "restart": restarts - 1}
        ended = self._ended_ns or now  # a restart for a change of members has no failure
        end = {"event": "end", **lane, "t_ns": ended, "outcome": "failed", "cause": self._cause}
        start = {"event": "start", **lane, "restart": restarts, "t_ns": now}
        self._cause, self._ended_ns = None, 0
        for fact in (end, start):
            try:
                append_fact(self._path, fact)
            except OSError:
                return


def _cause(exitcode: int) -> str:
    return signal.Signals(-exitcode).name if exitcode < 0 else f"exit_{exitcode}"


def _ranks_asked_for(argv: Sequence[str]) -> int:
    """--nproc-per-node as far as it can be told without torch; 1 otherwise."""
    for i, word in enumerate(argv):
        name, eq, value = word.partition("=")
        if name in ("--nproc-per-node", "--nproc_per_node"):
            value = value if eq else (argv[i + 1] if i + 1 < len(argv) else "")
            return int(value) if value.isdigit() else 1
        if not word.startswith("-") and word.endswith(".py"):
            break
    asked = os.environ.get("PET_NPROC_PER_NODE", "1")
    return int(asked) if asked.isdigit() else 1


if __name__ == "__main__":
    main(sys.argv[1:])
