"""torch's elastic agent, with standbys and a journal: subclasses, and the code that starts them.

    torch.distributed.run       reads torchrun's options, all of them
    launch()                    what torch.distributed.launcher does: rendezvous, WorkerSpec, agent
    Agent                       LocalElasticAgent: writes down starts, failures and their causes
    Ranks, Rank                 SubprocessContext, SubprocessHandler: a rank may run in a standby

Imports torch. The private names that it relies on are listed in torch_names.py.
"""

import inspect
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import torch.distributed.elastic.agent.server.local_elastic_agent as local_agent
import torch.distributed.elastic.multiprocessing.api as processes
import torch.distributed.launcher.api as launcher
from torch.distributed.elastic import events, metrics
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from torchett.launch.elastic import rank_store
from torchett.launch.elastic.beats import GONE_S, Beats
from torchett.launch.elastic.journal import Journal
from torchett.launch.restarts import AskPolicy
from torchett.launch.standby.job import job
from torchett.launch.standby.pool import StandbyPool
from torchett.launch.standby.refill import Refill
from torchett.model.restarts import Outlook
from torchett.record.patches import install


class TorchDiffersError(Exception):
    """This torch lacks a private name that the agent needs."""


def launch(
    config: Any,
    entrypoint: Any,
    args: tuple[str, ...],
    *,
    pool: StandbyPool | None,
    journal: Journal,
    policy: AskPolicy,
    serve_store: bool,
) -> dict[int, Any]:
    """Run the job to its end, as torch's `launch_agent` does; ChildFailedError if it failed."""
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id or str(uuid.uuid4().int),
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    if config.max_nodes == 1:
        _start_rendezvous_at_once()
    address, port = launcher._get_addr_and_port(parameters)
    try:
        spec = WorkerSpec(
            **{
                **_options_of(WorkerSpec, config),
                "local_world_size": config.nproc_per_node,
                "entrypoint": entrypoint,
                "args": args,
                "rdzv_handler": get_rendezvous_handler(parameters),
                "master_addr": address,
                "master_port": port,
            }
        )
        options = _options_of(local_agent.LocalElasticAgent, config)
        agent = Agent(
            spec=spec,
            pool=pool,
            journal=journal,
            policy=policy,
            serve_store=serve_store,
            options=options,
        )
    except (TypeError, AttributeError) as error:
        raise TorchDiffersError(str(error)) from error
    return _run_to_its_end(agent, spec, config, _name(entrypoint, args))


def _run_to_its_end(agent: "Agent", spec: WorkerSpec, config: Any, name: str) -> dict[int, Any]:
    """What the ranks returned; ChildFailedError if the job failed."""
    is_shut_down = True
    try:
        metrics.initialize_metrics(metrics.MetricsConfig(config.metrics_cfg))
        result = agent.run()
        events.record(agent.get_event_succeeded(), config.event_log_handler)
        if result is None:  # a spare that was not needed
            return {}
        if result.is_failed():
            is_shut_down = not (agent.leaves and config.max_nodes > 1)
            raise ChildFailedError(name=name, failures=result.failures)
        return dict(result.return_values)
    except ChildFailedError:
        raise
    except processes.SignalException:
        is_shut_down = False  # other nodes may go on
        events.record(agent.get_event_failed(), config.event_log_handler)
        raise
    except Exception:
        events.record(agent.get_event_failed(), config.event_log_handler)
        raise
    finally:
        agent.close_beats()
        if is_shut_down:
            spec.rdzv_handler.shutdown()


def _options_of(kind: Any, config: Any) -> dict[str, Any]:
    """The parameters of this class that torchrun's options have by the same name."""
    names = inspect.signature(kind).parameters
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def _name(entrypoint: Any, args: tuple[str, ...]) -> str:
    """The script's name, for the report of a failure."""
    if callable(entrypoint):
        return str(entrypoint.__name__)
    is_python = entrypoint == sys.executable
    script = next((arg for arg in args if not arg.startswith("-")), "")
    return script if is_python else str(entrypoint)


def _start_rendezvous_at_once() -> None:
    """Skip the random pause before a rendezvous: a single node needs none."""

    def make(plain: Callable[[Any], None]) -> Callable[[Any], None]:
        def delay(seconds: Any) -> None:
            if not isinstance(seconds, tuple):
                time.sleep(seconds)

        return delay

    install("torch.distributed.elastic.rendezvous.dynamic_rendezvous:_delay", make)


