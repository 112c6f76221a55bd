"""Levers for checkpoints: saves that do not block, the best interval, snapshots in memory."""

import numpy as np

from torchett.advise.job_facts import JobFacts
from torchett.advise.prediction import Draws, Found, Losses, NotEnough, Nothing, Samples
from torchett.advise.priors import prior
from torchett.levers.checkpoint.interval.interval import optimum_s

_LEAST = 0.001
_SHORTEST_S = 1.0  # the shortest interval that the Checkpointer chooses
_ENOUGH_FAILURES = 1
_LOOK_LONGER_S = 20 * 60.0


def async_saves(facts: JobFacts) -> Found | NotEnough | Nothing:
    """The copy is made during the next step, the upload in a separate process."""
    if "async-saves" in facts.known.on:
        return Nothing(reason="saves were ett.Checkpointer's")
    blocked_s = facts.of("checkpoint_blocked", "final_checkpoint")
    taken_s = blocked_s + facts.preempted_unsaved_s
    if not blocked_s:
        return Nothing(reason="no save blocked the loop")
    if taken_s < _LEAST * facts.rank_s:
        return Nothing(reason=f"saves blocked for {blocked_s:.2f} rank-s in all")

    def effect(losses: Losses, draws: Draws) -> None:
        kept = draws.of("async-saves.blocked", prior("async-saves.blocked"))
        losses.scale(("job", "checkpoint_blocked"), kept)
        losses.scale(("job", "final_checkpoint"), kept)
        unsaved = facts.of("unsaved")
        if facts.preempted_unsaved_s and unsaved:
            share = facts.preempted_unsaved_s / unsaved
            left = draws.of("async-saves.preempted", prior("async-saves.preempted"))
            losses.scale(("job", "unsaved"), 1 - share * (1 - left))

    saves = facts.saves
    each = f", {saves.blocking_s:.2g} s each" if saves.blocking_s else ""
    return Found(
        effect=effect,
        reason=f"{saves.saves} saves blocked the loop for {blocked_s:.1f} rank-s{each}"
        + (
            f"; preemptions lost {facts.preempted_unsaved_s:.1f} rank-s of steps."
            if facts.preempted_unsaved_s
            else "."
        ),
        change='ckpt = ett.Checkpointer("checkpoints/run")\nfirst = ckpt.restore(state)'
        "\nckpt.step(step, state)  # after each optimizer.step()",
        numbers={
            "checkpoint_blocked and final_checkpoint, rank-s": blocked_s,
            "unsaved by preemptions, rank-s": facts.preempted_unsaved_s,
            "saves": saves.saves,
            "a save blocks, s": saves.blocking_s or 0.0,
        },
        priors=("async-saves.blocked", "async-saves.preempted"),
    )


def interval(facts: JobFacts) -> Found | NotEnough | Nothing:
    """Save at the interval that wastes least, given the costs of saves and failures here."""
    if "interval" in facts.known.on:
        return Nothing(reason='the interval was "auto"')
    saves, unsaved_s = facts.saves, facts.of("unsaved")
    blocked_s = facts.of("checkpoint_blocked")
    if saves.failures < _ENOUGH_FAILURES:
        return NotEnough(
            reason=f"no failure in {saves.exposure_s / 60:.0f} min: the failure rate is unknown",
            more_s=max(_LOOK_LONGER_S, saves.exposure_s),
        )
    if saves.blocking_s is None or saves.interval_s is None:
        return NotEnough(reason="fewer than two saves blocked: the cost of a save is unknown")
    between_s = saves.exposure_s / saves.failures
    now_s, each_s, lag_s = saves.interval_s, saves.blocking_s, saves.upload_s or 0.0
    best_s = max(optimum_s(each_s, between_s), _SHORTEST_S)
    if unsaved_s + blocked_s < _LEAST * facts.rank_s:
        return Nothing(reason=f"saves and lost steps took {unsaved_s + blocked_s:.2f} rank-s")

    def effect(losses: Losses, draws: Draws) -> None:
        """Another number of saves at their present cost, and lost steps of the new interval."""
        key = ("job", "checkpoint_blocked")
        cost_s = each_s * losses["job", "checkpoint_blocked"] / max(blocked_s, 1e-9)
        new_s = np.maximum([optimum_s(max(s, 1e-4), between_s) for s in cost_s], _SHORTEST_S)
        losses.scale(key, now_s / new_s)  # type: ignore[arg-type]
        sudden_s = unsaved_s - facts.preempted_unsaved_s
        noticed = np.maximum(losses["job", "unsaved"] - sudden_s, 0.0)  # async saves reduce it
        lost_s = facts.ranks * _lost_s(new_s, lag_s, saves.failures, draws)
        losses["job", "unsaved"] = lost_s + noticed

    return Found(
        effect=effect,
        reason=f"the job saved every {now_s:.0f} s; with {each_s:.2g} s a save and a failure every"
        f" {between_s:.0f} s, an interval of {best_s:.0f} s wastes least.",
        change=f'ett.Checkpointer("checkpoints/run", every="auto", mtbf_s={between_s:.0f})',
        numbers={
            "unsaved, rank-s": unsaved_s,
            "checkpoint_blocked, rank-s": blocked_s,
            "failures without notice": saves.failures,
            "running time, s": saves.exposure_s,
            "interval of the run, s": now_s,
            "interval that wastes least, s": best_s,
            "a save blocks, s": each_s,
            "durable after, s": lag_s,
        },
        note="This assumes the same number of failures.",
    )


def snapshots(facts: JobFacts) -> Found | NotEnough | Nothing:
    """Copies in memory that survive killed ranks, in addition to the durable saves."""
    if "snapshots" in facts.known.on:
        return Nothing(reason="snapshots were on")
    again, anew = facts.starts.get("again", 0), facts.starts.get("anew", 0)
    sudden_s = facts.of("unsaved") - facts.preempted_unsaved_s
    if not facts.failures:
        return Nothing(reason="nothing failed")
    if not again:
        return Nothing(reason="no rank was restarted on its node")
    near_s = sudden_s * again / (again + anew)
    if near_s < _LEAST * facts.rank_s:
        return Nothing(reason=f"restarts on the same nodes lost {near_s:.2f} rank-s of steps")

    def effect(losses: Losses, draws: Draws) -> None:
        kept = draws.of("snapshots.unsaved", prior("snapshots.unsaved"))
        share = near_s / facts.of("unsaved")
        losses.scale(("job", "unsaved"), 1 - share * (1 - kept))

    return Found(
        effect=effect,
        reason=f"{again} of {again + anew} restarts were on the same nodes, where snapshots"
        f" survive; about {near_s:.1f} rank-s of steps were lost before them.",
        change='ett.Checkpointer("checkpoints/run", every="auto", snapshot_every="auto")',
        numbers={
            "unsaved without notice, rank-s": sudden_s,
            "restarts on the same nodes": again,
            "restarts with a new launcher": anew,
        },
        priors=("snapshots.unsaved",),
        note="It holds up to three copies of a rank's state in memory.",
    )


def _lost_s(interval_s: Samples, lag_s: float, failures: int, draws: Draws) -> Samples:
    """Seconds of the job lost by `failures` failures at random times between saves."""
    luck = draws.uniform("interval.places", failures)
    return np.asarray(luck.sum(axis=0) * interval_s + failures * lag_s, dtype=np.float64)
