"""The times of a plan's run, and its critical path.

    loader   ├───────────────────┤                          background: hidden behind the others
    group    ├─────┤                                        ┐
    model          ├────────────────┤                       │ the critical path: foreground,
    restore                         ├────────┤              ┘ and its pieces tile the whole run
             └ group ┴─── model ────┴ restore ┘

The critical path is found backwards from the stage that ended last: each stage was held up by the
one that ended last among those it had to wait for. A gap between two stages belongs to the later.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchett.levers.startup.plan.schedule import Overlap, Stage, next_overlap

PastSpan = Callable[[str, int, int, bool], None]
"""Records (account, t0_ns, t1_ns, background)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """One stage as it ran."""

    stage: Stage
    t0_ns: int
    t1_ns: int

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def took_ns(self) -> int:
        return self.t1_ns - self.t0_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of the run, with the stage on the critical path at that time."""

    name: str
    account: str
    t0_ns: int
    t1_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRun:
    """A plan as it ran: its stages in serial order, without those that never started."""

    t0_ns: int
    t1_ns: int
    stages: tuple[StageRun, ...]
    overlapped: bool = True

    @property
    def wall_ns(self) -> int:
        return self.t1_ns - self.t0_ns

    @property
    def serial_ns(self) -> int:
        """The time of all stages one after the other."""
        return sum(run.took_ns for run in self.stages)

    @property
    def won_ns(self) -> int:
        """The time that overlapping won; negative if the threads cost more than they won."""
        return self.serial_ns - self.wall_ns

    @property
    def critical_path(self) -> tuple[StageRun, ...]:
        """The stages on the critical path, first to last."""
        path: list[StageRun] = []
        run = max(self.stages, key=lambda run: run.t1_ns, default=None)
        while run is not None:
            path.append(run)
            run = max(self._before(run), key=lambda other: other.t1_ns, default=None)
        return tuple(reversed(path))

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The critical path cut into pieces that cover every instant of the run once."""
        path, pieces, begin = self.critical_path, [], self.t0_ns
        for i, run in enumerate(path):
            end = self.t1_ns if i == len(path) - 1 else run.t1_ns
            pieces.append(Piece(name=run.name, account=run.stage.account, t0_ns=begin, t1_ns=end))
            begin = end
        return tuple(pieces)

    @property
    def hidden(self) -> tuple[StageRun, ...]:
        """The stages that are not on the critical path."""
        waited_for = {run.name for run in self.critical_path}
        return tuple(run for run in self.stages if run.name not in waited_for)

    @property
    def next_overlap(self) -> Overlap | None:
        """The restriction that costs most, computed from the durations of this run.

        The durations stay as they were. Two stages that both run Python share the GIL, so
        overlapping them wins less than this says.
        """
        took = {run.name: run.took_ns for run in self.stages}
        stages = [run.stage for run in self.stages]
        return next_overlap(stages, took)

    def _before(self, run: StageRun) -> list[StageRun]:
        """The stages that `run` had to wait for, by the rules of the schedule."""
        stage, at = run.stage, self.stages.index(run)
        return [
            other
            for i, other in enumerate(self.stages)
            if other.t1_ns <= run.t0_ns
            and i != at
            and (
                other.name in stage.after
                or (not self.overlapped and i < at)
                or (stage.runs == "main" == other.stage.runs and i < at)
                or (stage.shares_rng and other.stage.shares_rng)
            )
        ]

    def to_json(self) -> dict[str, Any]:
        """The run as plain values; `from_json` reads it back."""
        return {
            "t0_ns": self.t0_ns,
            "t1_ns": self.t1_ns,
            "overlapped": self.overlapped,
            "stages": [
                {
                    "name": run.name,
                    "account": run.stage.account,
                    "runs": run.stage.runs,
                    "rng": run.stage.rng,
                    "after": list(run.stage.after),
                    "given": run.stage.given,
                    "t0_ns": run.t0_ns,
                    "t1_ns": run.t1_ns,
                }
                for run in self.stages
            ],
        }

    @staticmethod
    def from_json(value: Any) -> "PlanRun":
        """The run that `to_json` wrote; ValueError if it is not one."""
        try:
            runs = tuple(
                StageRun(
                    stage=Stage(
                        name=str(one["name"]),
                        account=str(one["account"]),
                        runs=one["runs"],
                        rng=bool(one["rng"]),
                        after=tuple(map(str, one["after"])),
                        given=bool(one["given"]),
                    ),
                    t0_ns=int(one["t0_ns"]),
                    t1_ns=int(one["t1_ns"]),
                )
                for one in value["stages"]
            )
            return PlanRun(
                t0_ns=int(value["t0_ns"]),
                t1_ns=int(value["t1_ns"]),
                stages=runs,
                overlapped=bool(value["overlapped"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected a plan's run, found {value!r:.80}") from error


def record_run(run: PlanRun, past_span: PastSpan) -> None:
    """Record the critical path in the foreground, and hidden stages in the background."""
    for piece in run.pieces:
        past_span(piece.account, piece.t0_ns, piece.t1_ns, False)
    for hidden in run.hidden:
        past_span(hidden.stage.account, hidden.t0_ns, hidden.t1_ns, True)


def to_flight_record(account: str, t0_ns: int, t1_ns: int, background: bool) -> None:
    """Add a finished span to this rank's flight record."""
    from torchett.record import api

    api.past_span(account, t0_ns, t1_ns, background=background)
