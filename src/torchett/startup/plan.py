"""A start-up plan: stages that do not need each other run at the same time.

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

What comes back is what one after the other would have given, to the bit: `run(overlap=False)`
does just that, and so does ETT_DISABLE=1. For the sake of it,
- stages on main run in the order of their declaration, so ranks agree on it: whatever talks to
  other ranks or makes a CUDA context belongs there;
- stages that draw random numbers say `rng=True` (those of train_module_creation need not) and
  never run beside each other, see `surroundings`; one that draws without saying so is warned of
  (a DataLoader that begins to iterate need not be said; one that shuffles needs a generator);
- a stage's body does not call `ett.stage`: the plan records it, when it knows who was waited for.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from torchett.model.accounts import BY_NAME, is_own
from torchett.record.api import init, note
from torchett.record.clock import now_ns
from torchett.startup.crew import Crew, required, takes_any, takes_results
from torchett.startup.plan_run import PastSpan, PlanRun, record_run, to_flight_record
from torchett.startup.schedule import Runs, Stage, serial_order
from torchett.startup.surroundings import base_seed, generators, moved
from torchett.startup.turns import short_turns

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
    """Stages to run before the first step, and what they need of each other.

    `seed` is where the random numbers of every stage come from: the one given to torch, if not
    said. `last` is the run of this plan, also where a stage raised; None before there was one.
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
        """Declare the function a stage, booked under a start account or x-NAME.

        It is given the results of the stages it is `after`, in that order; a function that
        requires no argument is given none and just waits for them. It stays an ordinary function.
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
        """Run the stages and give back what they returned.

        Where one raises, no further stage is started, those that run are waited for, and of
        the errors then known the one that comes first in serial order is raised.
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
                with short_turns():
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
            return other  # looked up when the plan runs: it may be declared further down
        found = getattr(other, "__name__", repr(other))
        if self._functions.get(found) is not other:
            raise ValueError(f"stage '{name}' is after '{found}', which is no stage of this plan")
        return found


def _check(
    function: Callable[..., Any],
    name: str,
    needs: tuple[str, ...],
    runs: Runs,
    *,
    taken: Mapping[str, Any],
) -> None:
    """A stage that could not run as declared is refused where it is declared."""
    if name in taken:
        raise ValueError(f"a second stage '{name}': results go by name, so give it another")
    if runs == "process" and "<" in function.__qualname__:
        raise ValueError(
            f"stage '{name}' runs in a process, which finds it by name: move "
            f"{function.__qualname__} to the top level of its module"
        )
    takes = required(function)
    swapped = any(one in needs and one != need for one, need in zip(takes, needs, strict=False))
    fits = len(takes) <= len(needs) if takes_any(function) else len(takes) == len(needs)
    if takes_results(function) and (swapped or not fits):
        raise ValueError(
            f"stage '{name}' takes ({', '.join(takes)}), but is given the results of "
            f"after=[{', '.join(needs)}], in that order"
        )


def _record(run: PlanRun, past_span: PastSpan | None) -> None:
    try:
        record_run(run, past_span or to_flight_record)
        if past_span is None:
            note("plan", run.to_json())
    except Exception as error:  # a plan that ran well must not end in our trouble
        log.warning("torchett: the plan's stages were not recorded: %r", error)


def _warn_of_draws(stages: Sequence[Stage]) -> None:
    """Say that some of these stages drew without having said so."""
    undeclared = [f"'{stage.name}'" for stage in stages if not stage.rng]
    if undeclared:
        log.warning(
            "torchett: random numbers were drawn in stage %s without rng=True: "
            "what is drawn may depend on timing",
            " or ".join(undeclared),
        )


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without our own frames on top."""
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_HERE):
        inner = inner.tb_next
    return inner or trace
