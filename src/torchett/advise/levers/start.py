"""Levers for start-up: standbys, the compile cache, pins, the plan, the warm-up."""

from typing import Final

import numpy as np

from torchett.advise.job_facts import STARTS, JobFacts, Key, Phase
from torchett.advise.prediction import Draws, Found, Losses, NotEnough, Nothing
from torchett.advise.priors import prior

_STAGES: Final = (
    "preproc_creation",
    "train_module_creation",
    "init_plugins",
    "pre_train",
    "process_group_init",
    "checkpoint_restore",
)
_LEAST = 0.001  # of all rank-seconds: a smaller loss is ignored
_TINY = 1e-9


def standby(facts: JobFacts) -> Found | NotEnough | Nothing:
    """Ranks start in processes that have imported torch already."""
    if "standby" in facts.known.on:
        return Nothing(reason="standbys were on")
    launch_s = facts.of("imports", "launcher_init", phases=("first", "anew"))
    again_s = facts.of("imports", "device_init", phases=("again",))
    ends_s = facts.of("detect", "restart_gap", "teardown")
    if launch_s + again_s + ends_s < _LEAST * facts.rank_s:
        return Nothing(reason="imports, detection and teardown take almost no time")

    def effect(losses: Losses, draws: Draws) -> None:
        kept = draws.of("standby.launch", prior("standby.launch"))
        for phase in ("first", "anew"):
            for name in ("imports", "launcher_init"):
                losses.scale((phase, name), kept)
        again = draws.of("standby.again", prior("standby.again"))
        losses.scale(("again", "imports"), again)
        compiled = draws.of("standby.compile", prior("standby.compile"))
        for phase, seconds in facts.cold_compile_s.items():
            share = seconds / max(facts.of("pt2_compile", phases=(phase,)), _TINY)
            losses.scale((phase, "pt2_compile"), 1 - share * (1 - compiled))
        losses.scale(("job", "detect"), draws.of("standby.detect", prior("standby.detect")))
        gap = draws.of("standby.gap", prior("standby.gap"))
        for phase in STARTS:
            losses.scale((phase, "restart_gap"), gap)
        losses.scale(("job", "teardown"), draws.of("standby.end", prior("standby.end")))

    return Found(
        effect=effect,
        reason=f"imports and launchers took {launch_s:.1f} rank-s at launches and {again_s:.1f}"
        f" at restarts of ranks; detection and teardown took {ends_s:.1f}.",
        change="ett run -- torchrun …   # without --as-is; on a GPU add --standby-device",
        numbers={
            "imports and launcher_init at launches, rank-s": launch_s,
            "imports at restarts of ranks, rank-s": again_s,
            "detect, restart_gap and teardown, rank-s": ends_s,
            "launches": facts.starts.get("first", 0) + facts.starts.get("anew", 0),
            "restarts of ranks": facts.starts.get("again", 0),
        },
        priors=(
            *("standby.launch", "standby.again", "standby.compile"),
            *("standby.detect", "standby.gap", "standby.end"),
        ),
    )


def compile_cache(facts: JobFacts) -> Found | NotEnough | Nothing:
    """Compiled code from a library that all jobs share."""
    if "compile-cache" in facts.known.on:
        return Nothing(reason="a library of compiled code was in use")
    compile_s = facts.of("pt2_compile")
    if not compile_s:
        return Nothing(reason="nothing was compiled by torch.compile")
    cold = {phase: s for phase, s in facts.cold_compile_s.items() if s}
    if not cold or sum(cold.values()) < _LEAST * facts.rank_s:
        return Nothing(reason=f"compiles took {compile_s:.1f} rank-s with cached code")

    def effect(losses: Losses, draws: Draws) -> None:
        """A cache hit takes equally long with and without a standby: gains do not multiply."""
        kept = draws.of("compile-cache.cold", prior("compile-cache.cold"))
        for phase, seconds in cold.items():
            whole = facts.lost.get((phase, "pt2_compile"), 0.0)
            losses.lower((phase, "pt2_compile"), whole - seconds * (1 - kept))

    return Found(
        effect=effect,
        reason=f"{sum(cold.values()):.1f} of {compile_s:.1f} rank-s of compiling were without"
        " cached code.",
        change="ett run --compile-cache /shared/compiled -- …",
        numbers={
            "pt2_compile, rank-s": compile_s,
            **{f"of these without cached code, {phase} start, rank-s": s for phase, s in
               cold.items()},
        },
        priors=("compile-cache.cold",),
        note="From the second run on: the first run fills the library.",
    )  # fmt: skip


