"""torch's own elastic agent, with standbys: what `ett run -- torchrun …` starts.

All of torchrun is torch's: options, rendezvous, logs, restarts. Three seams are ours: a rank is
handed to a standby where one waits, or forked from a template where that is possible; the agent's
restarts are written down as they happen; and the port that ranks are to meet on is kept for them.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from torchett.launch.forks import Forks, fit
from torchett.launch.imports import bytecode
from torchett.launch.journal import Journal
from torchett.launch.port import keep_ports
from torchett.launch.standby import shorten_imports
from torchett.launch.standbys import PRELOAD, Standbys
from torchett.launch.supply import Supply

_REFILL_AT_LAST_S = 60.0  # ranks that keep no record: nobody knows when they train


def main(argv: Sequence[str]) -> None:
    """Run torchrun with these arguments."""
    shorten_imports()
    ahead = bytecode.compile_ahead()
    ranks = _ranks_asked_for(argv)
    # The agent's own store keeps the addresses of dead ranks: a restarted one may wait for them.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    os.environ["ETT_AGENT_BEGAN"] = str(time.time())
    env = dict(os.environ)
    if ranks > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does for its ranks
    size = int(os.environ.get("ETT_STANDBY", "0")) and ranks
    standbys = _standbys(size, env)
    # A warning for the ranks; a scheduler may send it to every process. Ranks do not inherit this.
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    journal = Journal(os.environ)
    code = 0
    try:
        _torchrun(list(argv), standbys, journal)
    except Exception:  # the job failed, or was told to end
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        bytecode.stop(ahead)
        standbys.close()
        journal.standbys(standbys.most_bytes)
    _leave(code)


def _standbys(size: int, env: dict[str, str]) -> Standbys | Forks | Supply:
    """Processes for the ranks, as warm as they can be had at once."""
    on_device = os.environ.get("ETT_STANDBY_DEVICE") == "1"
    preload = [*PRELOAD, *filter(None, os.environ.get("ETT_PRELOAD", "").split(","))]
    # A model is compiled for one rank: that of several a template has not.
    rank_by_rank = size > 1 and os.environ.get("ETT_STANDBY_MODEL") == "1"
    if size and not on_device and fit(env):
        os.environ.update(env)
        forks = Forks(env, preload, cooks=not rank_by_rank)
        forks.begin()
        return Supply(forks, Standbys(size, env, preload)) if rank_by_rank else forks
    standbys = Standbys(size, env, preload, on_device=on_device)
    standbys.fill()
    return standbys


def _leave(code: int) -> NoReturn:
    """Without tearing the interpreter down, a quarter of a second: nothing is left to be done."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _torchrun(argv: list[str], standbys: Standbys | Forks | Supply, journal: Journal) -> None:
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.agent.server import local_elastic_agent
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.rendezvous import api as rendezvous_api

    refill = _Refill(standbys, journal)
    handler_class = api.SubprocessHandler

    class Handler(handler_class):  # type: ignore[misc, valid-type]
        """A rank's process: a standby if one fits, else a new interpreter."""

        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            env = env | journal.environment()
            files = [stream.name if stream else None for stream in (self._stdout, self._stderr)]
            python, *rest = args
            # By --no-python the interpreter may get options of its own: a standby has none of them.
            option = len(rest) > 1 and rest[1].startswith("-") and rest[1] != "-m"
            if python == sys.executable and len(rest) > 1 and rest[0] == "-u" and not option:
                taken = standbys.take(rest[1:], env, files[0], files[1])
                if taken is not None:
                    return taken
            return super()._popen(args, env)

        def close(self, death_sig: Any = None) -> None:
            """Ask the rank itself to end: its helpers (loader workers, uploads) are its own.

            torchrun asks the whole process group, and a rank whose workers are gone cannot finish
            the step after which it would save.
            """
            if death_sig == signal.SIGTERM:
                self.proc.send_signal(death_sig)  # nothing to one that has left meanwhile
            else:
                super().close(death_sig)

    def handler(**kwargs: Any) -> Any:
        return Handler(**kwargs)

    agent_class = local_elastic_agent.LocalElasticAgent
    rendezvous, start, monitor = (
        getattr(agent_class, name) for name in ("_rendezvous", "_start_workers", "_monitor_workers")
    )

    def meet(self: Any, group: Any) -> None:
        journal.stopped()
        _meet_at_once(group.spec.rdzv_handler)
        rendezvous(self, group)
        elastic = group.spec.rdzv_handler.get_backend() != "static"
        rank, size = group.group_rank, group.group_world_size
        journal.met(group.store, rank=rank, size=size, elastic=elastic)

    def start_workers(self: Any, group: Any) -> Any:
        started = start(self, group)
        refill.started(len(started))
        return started

    def close_all(self: Any, death_sig: Any, timeout: int = 30) -> None:
        handlers = self.subprocess_handlers.values()
        well = all(handler.proc.poll() == 0 for handler in handlers)
        if not well and not isinstance(sys.exc_info()[1], api.SignalException):
            journal.stopping()
        close(self, death_sig, timeout)
        for handler in () if well else handlers:
            try:
                os.killpg(handler.proc.pid, signal.SIGKILL)  # what a rank left behind
            except (ProcessLookupError, PermissionError):
                pass

    def monitor_workers(self: Any, group: Any) -> Any:
        local = self._pcontext.pids() if self._pcontext else {}
        pids = {w.global_rank: local[w.local_rank] for w in group.workers if w.local_rank in local}
        journal.end_hung_ranks(pids)
        standbys.weigh()
        refill.look(pids)
        result = monitor(self, group)
        if result.failures:
            first = min(result.failures.values(), key=lambda failure: failure.timestamp)
            journal.failed(first.exitcode)
        return result

    def told(number: int, frame: Any) -> None:
        # Once is enough: a scheduler may tell the agent, and then its launcher does.
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
        raise_told(number, frame)

    close = api.SubprocessContext._close
    raise_told = api._terminate_process_handler
    api._terminate_process_handler = told
    api.SubprocessContext._close = close_all
    api.get_subprocess_handler = handler
    agent_class._rendezvous = meet
    agent_class._start_workers = start_workers
    agent_class._monitor_workers = monitor_workers
    keep_ports(rendezvous_api)
    torchrun.main(argv)


