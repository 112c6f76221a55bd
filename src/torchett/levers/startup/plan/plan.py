"""A start-up plan: independent stages run at the same time.

    plan = ett.Plan()

    @plan.stage("process_group_init", runs="main")
    def group(): ...

    @plan.stage("preproc_creation")
    def loader(): ...

    @plan.stage("train_module_creation")
    def model(): ...

    @plan.stage("checkpoint_restore", after=[model])
    def restore(model): ...

    ready = plan.run()               # ready.loader, ready.model, ready.restore

    one after the other   │ group │ loader ─────── │ model ───── │ restore ─ │
    as a plan             │ group │
                          │ loader ─────── │
                          │ model ───── │ restore ─ │                          first step

The results are bit-identical to a run of the stages one after the other, as with
`run(overlap=False)` or ETT_DISABLE=1. For this, the plan has rules:
- Stages on main run in the order of their declaration, which is the same on every rank. A stage
  that communicates with other ranks or makes a CUDA context must run there.
- Stages that draw random numbers need `rng=True` (the default for train_module_creation). They
  never run at the same time, see `surroundings`. A stage that draws without it gets a warning. A
  DataLoader that begins to iterate does not need it; one that shuffles needs a generator.
- A stage does not call `ett.stage`: the plan records it, once the critical path is known.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from torchett.levers.startup.plan.crew import Crew, required, takes_any, takes_results
from torchett.levers.startup.plan.plan_run import PastSpan, PlanRun, record_run, to_flight_record
from torchett.levers.startup.plan.schedule import Runs, Stage, serial_order
from torchett.levers.startup.plan.surroundings import base_seed, generators, moved
from torchett.model.accounts import BY_NAME, is_own
from torchett.record.api import init, note
from torchett.record.clock import now_ns

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("torchett")
_HERE = str(Path(__file__).parent)


class Ready:
    """What the stages returned: `ready.model` or `ready["model"]`, by the function's name."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self._results = MappingProxyType(dict(results))

    def __getattr__(self, name: str) -> Any:
        try:
            return self._results[name]
        except KeyError:
            raise AttributeError(f"no stage '{name}': {', '.join(self._results)}") from None

    def __getitem__(self, name: str) -> Any:
        return self._results[name]

    def __repr__(self) -> str:
        return f"Ready({', '.join(self._results)})"


class Plan:
    """Stages to run before the first step, with their dependencies.

    `seed` is the base of every stage's random numbers; by default the seed given to torch. `last`
    is the last run of this plan, also if a stage raised; None before the first run.
    """

    def __init__(self, *, seed: int | None = None) -> None:
        self._seed = seed
        self._stages: list[Stage] = []
        self._functions: dict[str, Callable[..., Any]] = {}
        self.last: PlanRun | None = None

    def stage(
        self,
        account: str,
        *,
        after: Sequence[Callable[..., Any] | str] = (),
        runs: Runs = "thread",
        rng: bool | None = None,
    ) -> Callable[[F], F]:
        """Declare the function as a stage, recorded under a start account or x-NAME.

        Its arguments are the results of the stages in `after`, in that order. A function without
        required arguments gets none and only waits for them. It stays an ordinary function.
        """
        if not is_own(account) and (account not in BY_NAME or BY_NAME[account].kind != "start"):
            raise ValueError(f"no start account '{account}': use one of them, or x-{account}")
        if runs not in ("thread", "process", "main"):
            raise ValueError(f"runs={runs!r}: expected 'thread', 'process' or 'main'")
        draws = account == "train_module_creation" if rng is None else rng

        def declare(function: F) -> F:
            name = function.__name__
            needs = tuple(self._name_of(other, name) for other in after)
            _check(function, name, needs, runs, taken=self._functions)
            self._stages.append(
                Stage(
                    name=name,
                    account=account,
                    runs=runs,
                    rng=draws,
                    after=needs,
                    given=takes_results(function),
                )
            )
            self._functions[name] = function
            return function

        return declare

    def run(self, *, overlap: bool = True, record: PastSpan | None = None) -> Ready:
        """Run the stages and return their results.

        If a stage raises, no further stage is started, and running stages are waited for. Then the
        error of the first failed stage in serial order is raised.
        """
        init()
        stages = serial_order(self._stages)
        overlap = overlap and os.environ.get("ETT_DISABLE") != "1"
        seed = base_seed() if self._seed is None else self._seed
        before = generators()
        crew = Crew(stages, self._functions, seed)
        t0 = now_ns()
        try:
            if overlap:
                crew.work()
            else:
                crew.work_alone()
        finally:
            runs = tuple(crew.runs[stage.name] for stage in stages if stage.name in crew.runs)
            self.last = PlanRun(t0_ns=t0, t1_ns=now_ns(), stages=runs, overlapped=overlap)
            _record(self.last, record)
        for stage in stages:
            if (error := crew.errors.get(stage.name)) is not None:
                raise error.with_traceback(_users_part(error.__traceback__))
        if moved(before):
            _warn_of_draws(stages if overlap else crew.drew)
        return Ready({stage.name: crew.results[stage.name] for stage in stages})

    def _name_of(self, other: Callable[..., Any] | str, name: str) -> str:
        if isinstance(other, str):
            return other  # looked up when the plan runs: it may be declared later
        found = getattr(other, "__name__", repr(other))
        if self._functions.get(found) is not other:
            raise ValueError(f"stage '{name}' is after '{found}', not a stage of this plan")
        return found


def _check(
    function: Callable[..., Any],
    name: str,
    needs: tuple[str, ...],
    runs: Runs,
    *,
    taken: Mapping[str, Any],
) -> None:
    """ValueError for a stage that could not run as declared."""
    if name in taken:
        raise ValueError(f"a second stage '{name}': results are found by name, so rename one")
    if runs == "process" and "<" in function.__qualname__:
        raise ValueError(
            f"stage '{name}' runs in a process, which imports it by name: move "
            f"{function.__qualname__} to the top level of its module"
        )
    takes = required(function)
    swapped = any(one in needs and one != need for one, need in zip(takes, needs, strict=False))
    fits = len(takes) <= len(needs) if takes_any(function) else len(takes) == len(needs)
    if takes_results(function) and (swapped or not fits):
        raise ValueError(
            f"stage '{name}' takes ({', '.join(takes)}), but its arguments are the results of "
            f"after=[{', '.join(needs)}], in that order"
        )


def _record(run: PlanRun, past_span: PastSpan | None) -> None:
    try:
        record_run(run, past_span or to_flight_record)
        if past_span is None:
            note("plan", run.to_json())
    except Exception as error:  # a failed record must not fail the plan
        log.warning("torchett: the plan's stages were not recorded: %r", error)


def _warn_of_draws(stages: Sequence[Stage]) -> None:
    """Warn that some of these stages drew random numbers without `rng=True`."""
    undeclared = [f"'{stage.name}'" for stage in stages if not stage.rng]
    if undeclared:
        log.warning(
            "torchett: random numbers were drawn in stage %s without rng=True: "
            "they may depend on timing",
            " or ".join(undeclared),
        )


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without torchett's frames on top."""
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_HERE):
        inner = inner.tb_next
    return inner or trace
