"""The rules of a start-up plan, without a clock: which stage may start, and the total time.

    main       │ group ──┤    wrap ──┤          in serial order, on the thread that runs the plan
    thread     │ loader ───────────────────┤    as soon as the stages before it are done
    thread     │ model ─────┤                    (rng) never beside another stage with rng
    process    │   tokens ──────────┤            in a separate process, with its own generators

The runner and the predictions below both use `may_start`, so they follow the same rules.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Runs = Literal["thread", "process", "main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One part of start-up: its account, where it runs, and the stages it needs first."""

    name: str
    account: str
    runs: Runs = "thread"
    rng: bool = False
    after: tuple[str, ...] = ()
    given: bool = False  # it takes the results of `after`, so it cannot start before them

    @property
    def shares_rng(self) -> bool:
        """Whether it draws from this process's generators, which all stages share."""
        return self.rng and self.runs != "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """One restriction of a plan, and the time that the plan would win without it."""

    stage: str
    lifted: str
    won_ns: int

    def __str__(self) -> str:
        return f"'{self.stage}' {self.lifted}"


def serial_order(stages: Sequence[Stage]) -> list[Stage]:
    """The stages one after the other: as declared, each after those it needs."""
    names = {stage.name for stage in stages}
    for stage in stages:
        for name in stage.after:
            if name not in names:
                known = ", ".join(sorted(names))
                raise ValueError(f"stage '{stage.name}' is after '{name}': not a stage of {known}")
    order: list[Stage] = []
    done: set[str] = set()
    left = list(stages)
    while left:
        following = next((stage for stage in left if done.issuperset(stage.after)), None)
        if following is None:
            raise ValueError(f"stages wait for each other: {' → '.join(_circle(left))}")
        order.append(following)
        done.add(following.name)
        left.remove(following)
    return order


def _circle(stuck: Sequence[Stage]) -> list[str]:
    """A cycle: each name is after the next one, and the last is the first."""
    after = {stage.name: stage.after for stage in stuck}
    path = [stuck[0].name]
    while path[-1] not in path[:-1]:
        path.append(next(name for name in after[path[-1]] if name in after))
    return path[path.index(path[-1]) :]


def may_start(
    stage: Stage, *, waiting: Iterable[Stage], running: Iterable[Stage], done: Collection[str]
) -> bool:
    """Whether a waiting stage may start now. `waiting` is in serial order and holds the stage.

    Stages on main keep their order even if a later one is ready first: so every rank runs their
    collectives in the same order.
    """
    if not all(name in done for name in stage.after):
        return False
    running = list(running)
    if stage.shares_rng and any(other.shares_rng for other in running):
        return False
    if stage.runs == "main":
        first = next(other for other in waiting if other.runs == "main")
        return first is stage and not any(other.runs == "main" for other in running)
    return True


def makespan(stages: Sequence[Stage], took_ns: Mapping[str, int]) -> int:
    """The time of the plan if each stage takes `took_ns` and all else takes none."""
    waiting, done, now = serial_order(stages), set[str](), 0
    ends: dict[str, int] = {}
    running: list[Stage] = []
    while waiting or running:
        for stage in list(waiting):
            if may_start(stage, waiting=waiting, running=running, done=done):
                waiting.remove(stage)
                running.append(stage)
                ends[stage.name] = now + took_ns[stage.name]
        now = min(ends[stage.name] for stage in running)
        done |= {stage.name for stage in running if ends[stage.name] <= now}
        running = [stage for stage in running if ends[stage.name] > now]
    return now


def next_overlap(stages: Sequence[Stage], took_ns: Mapping[str, int]) -> Overlap | None:
    """The restriction whose removal would shorten the plan most; None if none would."""
    today = makespan(stages, took_ns)
    best: Overlap | None = None
    for i, stage in enumerate(stages):
        for lifted, freer in _freer(stage):
            won = today - makespan([*stages[:i], freer, *stages[i + 1 :]], took_ns)
            if won > (best.won_ns if best else 0):
                best = Overlap(stage=stage.name, lifted=lifted, won_ns=won)
    return best


def _freer(stage: Stage) -> Iterable[tuple[str, Stage]]:
    """The stage without one of its restrictions, each with a description."""
    for name in () if stage.given else stage.after:
        rest = tuple(other for other in stage.after if other != name)
        yield f"without waiting for '{name}'", replace(stage, after=rest)
    if stage.runs == "main":
        yield "on a thread instead of main", replace(stage, runs="thread")
    if stage.shares_rng:
        yield "without the shared random generators (rng=False)", replace(stage, rng=False)
