"""The share of a job's time that trains, in closed form.

    start │ T │B₁│ T │B₁│ … │ T │B₁ B₂│ T │B₁│ ✗ R │ …     B₁  a snapshot in memory, every T
          ├──────── one durable save ───────┤               B₂  a durable save, every n·T

Failures are a Poisson process of rate λ. After the share q₁ of them the job continues from a
snapshot, after the others from the last durable save. V_j is the expected time from the j-th
snapshot to the next durable save; c_j is the length of segment j; s_j = e^(−λc_j) is the chance of
no failure in it:

    V_j = (1 − s_j)/λ + s_j·V_{j+1} + (1 − s_j)·(q·V_j + (1 − q)·V_0),   V_n = 0

q is the chance that a failure, and all failures during its recovery, can use the snapshot.
"""

import math
from dataclasses import dataclass, replace

from torchett.levers.checkpoint.interval.interval import optimum_s
from torchett.model.errors import InputError

DAY_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A place for checkpoints."""

    blocking_s: float
    upload_s: float = 0.0  # from the end of blocking until it can be restored
    restart_s: float  # from a failure until training continues from it
    interval_s: float | None = None  # training between two saves; None: the best interval


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLife:
    """The known or assumed figures of a job before it runs."""

    mtbf_s: float  # of the whole job, in running time
    durable: Tier
    snapshot: Tier | None = None
    snapshot_share: float = 0.0  # share of failures after which a snapshot is left
    lost_node_share: float = 0.0  # share of failures that need another node
    nodes: int = 1
    spares: int | None = None  # None: a replacement is always available
    repair_s: float = DAY_S
    preemptions_per_day: float = 0.0
    preemption_save_s: float = 0.0
    start_s: float = 0.0
    shutdown_s: float = 0.0
    train_s: float | None = None  # total training of the job; None: it never ends

    def __post_init__(self) -> None:
        if not self.mtbf_s > 0:
            raise InputError(f"mean time between failures: expected above 0, found {self.mtbf_s}")
        if not 0 <= self.snapshot_share <= 1 or not 0 <= self.lost_node_share <= 1:
            raise InputError(
                "shares of failures: expected 0 to 1, found"
                f" {self.snapshot_share} and {self.lost_node_share}"
            )

    @property
    def failures_per_s(self) -> float:
        return 1 / self.mtbf_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of the time of all nodes that the job holds; they sum to 1."""

    effective: float
    start: float = 0.0
    shutdown: float = 0.0
    checkpointing: float = 0.0
    unsaved: float = 0.0  # training and saves that were lost
    recovering: float = 0.0
    waiting_for_node: float = 0.0
    preempted: float = 0.0
    spare: float = 0.0  # nodes that wait to replace a lost one

    @property
    def ett_percent(self) -> float:
        return 100 * self.effective


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One cycle of saves: `snapshots` segments of training; the last ends in a durable save."""

    train_s: float  # training in one segment
    snapshots: int
    snapshot_s: float  # blocked time of a snapshot
    durable_s: float  # blocked time of the durable save

    @property
    def segment_s(self) -> float:
        return self.train_s + self.snapshot_s

    @property
    def length_s(self) -> float:
        return self.snapshots * self.segment_s + self.durable_s


def mtbf_of_nodes(failures_per_1000_node_days: float, nodes: int) -> float:
    """The job's mean time between failures in seconds, from a fleet's rate per node."""
    return 1000 * DAY_S / (failures_per_1000_node_days * nodes)


def mtbf_without_downtime(mtbf_s: float, restart_s: float) -> float:
    """The mean time between failures in running time, from one that includes the recovery."""
    if mtbf_s <= restart_s:
        raise InputError(
            f"mean time between failures with downtime: expected above the restart's"
            f" {restart_s:g} s, found {mtbf_s:g} s"
        )
    return mtbf_s - restart_s


def cycle_of(life: JobLife) -> Cycle:
    """The cycle with the given intervals, or with the intervals that waste least."""
    rate = life.failures_per_s
    share = life.snapshot_share if life.snapshot else 0.0
    durable_s = life.durable.interval_s
    if durable_s is None:
        deep = rate * (1 - share)
        best = optimum_s(life.durable.blocking_s, 1 / deep) if deep else 30 * DAY_S
        durable_s = max(best, life.durable.upload_s - life.durable.blocking_s, 1e-3)
    if life.snapshot is None or not share:
        return Cycle(
            train_s=durable_s, snapshots=1, snapshot_s=0, durable_s=life.durable.blocking_s
        )
    snapshot_s = life.snapshot.interval_s
    if snapshot_s is None:
        best = optimum_s(life.snapshot.blocking_s, 1 / (rate * share))
        snapshot_s = max(best, life.snapshot.upload_s - life.snapshot.blocking_s, 1e-3)
    count = max(1, round(durable_s / snapshot_s))
    return Cycle(
        train_s=durable_s / count,
        snapshots=count,
        snapshot_s=life.snapshot.blocking_s,
        durable_s=life.durable.blocking_s,
    )


def expected(life: JobLife) -> Shares:
    """The average shares of a long job."""
    cycle, rate = cycle_of(life), life.failures_per_s
    share = life.snapshot_share if life.snapshot else 0.0
    quick_s = life.snapshot.restart_s if life.snapshot else 0.0
    down_s = _down_s(rate, share, quick_s, life.durable.restart_s)
    up_s = _up_s(cycle, rate, _quick_chance(rate, share, quick_s))
    lag = share * (life.snapshot.upload_s if life.snapshot else 0) + (1 - share) * (
        life.durable.upload_s
    )
    survives = math.exp(-rate * lag)
    preempted_s = life.preemptions_per_day / DAY_S * up_s * _preemption_s(life)
    recovering_s = rate * up_s * down_s
    whole_s = up_s + recovering_s + preempted_s
    train_s = cycle.snapshots * cycle.train_s
    saved = Shares(
        effective=survives * train_s / whole_s,
        checkpointing=survives * (cycle.length_s - train_s) / whole_s,
        unsaved=(up_s - survives * cycle.length_s) / whole_s,
        recovering=recovering_s / whole_s,
        preempted=preempted_s / whole_s,
    )
    return _with_ends(_with_spares(saved, life), life)


def _preemption_s(life: JobLife) -> float:
    """The cost of one preemption in seconds of all nodes: the save in its grace, and a start."""
    return life.preemption_save_s + life.start_s


def _quick_chance(rate: float, share: float, quick_s: float) -> float:
    """q above: a recovery from the snapshot works unless a failure in it destroys the snapshot."""
    survives = math.exp(-rate * quick_s)
    return share * survives / (1 - share * (1 - survives))


def _down_s(rate: float, share: float, quick_s: float, deep_s: float) -> float:
    """Expected time from a failure until training continues, with further failures in between."""
    fails = [
        (share, -math.expm1(-rate * quick_s)),
        (1 - share, -math.expm1(-rate * deep_s)),
    ]
    again = sum(weight * failed for weight, failed in fails)
    return math.inf if again >= 1 else again / rate / (1 - again)


def _up_s(cycle: Cycle, rate: float, quick: float) -> float:
    """V_0 above: running time of one cycle. V_j = a + b·V_0 is solved from the last j down to 0."""
    a = b = 0.0
    for j in reversed(range(cycle.snapshots)):
        last = j == cycle.snapshots - 1
        survives = math.exp(-rate * (cycle.segment_s + (cycle.durable_s if last else 0)))
        fails = 1 - survives
        scale = 1 - fails * quick
        a = (fails / rate + survives * a) / scale
        b = (survives * b + fails * (1 - quick)) / scale
    return a / (1 - b) if b < 1 else math.inf


def erlang_b(servers: int, load: float) -> float:
    """The share of time in which all servers are busy."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked


