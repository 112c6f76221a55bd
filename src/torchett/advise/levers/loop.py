"""Levers inside the loop: loader workers, light batches, dynamic sources."""

from typing import Final

import numpy as np

from torchett.advise.job_facts import JobFacts
from torchett.advise.prediction import Draws, Found, Losses, NotEnough, Nothing
from torchett.advise.priors import prior

_LEAST = 0.001
_NOTABLE = 0.01
_STEPS: Final = 100  # enough to know the usual length of a step and of a wait
_TIMES = 4  # advised workers for each present one


def loader_workers(facts: JobFacts) -> Found | NotEnough | Nothing:
    """More processes that fetch batches.

    With w workers a batch arrives every (step + wait), so one fetch takes w·(step + wait). With n
    workers a batch arrives every w·(step + wait)/n, and the loop waits for what exceeds a step:
    max(0, w·(step + wait)/n − step).
    """
    waited_s = facts.of("data_wait")
    if waited_s < _NOTABLE * facts.rank_s:
        return Nothing(reason=f"the loop waited {waited_s:.1f} rank-s for data")
    if facts.steps < _STEPS or not facts.step_s:
        return _more_steps(facts)
    workers = facts.known.workers
    before = max(workers or 1, 1)
    after = _TIMES * before
    step_s = facts.step_s
    wait_s = waited_s / facts.ranks / facts.steps
    fetch_s = wait_s if workers == 0 else before * (step_s + wait_s)
    ideal_s = max(0.0, fetch_s / after - step_s)

    def effect(losses: Losses, draws: Draws) -> None:
        kept = draws.of("loader-workers.kept", prior("loader-workers.kept"))
        if workers is None:  # then the gain of more workers is uncertain, too
            kept = draws.of("loader-workers.unknown", prior("loader-workers.unknown"))
        losses.scale(("job", "data_wait"), np.maximum(kept, ideal_s / wait_s))

    count = "an unknown number of" if workers is None else f"{workers}"
    return Found(
        effect=effect,
        reason=f"each step of {1e3 * step_s:.0f} ms waits {1e3 * wait_s:.0f} ms for data, with"
        f" {count} workers per rank.",
        change=f"DataLoader(…, num_workers={after}, persistent_workers=True, prefetch_factor=4)",
        numbers={
            "data_wait, rank-s": waited_s,
            "steps of a rank": facts.steps,
            "a step, s": step_s,
            "a wait, s": wait_s,
            "workers": "unknown" if workers is None else workers,
            "a wait with more workers at best, s": ideal_s,
        },
        priors=("loader-workers.kept" if workers is not None else "loader-workers.unknown",),
        note="This helps if cores are free and reading is the bottleneck.",
    )


def light_batches(facts: JobFacts) -> Found | NotEnough | Nothing:
    """The loader's pipe carries the small tensors of batches."""
    if "light-batches" in facts.known.on:
        return Nothing(reason="light batches were on")
    waited_s = facts.of("data_wait")
    if waited_s < _LEAST * facts.rank_s:
        return Nothing(reason=f"the loop waited {waited_s:.1f} rank-s for data")
    if facts.known.workers == 0:
        return Nothing(reason="batches are made in the trainer process, without a pipe")
    if facts.steps < _STEPS:
        return _more_steps(facts)

    each_s = waited_s / facts.ranks / facts.steps

    def effect(losses: Losses, draws: Draws) -> None:
        won_s = draws.of("light-batches.won_s", prior("light-batches.won_s"))
        kept = 1 - np.minimum(won_s, each_s) / each_s
        losses.scale(("job", "data_wait"), kept)

    return Found(
        effect=effect,
        reason=f"a wait for data takes {1e3 * each_s:.1f} ms; each small tensor sent through the"
        " pipe saves some tenths of a millisecond.",
        change="ett run --light-batches -- …",
        numbers={
            "data_wait, rank-s": waited_s,
            "steps of a rank": facts.steps,
            "a wait, s": each_s,
        },
        priors=("light-batches.won_s",),
    )


def dynamic_sources(facts: JobFacts) -> Found | NotEnough | Nothing:
    """torch.compile gets the sizes that differ between steps."""
    if "dynamic-sources" in facts.known.on:
        return Nothing(reason="dynamic sources were in use")
    again_s = facts.of("recompile")
    if again_s < _LEAST * facts.rank_s:
        return Nothing(reason=f"recompiles took {again_s:.1f} rank-s")
    cured_s = facts.known.cured_s
    if cured_s is not None and cured_s < _LEAST * facts.rank_s:
        return Nothing(reason=f"no recompile ({again_s:.1f} rank-s) was caused by differing sizes")

    def effect(losses: Losses, draws: Draws) -> None:
        name = "dynamic-sources.unknown" if cured_s is None else "dynamic-sources.cured"
        share = 1.0 if cured_s is None else min(1.0, cured_s / again_s)
        kept = draws.of(name, prior(name))
        losses.scale(("job", "recompile"), 1 - share * (1 - kept))

    cured = "" if cured_s is None else f", {cured_s:.1f} of them for sizes that differ"
    return Found(
        effect=effect,
        reason=f"recompiles took {again_s:.1f} rank-s{cured}.",
        change="ett run --dynamic-sources auto -- …",
        numbers={
            "recompile, rank-s": again_s,
            "of these for sizes that differ, rank-s": "unknown" if cured_s is None else cured_s,
        },
        priors=("dynamic-sources.unknown" if cured_s is None else "dynamic-sources.cured",),
        note="From the second run on: the first run records the sizes.",
    )


def _more_steps(facts: JobFacts) -> NotEnough:
    """Too few steps, and how long to run until there are enough."""
    each_s = facts.loop_wall_s / facts.steps if facts.steps else None
    more_s = None if each_s is None else (_STEPS - facts.steps) * each_s
    return NotEnough(reason=f"{facts.steps} steps are too few", more_s=more_s)