def _meet_at_once(handler: Any) -> None:
    """Leave out torch's random pause of up to 0.3 s where one node has nobody to be in step with.

    It is made before the first start and before the first restart, to spare the store.
    """
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    if getattr(getattr(handler, "_settings", None), "max_nodes", 0) == 1:
        dynamic_rendezvous._delay = _pause_if_certain


def _pause_if_certain(seconds: float | tuple[float, float]) -> None:
    if not isinstance(seconds, tuple):
        time.sleep(seconds)


class _Refill:
    """Decides when the standbys that were used are replaced: when that holds nobody up.

    Their imports cost some ten seconds of a core each. With cores to spare that is at once, else
    when the ranks train: a start-up that is slowed down is time lost, a step hardly.
    """

    def __init__(self, standbys: Standbys | Forks | Supply, journal: Journal) -> None:
        self._standbys, self._journal = standbys, journal
        self._since_s: float | None = None
        self._looked_s = 0.0

    def started(self, ranks: int) -> None:
        if len(os.sched_getaffinity(0)) >= 4 * ranks:
            self._standbys.fill(spare=True)
        else:
            self._since_s = self._looked_s = time.monotonic()

    def look(self, pids: dict[int, int]) -> None:
        now = time.monotonic()
        if self._since_s is None or now - self._looked_s < 1.0:
            return
        self._looked_s = now
        if now - self._since_s >= _REFILL_AT_LAST_S or self._journal.training(pids):
            self._since_s = None
            self._standbys.fill(spare=True)


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
