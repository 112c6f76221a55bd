"""Levers for failures and for the end of a job: restarts in the allocation, publishing on CPUs."""

from torchett.advise.job_facts import JobFacts
from torchett.advise.prediction import Draws, Found, Losses, NotEnough, Nothing
from torchett.advise.priors import prior

_LEAST = 0.001


def restart_policy(facts: JobFacts) -> Found | NotEnough | Nothing:
    """The running launcher starts the ranks again; no new job is needed."""
    if not facts.failures:
        return Nothing(reason="nothing failed")
    anew = facts.starts.get("anew", 0)
    if not anew:
        return Nothing(reason="the launcher restarted the ranks each time")
    launch_s = facts.of("launcher_init", "hardware_setup", "scheduling", phases=("anew",))
    gap_s = facts.of("restart_gap", phases=("anew",))
    if launch_s + gap_s < _LEAST * facts.rank_s:
        return Nothing(reason=f"new launchers took {launch_s + gap_s:.1f} rank-s")

    def effect(losses: Losses, draws: Draws) -> None:
        kept = draws.of("restart-policy.anew", prior("restart-policy.anew"))
        for name in ("launcher_init", "hardware_setup", "scheduling", "restart_gap"):
            losses.scale(("anew", name), kept)

    return Found(
        effect=effect,
        reason=f"{anew} restart{'s'[: anew > 1]} needed a new launcher: {gap_s:.1f} rank-s"
        f" until it ran, then {launch_s:.1f} to launch.",
        change="ett run --max-restarts 10 -- torchrun …   # restarts ranks in the allocation;"
        " --restart-policy FILE stops a job that cannot succeed",
        numbers={
            "restarts with a new launcher": anew,
            "launcher_init, hardware_setup and scheduling there, rank-s": launch_s,
            "restart_gap there, rank-s": gap_s,
        },
        priors=("restart-policy.anew",),
        note="Lost nodes and preemptions still need a new launcher.",
    )


def publish_elsewhere(facts: JobFacts) -> Found | NotEnough | Nothing:
    """A CPU job makes the snapshot for inference from the last checkpoint."""
    publish_s = facts.of("publish")
    if publish_s < _LEAST * facts.rank_s:
        return Nothing(reason="nothing was published by the GPU job")

    def effect(losses: Losses, draws: Draws) -> None:
        losses.scale(("job", "publish"), draws.of("publish.kept", prior("publish.kept")))

    return Found(
        effect=effect,
        reason=f"publishing held the GPUs for {publish_s:.1f} rank-s.",
        change="ett publish work SPOOL …   # on a CPU host, from checkpoints",
        numbers={"publish, rank-s": publish_s},
        priors=("publish.kept",),
    )
