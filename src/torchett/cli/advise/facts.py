"""A run as advice sees it: its ledger, and what levers and its command say beside it."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchett.advise.job_facts import JobFacts, Known
    from torchett.levers.compile.observe.facts import Compile
    from torchett.report.sections.next_steps import NextStep
    from torchett.runs.reader import RunReader

_WORKERS = re.compile(r"(?:^|[-_.])(?:num[-_])?workers$")
_BEST = 3  # that a report ends with
_NOTABLE_POINTS = 1.0  # of ETT%: a smaller gain is in a report only if a second run would show it
_WITH_SNAPSHOTS = 3  # copies of a rank's state that ett.Checkpointer holds


def facts_of(reader: "RunReader") -> "JobFacts":
    """A run as advice sees it: its ledger, and what levers and logs say beside it."""
    from torchett.advise.job_facts import job_facts

    return job_facts(reader.ledger(), reader.history(), known_of(reader))


def known_of(reader: "RunReader") -> "Known":
    """What levers noted in a run: which were on, which compiles found no cached code."""
    from torchett.advise.job_facts import Known
    from torchett.cli.compile.doctor import compiles_of
    from torchett.levers.compile.doctor.doctor import diagnose

    compiles = compiles_of(reader)
    cold: dict[int, bool] = {}
    for attempt, _, one in compiles:
        missed = any(name.endswith("miss") and times for name, times in one.caches.items())
        found = any(name.endswith("hit") and times for name, times in one.caches.items())
        if (missed or found) and not one.again:
            cold[attempt] = cold.get(attempt, False) or missed
    recompiles = diagnose(compiles).recompiles
    return Known(
        on=_on(reader, compiles),
        cold=cold,
        new_launchers=reader.new_launchers,
        workers=_workers(reader.command),
        cured_s=sum(one.ns for one in recompiles if one.cured) / 1e9 if recompiles else None,
        tuned_s=sum(one.by_ns.get("autotune", 0) for _, _, one in compiles if not one.again) / 1e9,
    )


def _on(reader: "RunReader", compiles: "list[tuple[int, int, Compile]]") -> frozenset[str]:
    """The levers that `ett run` had on, and those that left a note."""
    memory = [fact for _, _, fact in reader.facts("checkpoint_memory")]
    noted = {
        "compile-cache": any(True for _ in reader.facts("compile_cache")),
        "startup-plan": any(fact.get("overlapped") for _, _, fact in reader.facts("plan")),
        "warm-up": any(one.background for _, _, one in compiles),
        "async-saves": bool(memory),
        "snapshots": any(fact.get("buffers", 0) >= _WITH_SNAPSHOTS for fact in memory),
    }
    return reader.levers | {name for name, on in noted.items() if on}


def _workers(command: Sequence[str]) -> int | None:
    """The number of loader workers in a command: --num-workers 4, --dataloader.num_workers=4."""
    words = [part for word in command for part in word.split("=", 1)]
    for name, value in pairwise(words):
        if name.startswith("-") and _WORKERS.search(name) and value.isdigit():
            return int(value)
    return None


def three_best(reader: "RunReader") -> "list[NextStep]":
    """What a report ends with: the three levers that win most, of those that win notably."""
    from torchett.advise.advice import advise
    from torchett.report.sections.next_steps import NextStep

    notable = [
        one
        for one in advise(facts_of(reader)).predictions
        if one.points.mid >= _NOTABLE_POINTS or one.points.low > 0
    ]
    return [
        NextStep(
            title=one.title,
            seconds=one.seconds.mid,
            points=one.points.mid,
            between=(one.points.low, one.points.high),
            reason=one.reason,
            change=one.change,
        )
        for one in notable[:_BEST]
    ]