def pins(facts: JobFacts) -> Found | NotEnough | Nothing:
    """The results of kernel tuning are stored and used again."""
    tuned_s = facts.known.tuned_s or 0.0
    if "pins" in facts.known.on:
        return Nothing(reason="results of kernel tuning were stored")
    if tuned_s < _LEAST * facts.rank_s:
        return Nothing(reason="no kernels were tuned")

    def effect(losses: Losses, draws: Draws) -> None:
        whole = facts.of("pt2_compile")
        kept = draws.of("pins.tuning", prior("pins.tuning"))
        for phase in STARTS:
            losses.scale((phase, "pt2_compile"), 1 - tuned_s / max(whole, tuned_s) * (1 - kept))

    return Found(
        effect=effect,
        reason=f"tuning kernels took {tuned_s:.1f} rank-s.",
        change="ett run -- …   # without --as-is and --no-pins",
        numbers={"tuning of kernels, rank-s": tuned_s},
        priors=("pins.tuning",),
        note="From the second run on: the first run stores the results.",
    )


def startup_plan(facts: JobFacts) -> Found | NotEnough | Nothing:
    """Stages of start-up run in parallel."""
    if "startup-plan" in facts.known.on:
        return Nothing(reason="a start-up plan was in use")
    hidden = {phase: _hidden_s(facts, phase) for phase in STARTS}
    hidden_s = sum(hidden.values())
    if hidden_s < _LEAST * facts.rank_s:
        return Nothing(reason=f"stages in parallel would save {hidden_s:.2f} rank-s at most")

    def effect(losses: Losses, draws: Draws) -> None:
        part = draws.of("startup-plan.hidden", prior("startup-plan.hidden"))
        for phase in STARTS:
            stages = np.stack([losses[phase, name] for name in _STAGES])
            whole = stages.sum(axis=0)
            hidden = whole - stages.max(axis=0)
            kept = 1 - part * hidden / np.maximum(whole, _TINY)
            for name in _STAGES:
                losses.scale((phase, name), kept)

    return Found(
        effect=effect,
        reason="stages of start-up ran one after the other; in parallel only the longest of each"
        f" start counts, {hidden_s:.1f} rank-s less at best.",
        change='plan = ett.Plan(); decorate each stage with @plan.stage("train_module_creation")'
        "\nready = plan.run()",
        numbers={
            **{f"{name}, rank-s": facts.of(name) for name in _STAGES if facts.of(name)},
            "all but the longest of each start, rank-s": hidden_s,
        },
        priors=("startup-plan.hidden",),
    )


def _hidden_s(facts: JobFacts, phase: Phase) -> float:
    """The time of all stages but the longest."""
    stages = [facts.lost.get((phase, name), 0.0) for name in _STAGES]
    return sum(stages) - max(stages)


def warm_up(facts: JobFacts) -> Found | NotEnough | Nothing:
    """Compile while the first batch is fetched."""
    if "warm-up" in facts.known.on:
        return Nothing(reason="a warm-up compiled before the first batch")
    both = {
        phase: min(
            facts.of("pt2_compile", phases=(phase,)),
            facts.of("get_first_batch_data", phases=(phase,)),
        )
        for phase in STARTS
    }
    if sum(both.values()) < _LEAST * facts.rank_s:
        return Nothing(reason="no start both compiles and waits for its first batch")

    def effect(losses: Losses, draws: Draws) -> None:
        part = draws.of("warm-up.hidden", prior("warm-up.hidden"))
        for phase in STARTS:
            compiled: Key = (phase, "pt2_compile")
            both_s = np.minimum(losses[compiled], losses[phase, "get_first_batch_data"])
            kept = 1 - part * both_s / np.maximum(losses[compiled], _TINY)
            losses.scale(compiled, kept)

    return Found(
        effect=effect,
        reason=f"{sum(both.values()):.1f} rank-s of compiling could run while the first batch is"
        " fetched.",
        change="warm = ett.warm_up(model, loss_of, fast_batch=a_batch_of_the_right_shape)"
        "\nfor batch in warm.then(loader): …",
        numbers={
            "pt2_compile, rank-s": facts.of("pt2_compile"),
            "get_first_batch_data, rank-s": facts.of("get_first_batch_data"),
            "the smaller of both, summed over kinds of start, rank-s": sum(both.values()),
        },
        priors=("warm-up.hidden",),
    )