def _with_spares(shares: Shares, life: JobLife) -> Shares:
    """The shares with spare nodes: the job waits while more nodes are in repair than it has spares.

    Nodes are lost only while the job runs. So the share of waiting is the share of time in which a
    repair queue with spares + 1 places is full.
    """
    if life.spares is None:
        return shares
    runs = shares.effective + shares.checkpointing + shares.unsaved
    arrivals = life.failures_per_s * life.lost_node_share * runs * life.repair_s
    waiting = erlang_b(life.spares + 1, arrivals)
    idle = life.spares / (life.nodes + life.spares)
    kept = (1 - waiting) * (1 - idle)
    scaled = {name: kept * getattr(shares, name) for name in Shares.__slots__}
    return replace(Shares(**scaled), waiting_for_node=waiting * (1 - idle), spare=idle)


def _with_ends(shares: Shares, life: JobLife) -> Shares:
    """The shares with the job's one start and one shutdown, if it ends."""
    if life.train_s is None or not shares.effective:
        return shares
    busy = 1 - shares.spare
    loop_s = life.train_s * busy / shares.effective
    whole_s = loop_s + life.start_s + life.shutdown_s
    scaled = {
        name: getattr(shares, name) * (1 if name == "spare" else loop_s / whole_s)
        for name in Shares.__slots__
    }
    return replace(
        Shares(**scaled),
        start=busy * life.start_s / whole_s,
        shutdown=busy * life.shutdown_s / whole_s,
    )
