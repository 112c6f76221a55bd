"""A loop that has settled: one step is like the other, and each is taken at the least cost.

    all hooks   fetch  zero_grad  backward  update begins  update ends │  …
    settled     fetch ──────────────────────────────────── update ends │  …

Two hooks are enough for a loop of one optimizer that has done the same for a while; the others
are taken out. That a step has worked is told by autograd, which counts the nodes of its graphs:
a forward pass makes some, an update or what is computed without gradients makes none. Anything
that is not such a fetch or such an update unsettles the loop: it goes on with all hooks.
"""

from collections.abc import Callable
from typing import Any

from torchett.record.clock import now_ns

ALIKE = 32  # steps of a kind before a loop has settled
LONG_NS = 100_000_000  # a step that takes longer is not like the others, and may cost more

PastStep = Callable[[int, int, int, int], None]


def _nobody() -> None:
    """Stands for a loader's iterator that is gone."""


class Settled:
    """The step under way of a settled loop; `leader` is 0 while the loop is not settled."""

    __slots__ = (
        "begin",
        "count_nodes",
        "index",
        "leader",
        "nodes",
        "past_step",
        "since",
        "source",
        "waited",
    )

    def __init__(self) -> None:
        self.leader = 0  # the id of the optimizer whose updates end steps
        self.source: Callable[[], Any] = _nobody  # the iterator that feeds the loop, if it lives
        self.count_nodes: Callable[[], int] = lambda: 0  # that autograd has made so far
        self.past_step: PastStep = lambda waited, begin, end, index: None
        self.begin = self.index = self.nodes = self.since = self.waited = 0

    def settle(self, leader: int, begin: int, index: int, past_step: PastStep) -> None:
        """Take steps from this one on, and tell them to `past_step`."""
        self.begin, self.index, self.past_step = begin, index, past_step
        self.since = self.waited = 0
        self.nodes = self.count_nodes()
        self.leader = leader

    def unsettle(self) -> None:
        self.leader = 0
        self.forget_source()

    def forget_source(self) -> None:
        """The iterator that fed the loop may begin anew, or not be the next."""
        self.source = _nobody

    def has_worked(self) -> bool:
        """Whether a forward pass was made for the step under way."""
        return self.count_nodes() != self.nodes

    def waits(self, t0: int, t1: int) -> None:
        """A batch came."""
        if not self.waited:
            self.since = t0
        self.waited += t1 - t0

    def ends(self) -> bool:
        """Whether the leader's update ended a step like the others; then it is on record."""
        nodes, begin, end = self.count_nodes(), self.begin, now_ns()
        if nodes == self.nodes or end - begin > LONG_NS:
            return False
        self.past_step(begin, begin + self.waited, end, self.index)
        self.begin, self.nodes = end, nodes
        self.index += 1
        self.waited = 0
        return True
