"""A loop that has settled: one step is like the other, and each is taken at the least cost.

    all hooks   fetch  zero_grad  backward  update begins  update ends │  …
    settled     fetch ──────────────────────────────────── update ends │  …

Two hooks are enough for a loop of one optimizer that has done the same for a while; the others
are taken out. A step is an update after a fetch. In a loop that has no loader, autograd tells that
a step has worked by the number of nodes it has made: a forward pass makes some, an update or what
is computed without gradients makes none. Anything that is not such a fetch or such an update
unsettles the loop: it goes on with all hooks.

What the two hooks do is not what they cost: between two calls of theirs a model has passed through
the processor's caches, and each object that they touch has to come from memory. So they touch as
few as possible (variables of one function, no objects), and steps are counted, and go to the
record in groups:

    steps    ││││││││││││││││││││││││││││││        a step that ends more than 50 ms after the last
    record   ┆         └ 9     └ 8       └ 9       group begins takes its group along
"""

from collections.abc import Callable
from typing import Any

from torchett.record.clock import now_ns

ALIKE = 32  # steps of a kind before a loop has settled
LONG_NS = 100_000_000  # a step that takes longer is not like the others, and may cost more
_TOLD_NS = 50_000_000  # steps wait so long, at most, to be told: a process may be killed meanwhile

Tell = Callable[[int, int, int, int, int], None]  # begin, with waits, end, first index, count


class Settled:
    """The step under way of a settled loop; `leader` is 0 while the loop is not settled.

    `updated` takes an update that is not a usual step's, `broke` an error.
    """

    def __init__(self, updated: Callable[[Any], None], broke: Callable[[Exception], None]) -> None:
        self.leader = 0  # the id of the optimizer whose updates end steps
        self.count_nodes: Callable[[], int] = lambda: 0  # that autograd has made so far
        self._nodes, self._has_counted = 0, False
        source = leader = begin = index = since = waited = in_vain = due = 0
        count = total = last = 0  # steps that wait to be told: their waits, the last one's end
        is_telling = False  # a signal's handler may come in between
        tell: Tell = _to_nobody

        def fetching(
            following: Callable[[Any], Any],
            trains: Callable[[], bool],
            otherwise: Callable[[Any, int], None],
        ) -> Callable[[Any], Any]:
            """Wrap `__next__`; `otherwise(iterator, t0)` takes batches from or for elsewhere."""

            def fetched(self: Any) -> Any:
                nonlocal since, waited
                t0 = now_ns()
                try:
                    batch = following(self)
                except BaseException:
                    if id(self) == source:
                        exhausted(t0, now_ns())
                    else:
                        otherwise(self, t0)
                    raise
                if id(self) == source and trains():
                    if not waited:
                        since = t0
                    waited += now_ns() - t0
                else:
                    otherwise(self, t0)
                return batch

            return fetched

        def exhausted(t0: int, t1: int) -> None:
            """A wait for a batch that did not come: it counts once there is one."""
            nonlocal since, in_vain
            if not waited + in_vain:
                since = t0
            in_vain += t1 - t0
            if not waited and not self._has_counted:
                self._nodes, self._has_counted = self.count_nodes(), True

        def after_a_fetch(optimizer: Any, args: Any, kwargs: Any) -> None:
            nonlocal count, total, waited, last
            if waited and id(optimizer) == leader:
                end = now_ns()
                if end < due:
                    count += 1
                    total += waited
                    waited = 0
                    last = end
                    return
                if ends(end):
                    return
            updated(optimizer)

        def after_a_pass(optimizer: Any, args: Any, kwargs: Any) -> None:
            nodes = self.count_nodes()
            if nodes != self._nodes and id(optimizer) == leader and ends(now_ns()):
                self._nodes = nodes
            else:
                updated(optimizer)

        def ends(end: int) -> bool:
            """Whether a usual step ended there; then it is told, and those that waited for it."""
            nonlocal count, total, waited, last, due
            if end - last > LONG_NS:
                return False
            count, total, waited, last = count + 1, total + waited, 0, end
            flush()
            due = end + _TOLD_NS
            return True

        def flush() -> None:
            """Tell the steps that wait for it; on the thread that trains."""
            nonlocal begin, index, count, total, is_telling
            if is_telling or not count:
                return
            is_telling = True
            try:
                tell(begin, begin + total, last, index, count)
            except Exception as error:
                broke(error)
            begin, index, count, total = last, index + count, 0, 0
            is_telling = False

        def settle(by: int, since_ns: int, number: int, told_to: Tell, is_fed: bool) -> None:
            """Take steps from this one on; `is_fed`: each begins with a batch from a loader."""
            nonlocal leader, begin, index, tell, count, total, last, waited, in_vain, due
            begin, last, index, tell = since_ns, since_ns, number, told_to
            count = total = waited = in_vain = due = 0
            self._nodes, self._has_counted = self.count_nodes(), not is_fed
            self.after_update = after_a_fetch if is_fed else after_a_pass
            self.leader = leader = by

        def unsettle() -> None:
            nonlocal leader, source, due
            self.leader = leader = source = due = 0

        def feed(iterator: Any, t0: int, t1: int) -> None:
            """A batch came from an iterator that feeds the loop from now on."""
            nonlocal source, since, waited, in_vain
            source = id(iterator)
            if not waited + in_vain:
                since = t0
            waited += t1 - t0 + in_vain
            in_vain = 0
            self._has_counted = self.after_update is after_a_pass

        def forget_source() -> None:
            """The iterator that fed the loop may begin anew, or not be the next."""
            nonlocal source
            source = 0

        def under_way() -> tuple[int, int, int, int]:
            """Of the step under way: begin, index, when it began to wait and for how long."""
            return begin, index, since, waited + in_vain

        self.fetching, self.feed, self.forget_source = fetching, feed, forget_source
        self.settle, self.unsettle, self.under_way, self.flush = settle, unsettle, under_way, flush
        self.after_update = after_a_fetch

    def has_worked(self) -> bool | None:
        """Whether a forward pass was made for the step under way; None if nobody has counted."""
        return self.count_nodes() != self._nodes if self._has_counted else None


def _to_nobody(begin: int, worked: int, end: int, index: int, count: int) -> None:
    """Stands for a record that is not open."""
