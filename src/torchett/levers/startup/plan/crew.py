"""The threads of one run of a plan.

    main thread    dispatch │ a main stage │ wait ┄┄┄ │ a main stage │ wait ┄┄ done
    stage thread            │ its stage ──────────────┤ dispatch (starts the stages after it)
    stage thread            │ its stage ──────┤ dispatch

The thread that finishes a stage starts the stages that may start now. So no stage waits for the
main thread while that runs a stage itself.
"""

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchett.levers.startup.plan.plan_run import StageRun
from torchett.levers.startup.plan.run_in_process import call_apart
from torchett.levers.startup.plan.schedule import Stage, may_start
from torchett.levers.startup.plan.surroundings import (
    Surroundings,
    generators,
    moved,
    own_loader_seeds,
    own_random_numbers,
    seed_of,
)
from torchett.record.clock import now_ns
from torchett.record.process.joined_threads import begin_beside

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


class Crew:
    """One run of a plan; `stages` are in serial order. `_turn` guards all attributes."""

    def __init__(
        self, stages: Sequence[Stage], functions: Mapping[str, Callable[..., Any]], seed: int
    ) -> None:
        self._waiting = list(stages)
        self._running: list[Stage] = []
        self._on_main: Stage | None = None  # the next stage for the main thread
        self._functions = functions
        self._seed = seed
        self._main = threading.get_ident()
        self._turn = threading.Condition()
        self._around = Surroundings()
        self._processes: list[BaseProcess] = []
        self.results: dict[str, Any] = {}
        self.errors: dict[str, BaseException] = {}
        self.runs: dict[str, StageRun] = {}
        self.drew: list[Stage] = []  # stages that drew random numbers; set by `work_alone` only

    def work(self) -> None:
        """Run all stages: those on main here, the others on threads."""
        try:
            while (stage := self._next_on_main()) is not None:
                self._perform(stage)
                if isinstance(error := self.errors.get(stage.name), KeyboardInterrupt):
                    raise error
        except BaseException:  # Ctrl-C: do not wait for running stages
            with self._turn:
                self._waiting.clear()
            for process in self._processes:
                process.terminate()
            raise

    def work_alone(self) -> None:
        """Run all stages one after the other, on this thread."""
        for stage in list(self._waiting):
            before = generators()
            self._perform(stage)
            if stage.name in self.errors:
                return
            if not stage.rng and moved(before):
                self.drew.append(stage)

    def _next_on_main(self) -> Stage | None:
        """Wait for a stage to run on this thread; None when all stages are over."""
        with self._turn:
            self._around = Surroundings()  # the last stage may have chosen this rank's device
            self._dispatch()
            while self._running:
                if (stage := self._on_main) is not None:
                    self._on_main = None
                    if not self.errors:
                        return stage
                    self._running.remove(stage)
                else:
                    self._turn.wait()
                    self._dispatch()  # the thread that finished a stage may not have done it yet
            return None

    def _dispatch(self) -> None:
        """Start the stages that may start, in serial order. The caller holds the condition."""
        for stage in list(self._waiting):
            if self.errors:
                return
            if not may_start(
                stage, waiting=self._waiting, running=self._running, done=self.results
            ):
                continue
            self._waiting.remove(stage)
            self._running.append(stage)
            if stage.runs == "main":
                self._on_main = stage
                continue
            try:  # after Ctrl-C the interpreter waits only briefly for such a thread
                begin_beside(self._perform_and_go_on, stage, name=f"ett-{stage.name}")
            except RuntimeError as error:  # no more threads
                self.errors[stage.name] = error
                self._running.remove(stage)

    def _perform_and_go_on(self, stage: Stage) -> None:
        self._perform(stage)
        with self._turn:
            self._dispatch()
            self._turn.notify_all()

    def _perform(self, stage: Stage) -> None:
        """Run one stage on this thread and store its result or error."""
        error, result = None, None
        t0 = now_ns()
        try:
            result = self._call(stage)
        except BaseException as raised:  # SystemExit too: `Plan.run` raises it
            error = raised
        run = StageRun(stage=stage, t0_ns=t0, t1_ns=now_ns())
        with self._turn:
            self.runs[stage.name] = run
            if error is None:
                self.results[stage.name] = result
            else:
                self.errors[stage.name] = error
            if stage in self._running:
                self._running.remove(stage)

    def _call(self, stage: Stage) -> Any:
        function = self._functions[stage.name]
        args = tuple(self.results[name] for name in stage.after) if takes_results(function) else ()
        seed = seed_of(self._seed, stage.name)
        if stage.runs == "process":
            own = seed if stage.rng else None
            return call_apart(function, args, seed=own, started=self._processes.append)
        with own_random_numbers(seed) if stage.rng else own_loader_seeds(seed):
            if threading.get_ident() == self._main:
                return function(*args)
            return self._around.call(function, *args)


def takes_results(function: Callable[..., Any]) -> bool:
    """Whether a stage takes the results of the stages before it, or only waits for them."""
    return takes_any(function) or bool(required(function))


def takes_any(function: Callable[..., Any]) -> bool:
    """Whether it takes any number of results (`*others`)."""
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind is p.VAR_POSITIONAL for p in parameters)


def required(function: Callable[..., Any]) -> list[str]:
    """The parameters that must be given by position."""
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in by_position and p.default is p.empty]