def beats_of(spec: Any, end_ranks: Callable[[], None]) -> Beats | None:
    """The detector of lost nodes; None for a single node or another kind of rendezvous."""
    handler = spec.rdzv_handler
    gone_s = _seconds(os.environ.get("ETT_NODE_TIMEOUT"), GONE_S)
    if "node-watch" in os.environ.get("ETT_WITHOUT", "").split(","):
        return None
    try:
        if handler.get_backend() != "c10d" or handler.settings.max_nodes < 2 or not gone_s:
            return None
        store = handler._store
        return Beats(handler, store.host, store.port, end_ranks, gone_s)
    except AttributeError as error:
        print(f"ett: lost nodes are left to torch's time-outs: no {error.name}", file=sys.stderr)
        return None


def _seconds(text: str | None, otherwise: float) -> float:
    try:
        return max(float(text), 0.0) if text else otherwise
    except ValueError:
        return otherwise


class Agent(local_agent.LocalElasticAgent):  # type: ignore[misc]
    """Starts ranks in standbys, serves their store, and records what happens."""

    def __init__(
        self,
        *,
        spec: Any,
        pool: StandbyPool | None,
        journal: Journal,
        policy: AskPolicy,
        serve_store: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__(spec=spec, **options)
        if not hasattr(self, "_remaining_restarts"):
            raise TorchDiffersError("SimpleElasticAgent._remaining_restarts")
        self._pool, self._journal = pool, journal
        self._refill = None if pool is None else Refill(pool, journal)
        self._serve_store = serve_store
        self._policy = policy
        self._pause_s = 0.0  # before the next start, as the policy said
        self.leaves = False  # this node alone: the others may go on
        self._beats = beats_of(spec, self._kill_ranks)
        self._pids: dict[int, int] = {}  # of the ranks that run here
        self._rank_store: Any = None
        self._ranks: Any = None  # the PContext of the ranks that run

        def make(start: Callable[..., Any]) -> Callable[..., Any]:
            def start_processes(*positional: Any, **kwargs: Any) -> Any:
                self._ranks = self._start_ranks(start, *positional, **kwargs)
                return self._ranks

            return start_processes

        install(f"{local_agent.__name__}:start_processes", make)

    def _rendezvous(self, worker_group: Any) -> None:
        pause_s, self._pause_s = self._pause_s, 0.0
        time.sleep(pause_s)
        self._journal.stopped()
        if self._beats is not None:
            self._beats.meeting()
        super()._rendezvous(worker_group)
        if self._beats is not None:
            self._beats.met()
        self._policy.hear(self._journal.heard())
        self._rank_store = rank_store.serve(worker_group) if self._serve_store else None
        elastic = worker_group.spec.rdzv_handler.get_backend() != "static"
        rank, size = worker_group.group_rank, worker_group.group_world_size
        self._journal.met(worker_group.store, rank=rank, size=size, elastic=elastic)

    def _restart_workers(self, worker_group: Any) -> None:
        if worker_group.state == WorkerState.HEALTHY:
            self._journal.members_change()
        super()._restart_workers(worker_group)

    def _start_workers(self, worker_group: Any) -> dict[int, Any]:
        started: dict[int, Any] = super()._start_workers(worker_group)
        if self._refill is not None:
            self._refill.started(len(started))
        return started

    def _start_ranks(self, start: Callable[..., Any], *positional: Any, **kwargs: Any) -> Any:
        """torch's `start_processes`, with our context for commands."""
        if positional or "entrypoint" not in kwargs or "envs" not in kwargs:
            return start(*positional, **kwargs)
        for env in kwargs["envs"].values():
            env.update(self._journal.environment() | rank_store.environment(self._rank_store))
        if callable(kwargs["entrypoint"]):  # --run-path
            return start(**kwargs)
        options = {key: value for key, value in kwargs.items() if key != "start_method"}
        ranks = Ranks(pool=self._pool, journal=self._journal, **options)
        try:
            ranks.start()
        except Exception:
            ranks.close()
            raise
        return ranks

    def _monitor_workers(self, worker_group: Any) -> Any:
        local = self._ranks.pids() if self._ranks is not None else {}
        workers = worker_group.workers
        pids = {w.global_rank: local[w.local_rank] for w in workers if w.local_rank in local}
        self._pids = pids
        if self._beats is not None and (gone := self._beats.gone()):
            return self._go_on_without(gone, worker_group)
        self._journal.end_hung_ranks(pids)
        if self._pool is not None and self._refill is not None:
            self._pool.weigh()
            self._refill.look(pids)
        result = super()._monitor_workers(worker_group)
        if result.failures and self._journal.all_done(end.pid for end in result.failures.values()):
            done = dict.fromkeys(w.global_rank for w in workers)
            return RunResult(state=WorkerState.SUCCEEDED, return_values=done)
        if result.failures:
            exit_codes = {rank: end.exitcode for rank, end in result.failures.items()}
            self._journal.ranks_failed(exit_codes)
            self._rule(worker_group.spec, exit_codes)
        return result

    def _go_on_without(self, gone: list[str], worker_group: Any) -> Any:
        """Begin a rendezvous without the lost nodes; a spare or a new node may join."""
        for one in gone:
            print(
                f"ett: node {one}: the other nodes begin a new rendezvous",
                file=sys.stderr,
                flush=True,
            )
        self._journal.node_lost()
        self._worker_group.state = WorkerState.UNHEALTHY
        self._restart_workers(worker_group)
        return RunResult(state=WorkerState.HEALTHY)

    def _kill_ranks(self) -> None:
        """End this node's ranks: they may wait in a collective for a lost node.

        If the job is being ended, ranks may be saving, and a node may have exited for that reason.
        """
        if os.path.exists(os.environ.get("ETT_NOTICE", "")):
            return
        for pid in self._pids.values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def close_beats(self) -> None:
        if self._beats is not None:
            self._beats.close(leaves=self.leaves)

    def _rule(self, spec: Any, exit_codes: dict[int, int]) -> None:
        """Make torch's loop follow the restart policy: it restarts while restarts are left.

        TORCHELASTIC_RESTART_COUNT is the difference of both numbers, so both grow.
        """
        decision = self._policy.decide(self._journal.life_end(exit_codes, spec.max_restarts))
        if decision is None:
            return
        self._journal.decided(self._policy.facts)
        if not decision.restarts:
            self._remaining_restarts = 0
            self.leaves = decision.outlook is Outlook.REPLACE_NODE
        elif self._remaining_restarts <= 0:
            self._worker_group.spec.max_restarts += 1
            self._remaining_restarts += 1
        self._pause_s = decision.pause_s


class Ranks(processes.SubprocessContext):  # type: ignore[misc]
    """The ranks of this node, each in a standby if one fits."""

    def __init__(self, *, pool: StandbyPool | None, journal: Journal, **options: Any) -> None:
        super().__init__(**options)
        self._pool, self._journal = pool, journal

    def _start(self) -> None:
        _handle_sigterm_once()
        parameters = inspect.signature(processes.SubprocessHandler).parameters
        numa = {"numa_options": getattr(self, "_numa_options", None)}
        for local_rank in range(self.nprocs):
            self.subprocess_handlers[local_rank] = Rank(
                pool=self._pool,
                entrypoint=self.entrypoint,
                args=self.args[local_rank],
                env=self.envs[local_rank],
                stdout=self.stdouts[local_rank],
                stderr=self.stderrs[local_rank],
                local_rank_id=local_rank,
                **{key: value for key, value in numa.items() if key in parameters},
            )

    def _close(self, death_sig: Any, timeout: int = 30) -> None:
        handlers = self.subprocess_handlers.values()
        well = all(handler.proc.poll() == 0 for handler in handlers)
        if not well and not isinstance(sys.exc_info()[1], processes.SignalException):
            self._journal.stopping()
        super()._close(death_sig, timeout)
        for handler in () if well else handlers:
            try:
                os.killpg(handler.proc.pid, signal.SIGKILL)  # what a rank left running
            except (ProcessLookupError, PermissionError):
                pass


def _handle_sigterm_once() -> None:
    """Ignore a second SIGTERM: a scheduler may send one to the agent, and then to its launcher."""
    handle = signal.getsignal(signal.SIGTERM)
    if not callable(handle):
        return

    def once(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        handle(number, frame)

    signal.signal(signal.SIGTERM, once)


class Rank(processes.SubprocessHandler):  # type: ignore[misc]
    """One rank's process: a standby if one fits, else a new interpreter."""

    def __init__(self, *, pool: StandbyPool | None, **options: Any) -> None:
        self._pool = pool
        self._files = options["stdout"] or None, options["stderr"] or None
        super().__init__(**options)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
        if self._pool is not None and args[:2] == (sys.executable, "-u"):
            taken = self._pool.take(job(list(args[2:]), env, *self._files))
            if taken is not None:
                return taken
        return super()._popen(args, env)

    def close(self, death_sig: Any = None) -> None:
        """Signal only the rank's main process: it ends its own helpers (loader workers, uploads).

        torchrun asks the whole process group, and a rank whose workers are gone cannot finish the
        step after which it would save.
        """
        if death_sig == signal.SIGTERM:
            self.proc.send_signal(death_sig)  # a no-op for one that has exited meanwhile
        else:
            super().close(death_sig)
