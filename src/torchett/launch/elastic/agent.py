"""What `ett run -- torchrun …` starts: torchrun with our subclass of torch's elastic agent.

All of torchrun is torch's: options, rendezvous, logs, restarts. What is ours: a rank is started in
a standby where one waits, starts and failures are written down, and the ranks' store is served by
the agent. Where this torch lacks what that needs, torch's own torchrun is run instead.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from torchett.launch.elastic import rank_store
from torchett.launch.elastic.journal import Journal
from torchett.launch.imports import bytecode
from torchett.launch.restarts import FD, AskPolicy
from torchett.launch.standby.pool import StandbyPool, say_once, start_pool


def main(argv: Sequence[str]) -> NoReturn:
    """Run torchrun with these arguments."""
    bytecode.install_plugin()
    ahead = bytecode.compile_ahead()
    serve_store = rank_store.claim(os.environ)
    os.environ["ETT_AGENT_BEGAN"] = str(time.time())
    # A scheduler may send its warning to every process. Ranks do not inherit this handler.
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    policy = AskPolicy(os.environ.pop(FD, None))  # before ranks or standbys inherit it
    ranks = _ranks_asked_for(argv)
    wants_standbys = os.environ.get("ETT_STANDBY") == "1"
    pool = start_pool(ranks, _environment(ranks)) if ranks and wants_standbys else None
    job = _Job(pool, wants_standbys, serve_store, policy)
    code = 0
    stock = None
    try:
        stock = job.run(list(argv))
    except Exception:  # the job failed, or was asked to end
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        bytecode.stop(ahead)
        job.close()
    if stock is not None:
        if serve_store:
            rank_store.unclaim(os.environ)
        _run_stock(argv, stock)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if job.used_multiprocessing:
        sys.exit(code)  # its semaphores are freed in the teardown
    os._exit(code)  # a teardown would take a quarter of a second


class _Job:
    """A job's agent, and the standbys it uses."""

    def __init__(
        self,
        pool: StandbyPool | None,
        wants_standbys: bool,
        serve_store: bool,
        policy: AskPolicy,
    ) -> None:
        self._pool, self._wants_standbys = pool, wants_standbys
        self._serve_store, self._policy = serve_store, policy
        self._journal = Journal(os.environ)
        self.used_multiprocessing = False  # by torch, for --run-path

    def run(self, argv: list[str]) -> str | None:
        """Run torchrun; if this torch cannot be driven, what it lacks, and nothing is done."""
        from torchett.launch.elastic.torch_names import missing

        if lacks := missing():
            return lacks
        from torch.distributed import run as torchrun

        from torchett.launch.elastic.elastic_agent import TorchDiffersError
        from torchett.record.patches import install

        def ours(plain: Any) -> Callable[..., Any]:
            return lambda config, entrypoint, **_: (
                lambda *args: self._launch(config, entrypoint, args)
            )

        install("torch.distributed.run:elastic_launch", ours)
        try:
            torchrun.main(argv)
        except TorchDiffersError as error:
            return str(error)
        return None

    def _launch(self, config: Any, entrypoint: Any, args: tuple[str, ...]) -> dict[int, Any]:
        from torchett.launch.elastic.elastic_agent import launch

        self.used_multiprocessing = callable(entrypoint)
        if self._wants_standbys and (why := _why_no_standbys(config, entrypoint, args)):
            say_once(why)
            self.close()
        elif self._wants_standbys and self._pool is None:  # only torch knows the number of ranks
            self._pool = start_pool(config.nproc_per_node, dict(os.environ), in_agent=False)
        return launch(
            config,
            entrypoint,
            args,
            pool=self._pool,
            journal=self._journal,
            policy=self._policy,
            serve_store=self._serve_store,
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._journal.standbys(self._pool.most_bytes)
            self._pool = None


def _why_no_standbys(config: Any, entrypoint: Any, args: tuple[str, ...]) -> str | None:
    """Why ranks of this command cannot be started in standbys; None if they can."""
    if callable(entrypoint):
        return "--run-path runs the script in torch's own processes"
    if getattr(config, "numa_options", None) is not None:
        return "they are bound to NUMA nodes"
    if getattr(config, "virtual_local_rank", False):
        return "--virtual-local-rank gives each its own CUDA_VISIBLE_DEVICES"
    is_script = args[:1] == ("-u",) and (args[1:2] == ("-m",) or not args[1].startswith("-"))
    if entrypoint != sys.executable or not is_script:
        return f"the command is '{entrypoint}', not a script for this Python"
    return None


def _run_stock(argv: Sequence[str], lacks: str) -> NoReturn:
    """Replace this process by torch's own torchrun."""
    print(
        f"torchett: this torch has no {lacks} as we know it: torch's own torchrun runs the job,"
        " without standbys",
        file=sys.stderr,
        flush=True,
    )
    command = [sys.executable, "-uP", "-m", "torch.distributed.run", *argv]
    os.execv(sys.executable, command)


def _environment(ranks: int) -> dict[str, str]:
    """The environment that torchrun will give this many ranks."""
    env = dict(os.environ)
    if ranks > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    return env


def _ranks_asked_for(argv: Sequence[str]) -> int:
    """--nproc-per-node, if it is known without torch; 0 if only torch knows it."""
    for i, word in enumerate(argv):
        name, eq, value = word.partition("=")
        if name in ("--nproc-per-node", "--nproc_per_node"):
            value = value if eq else (argv[i + 1] if i + 1 < len(argv) else "")
            return int(value) if value.isdigit() else 0
        if not word.startswith("-") and word.endswith(".py"):
            break
    asked = os.environ.get("PET_NPROC_PER_NODE", "1")
    return int(asked) if asked.isdigit() else 0


if __name__ == "__main__":
    main(sys.argv[1:])
