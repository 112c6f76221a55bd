"""Which faults happen in a bench, and when: fixed before the first run.

    ranks     ──✗──────✗──────✗──────✗──────✗──      one rank is killed, five times
    mixed     ──✗─────N──✗e──────P──s──────✗──       a rank, the node, a start that fails,
    bunched   ✗─✗──────────N✗e───────────────P       a preemption, a slow data service
    short     ─────────────✗──────────────────       one rank is killed, once (`--short`)

A fault is a word that the reference workloads understand (examples/common/faults.py).
"""

from dataclasses import dataclass

from torchett.model.errors import InputError

_DESCRIPTIONS = {
    "kill": "rank {number} killed at step {at:,}",
    "node": "node lost at step {at:,}",
    "preempt": "preempted at step {at:,}",
    "error": "start {at} fails",
    "slow": "data {number} s late in start {at}",
}


@dataclass(frozen=True, slots=True)
class At:
    """A fault at a share of the job's steps."""

    share: float
    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Faults at steps, and faults in the n-th start of the job."""

    name: str
    steps: tuple[At, ...]
    starts: tuple[str, ...] = ()

    @property
    def failures(self) -> int:
        """How often the job has to start again."""
        return len(self.steps) + sum(word.startswith("error") for word in self.starts)

    def words(self, steps: int, ranks: int) -> list[str]:
        """The faults for a job with this many steps; rank numbers are taken modulo `ranks`."""
        found = list(self.starts)
        for at in self.steps:
            kind, _, rank = at.word.partition(":")
            place = f"{kind}:{int(rank) % ranks}" if rank else kind
            found.append(f"{place}@{round(at.share * steps)}")
        return found

    def lines(self, steps: int, ranks: int) -> list[str]:
        """The same in sentences: faults at steps first, then faults in starts."""
        words = self.words(steps, ranks)
        return [_described(word) for word in sorted(words, key=lambda word: "#" in word)]


def _described(word: str) -> str:
    """`kill:1@450` → rank 1 killed at step 450."""
    what, _, at = word.partition("#") if "#" in word else word.partition("@")
    kind, _, number = what.partition(":")
    return _DESCRIPTIONS[kind].format(number=number, at=int(at))


SHORT = Schedule(name="short", steps=(At(0.5, "kill:1"),))
SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        Schedule(
            name="ranks",
            steps=tuple(
                At(share, f"kill:{i % 2}") for i, share in enumerate((0.15, 0.33, 0.5, 0.68, 0.85))
            ),
        ),
        Schedule(
            name="mixed",
            steps=(At(0.15, "kill:1"), At(0.35, "node"), At(0.6, "preempt"), At(0.85, "kill:0")),
            starts=("error#3", "slow:6#5"),
        ),
        Schedule(
            name="bunched",
            steps=(At(0.05, "kill:0"), At(0.1, "kill:1"), At(0.5, "node"), At(0.95, "preempt")),
            starts=("error#4", "slow:6#1"),
        ),
    )
}


def schedule(name: str) -> Schedule:
    try:
        return SCHEDULES[name]
    except KeyError:
        known = ", ".join(SCHEDULES)
        raise InputError(f"ett bench: expected a schedule of {known}, found '{name}'") from None
