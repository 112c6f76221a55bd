"""A random simulation of the life of a job: many jobs at once, failure by failure.

    u     running time since the durable save from which the job continued
    ✗     at u + Exp(λ): back to the last uploaded save; R; in some cases a wait for a node

It checks the closed form, and shows how far one job of a given length may be from the mean.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchett.advise.job_life import DAY_S, Cycle, JobLife, cycle_of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One entry per job, in seconds of the nodes that train."""

    effective_s: Floats
    whole_s: Floats
    failures: int

    @property
    def ett(self) -> float:
        """The ratio of the sums, as for a fleet."""
        return float(self.effective_s.sum() / self.whole_s.sum())

    def between(self, share: float) -> tuple[float, float]:
        """The interval that holds the middle `share` of the jobs' ratios."""
        ratios = self.effective_s / self.whole_s
        tail = (1 - share) / 2
        low, high = np.quantile(ratios, [tail, 1 - tail])
        return float(low), float(high)


def play(life: JobLife, *, jobs: int, failures: int, seed: int = 0) -> Played:
    """Endless jobs, each over `failures` failures; preemptions and spares are included."""
    rng = np.random.default_rng(seed)
    cycle, state = cycle_of(life), _Jobs.new(life, jobs)
    kept_s = wall_s = np.zeros(jobs)
    for done in range(failures + failures // 10):
        if done == failures // 10:  # the number of nodes in repair is steady by now
            kept_s, wall_s = state.kept_s.copy(), state.wall_s.copy()
        _until_failure(state, life, cycle, rng)
        _recover(state, life, rng)
    idle = 0.0 if life.spares is None else life.spares / (life.nodes + life.spares)
    return Played(
        effective_s=(state.kept_s - kept_s) * (1 - idle),
        whole_s=state.wall_s - wall_s,
        failures=jobs * failures,
    )


def play_to_the_end(life: JobLife, *, jobs: int, seed: int = 0) -> Played:
    """Jobs that end once they have trained `train_s`, with their start and shutdown."""
    if life.train_s is None:
        raise ValueError("a job without train_s has no end")
    rng = np.random.default_rng(seed)
    cycle, state = cycle_of(life), _Jobs.new(life, jobs)
    total, failures = np.zeros(jobs), 0
    alive = np.ones(jobs, dtype=np.bool_)
    while alive.any():
        before_s, begin_s = state.kept_s.copy(), state.at_s.copy()
        was_s = state.wall_s.copy()
        _until_failure(state, life, cycle, rng)
        needed_s = _run_s(life.train_s - before_s, begin_s, cycle)
        done = alive & (needed_s <= state.gap_s)
        total[done] = was_s[done] + needed_s[done] + state.preempted(life, needed_s, rng)[done]
        alive &= ~done
        failures += int(alive.sum())
        _recover(state, life, rng)
    idle = 0.0 if life.spares is None else life.spares / (life.nodes + life.spares)
    return Played(
        effective_s=np.full(jobs, life.train_s * (1 - idle)),
        whole_s=total + life.start_s + life.shutdown_s,
        failures=failures,
    )


@dataclass(slots=True)
class _Jobs:
    """The state of each job: its position in the cycle of saves, and its saved training."""

    at_s: Floats  # position in the cycle from which it continues to train
    kept_s: Floats  # training that is saved
    wall_s: Floats
    gap_s: Floats
    quick: npt.NDArray[np.bool_]  # whether the failure can use a snapshot
    snapshot: tuple[Floats, Floats]  # position and training of the last snapshot
    repaired_s: Floats  # when each node in repair is back; one row per job

    @classmethod
    def new(cls, life: JobLife, jobs: int) -> "_Jobs":
        zeros = np.zeros(jobs)
        places = 1 if life.spares is None else life.spares + 1
        return cls(
            at_s=zeros.copy(),
            kept_s=zeros.copy(),
            wall_s=zeros.copy(),
            gap_s=zeros.copy(),
            quick=np.zeros(jobs, dtype=np.bool_),
            snapshot=(zeros.copy(), zeros.copy()),
            repaired_s=np.zeros((jobs, places)),
        )

    def preempted(self, life: JobLife, run_s: Floats, rng: np.random.Generator) -> Floats:
        """Seconds that preemptions cost in this running time."""
        per_s = life.preemptions_per_day / DAY_S
        if not per_s:
            return np.zeros_like(run_s)
        counts = rng.poisson(per_s * np.maximum(run_s, 0))
        return np.asarray(counts * (life.preemption_save_s + life.start_s), dtype=np.float64)


def _until_failure(state: _Jobs, life: JobLife, cycle: Cycle, rng: np.random.Generator) -> None:
    """Run every job to its next failure, and set what each tier has saved by then."""
    state.gap_s = rng.exponential(life.mtbf_s, len(state.at_s))
    state.wall_s += state.gap_s + state.preempted(life, state.gap_s, rng)
    end_s = state.at_s + state.gap_s
    base_s = state.kept_s - _trained_s(state.at_s, cycle)
    share = life.snapshot_share if life.snapshot else 0.0
    state.quick = rng.random(len(state.at_s)) < share
    upload_s = life.snapshot.upload_s if life.snapshot else 0.0
    snapshot = np.maximum(_last_snapshot_s(end_s - upload_s, cycle), state.at_s)
    begun = np.floor(state.at_s / cycle.length_s + 1e-9)
    cycles = np.maximum(np.floor((end_s - life.durable.upload_s) / cycle.length_s), begun)
    state.snapshot = (snapshot, base_s + _trained_s(snapshot, cycle))
    state.at_s = cycles * cycle.length_s
    state.kept_s = base_s + _trained_s(state.at_s, cycle)


def _recover(state: _Jobs, life: JobLife, rng: np.random.Generator) -> None:
    """Recover every job, with the failures that happen during recovery."""
    quick_s = life.snapshot.restart_s if life.snapshot else 0.0
    share = life.snapshot_share if life.snapshot else 0.0
    open_ = np.ones(len(state.at_s), dtype=np.bool_)
    quick = state.quick.copy()
    while open_.any():
        needs_s = np.where(quick, quick_s, life.durable.restart_s)
        next_s = rng.exponential(life.mtbf_s, len(open_))
        state.wall_s += np.where(open_, np.minimum(needs_s, next_s), 0)
        open_ &= next_s < needs_s
        again = rng.random(len(open_)) < share
        quick = np.where(open_, again, quick)
        state.quick &= ~open_ | again
    state.at_s = np.where(state.quick, state.snapshot[0], state.at_s)
    state.kept_s = np.where(state.quick, state.snapshot[1], state.kept_s)
    if life.spares is not None:
        _replace_nodes(state, life, rng)


def _replace_nodes(state: _Jobs, life: JobLife, rng: np.random.Generator) -> None:
    """Take a spare for a lost node, or wait for the first one that is repaired."""
    lost = rng.random(len(state.at_s)) < life.lost_node_share
    first = state.repaired_s.argmin(axis=1)
    rows = np.arange(len(first))
    # The place that became free first takes the node. If all are taken, the job waits for one.
    back_s = state.wall_s + rng.exponential(life.repair_s, len(first))
    state.repaired_s[rows[lost], first[lost]] = back_s[lost]
    full = lost & (state.repaired_s.min(axis=1) > state.wall_s)
    state.wall_s = np.where(full, state.repaired_s.min(axis=1), state.wall_s)


def _trained_s(position_s: Floats, cycle: Cycle) -> Floats:
    """Training up to a position: whole cycles, and whole segments of the last cycle."""
    cycles = np.floor(position_s / cycle.length_s + 1e-9)
    left_s = position_s - cycles * cycle.length_s
    segments = np.minimum(np.floor(left_s / cycle.segment_s + 1e-9), cycle.snapshots)
    return np.asarray((cycles * cycle.snapshots + segments) * cycle.train_s)


def _last_snapshot_s(position_s: Floats, cycle: Cycle) -> Floats:
    """The position of the last save at or before this one."""
    position_s = np.maximum(position_s, 0)
    cycles = np.floor(position_s / cycle.length_s)
    left_s = position_s - cycles * cycle.length_s
    segments = np.minimum(np.floor(left_s / cycle.segment_s), cycle.snapshots - 1)
    return np.asarray(cycles * cycle.length_s + segments * cycle.segment_s)


def _run_s(train_s: Floats, at_s: Floats, cycle: Cycle) -> Floats:
    """Running time from a position until `train_s` more have been trained."""
    done = _trained_s(at_s, cycle) + train_s
    segments = np.ceil(done / cycle.train_s - 1e-9) - 1
    cycles = np.floor(segments / cycle.snapshots)
    begin_s = cycles * cycle.length_s + (segments - cycles * cycle.snapshots) * cycle.segment_s
    return np.asarray(begin_s + done - segments * cycle.train_s - at_s)
