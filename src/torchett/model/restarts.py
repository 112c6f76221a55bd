"""What to do after a failure: the values that a launcher and a restart policy exchange.

    launcher or agent ── LifeEnd ──► RestartPolicy ── Decision ──► starts the ranks again, or not

A life is one run of a job's ranks, from their start to the failure that ends them: the attempt of
the launcher, and within it the restart of torch's elastic agent.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Protocol, Self


class Outlook(Enum):
    """What another attempt needs in order to get further than this one."""

    RESTART_NOW = "restart-now"
    BACK_OFF = "back-off"
    REPLACE_NODE = "replace-node"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeEnd:
    """How a life of a job's ranks ended on this node, as its launcher or agent observed it."""

    attempt: int
    restart: int
    limit: int  # restarts without progress that the user asked for
    exits: Mapping[int, str] = field(default_factory=dict)  # rank → SIGKILL, exit_1, hang
    node: int = 0
    nodes: int = 1
    logs: str = ""  # folder of the ranks' logs, if torch writes them to files
    by: str = "launcher"  # or agent
    shared_limit: bool = True  # the launcher and its agents draw on the same limit
    preempted: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fact: Mapping[str, Any]) -> Self:
        exits = {int(rank): str(word) for rank, word in fact["exits"].items()}
        return cls(**{**fact, "exits": exits})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, how long to wait before it, and why."""

    outlook: Outlook
    why: str
    pause_s: float = 0.0

    @property
    def restarts(self) -> bool:
        """Whether the ranks of this node are started again."""
        return self.outlook in (Outlook.RESTART_NOW, Outlook.BACK_OFF)

    def __str__(self) -> str:
        pause = f" in {self.pause_s:g} s" if self.pause_s else ""
        return f"{self.outlook.value}{pause}: {self.why}"

    def to_json(self) -> dict[str, Any]:
        return {"outlook": self.outlook.value, "why": self.why, "pause_s": self.pause_s}

    @classmethod
    def from_json(cls, fact: Mapping[str, Any]) -> Self:
        pause_s = float(fact["pause_s"])
        return cls(outlook=Outlook(fact["outlook"]), why=str(fact["why"]), pause_s=pause_s)


class RestartPolicy(Protocol):
    """Decides whether a failed job is started again, and keeps its decisions."""

    def decide(self, end: LifeEnd) -> Decision: ...

    def hear(self, facts: list[dict[str, Any]]) -> None:
        """Take over the decisions of the policies of other nodes."""

    def last_facts(self) -> list[dict[str, Any]]:
        """The last decision of this policy, to be sent to other nodes."""
