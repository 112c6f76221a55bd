"""A loop that has settled: one step is like the other, and each is taken at the least cost.

    all hooks   fetch  zero_grad  backward  update begins  update ends │  …
    settled     fetch ──────────────────────────────────── update ends │  …

Two hooks are enough for a loop of one optimizer that has done the same for a while; the others
are taken out. A step is an update. In a loop that has no loader, autograd tells that a step has
worked by the number of nodes it has made: a forward pass makes some, an update or what is computed
without gradients makes none. Anything that is not such a fetch or such an update unsettles the
loop: it goes on with all hooks.

What the two hooks do is not what they cost: between two calls of theirs a model has passed through
the processor's caches, and what they touch has to come from memory. So all they know is one small
object, the tally, and each finds it where the caches are warm: in the iterator that has just given
a batch, in the optimizer that has just updated. Steps are counted, and go to the record in groups:

    steps    ││││││││││││││││││││││││││││││        a fetch that begins more than 50 ms after the one
    record   ┆         └ 9     └ 8       └ 9       that began the group, tells it
"""

import weakref
from collections.abc import Callable
from typing import Any

from torchett.record.clock import now_ns

ALIKE = 32  # steps of a kind before a loop has settled
LONG_NS = 100_000_000  # a step that takes longer is not like the others, and may cost more
_TOLD_NS = 50_000_000  # steps wait so long, at most, to be told: a process may be killed meanwhile
_MANY = 100  # and no more of them

Tell = Callable[[int, int, int, int, int], None]  # begin, with waits, end, first index, count


class _Tally:
    """What has happened since steps were told last."""

    __slots__ = ("due", "ended", "since", "updates", "wait", "waits")

    def __init__(self, due: int, ended: int) -> None:
        self.due = due  # when they are told next; 0 where nobody counts
        self.ended, self.updates = ended, 0  # the end of the last update, and how many there were
        self.since = self.wait = 0  # the last fetch: when it began, how long it took
        self.waits = 0  # how long all fetches took

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # it is not copied or saved with what carries it


class Settled:
    """The steps of a settled loop; `is_on` is False while the loop is not settled.

    `updated` takes an update that is not a usual step's, `unusual` hears of a pause, of a long step
    and of steps without batches, `broke` of an error.
    """

    def __init__(
        self,
        updated: Callable[[Any], None],
        unusual: Callable[[], None],
        broke: Callable[[Exception], None],
    ) -> None:
        self._updated, self._unusual, self._broke = updated, unusual, broke
        self.count_nodes: Callable[[], int] = lambda: 0  # that autograd has made so far
        self._after_a_fetch = _counting(updated, self._have_been_many)
        self.after_update: Callable[[Any, Any, Any], None] = self._after_a_fetch
        self._tell: Tell = _to_nobody
        self._is_telling = False  # a signal's handler may come in between
        self._leader = self._source = _nothing  # the optimizer, and the iterator that feeds it
        self._tally = _Tally(0, 0)
        self._begin = self._index = 0  # of the first step that was not told
        self._tried = self._in_vain = 0  # waits for a batch that did not come
        self._nodes, self._has_counted = 0, False
        self.is_on, self._is_fed = False, True

    def settle(self, leader: Any, begin: int, index: int, tell: Tell, is_fed: bool) -> None:
        """Take steps from this one on; `is_fed`: each begins with a batch from a loader."""
        self._begin, self._index, self._tell = begin, index, tell
        self._tally = leader._ett_tally = _Tally(1, begin)
        self._leader = weakref.ref(leader)
        self._tried = self._in_vain = 0
        self._is_fed = is_fed
        self._nodes, self._has_counted = self.count_nodes(), not is_fed
        self.after_update = self._after_a_fetch if is_fed else self._after_a_pass
        self.is_on = True

    def unsettle(self) -> None:
        """Leave steps to others."""
        self.is_on = False
        self.forget_source()
        _unmark(self._leader())

    def forget_source(self) -> None:
        """The iterator that fed the loop may begin anew, or not be the next."""
        _unmark(self._source())

    def feed(self, iterator: Any, t0: int, t1: int) -> bool:
        """A batch came from an iterator that feeds the loop from now on; False if not as usual."""
        tally, tried, leader = self._tally, self._tried or t0, self._leader()
        if leader is None or tried - tally.ended > LONG_NS:
            return False
        self.flush()
        if tally.since <= tally.ended:
            tally.since, tally.wait = tried, 0
        waited = t1 - t0 + self._in_vain
        tally.wait += waited
        tally.waits += waited
        self._tried = self._in_vain = 0
        self._has_counted = not self._is_fed
        self.forget_source()
        leader._ett_tally = iterator._ett_tally = tally
        self._source = weakref.ref(iterator)
        return True

    # The hooks -------------------------------------------------------------------------------

    def fetching(
        self, owner: Any, trains: Callable[[], bool], otherwise: Callable[[Any, int], None]
    ) -> Callable[[Any], Any]:
        """What is to stand for the `__next__` of this class of iterators.

        `otherwise(iterator, t0)` takes batches from or for elsewhere.
        """
        following, goes_on, exhausted = owner.__next__, self._goes_on, self._exhausted
        owner._ett_tally = _Tally(0, 0)

        def fetched(iterator: Any) -> Any:
            t0 = now_ns()
            try:
                batch = following(iterator)
            except BaseException:
                if not exhausted(iterator._ett_tally, t0):
                    otherwise(iterator, t0)
                raise
            tally = iterator._ett_tally
            if t0 < tally.due and trains():
                tally.since = t0
                tally.wait = wait = now_ns() - t0
                tally.waits += wait
            elif not (tally.due and trains() and goes_on(tally, t0)):
                otherwise(iterator, t0)
            return batch

        return fetched

    def _goes_on(self, tally: _Tally, t0: int) -> bool:
        """Tell the steps before this fetch, which is over; False if they were not as usual."""
        t1 = now_ns()
        if t0 - tally.ended > LONG_NS or tally.ended - tally.since > LONG_NS:
            self._unusual()
            return False
        self.flush()
        tally.due, tally.since, tally.wait = t0 + _TOLD_NS, t0, t1 - t0
        tally.waits += t1 - t0
        return True

    def _exhausted(self, tally: _Tally, t0: int) -> bool:
        """A wait for a batch that did not come counts once there is one; an update will tell."""
        if not tally.due:
            return False
        self.flush()
        _unmark(self._leader())
        self._tried = self._tried or t0
        self._in_vain += now_ns() - t0
        if tally.since < tally.ended and not self._has_counted:
            self._nodes, self._has_counted = self.count_nodes(), True
        return True

    def _have_been_many(self) -> None:
        """Nothing was told for many steps: they were short, or there are no more fetches."""
        if self._tally.since < self._begin:
            self._unusual()
        else:
            self.flush()

    def _after_a_pass(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        tally, nodes, end = self._tally, self.count_nodes(), now_ns()
        if nodes == self._nodes or optimizer is not self._leader() or end - tally.ended > LONG_NS:
            self._updated(optimizer)
            return
        self._nodes = nodes
        tally.updates += 1
        tally.ended = end
        if end >= tally.due:
            self.flush()
            tally.due = end + _TOLD_NS

    # What becomes of them --------------------------------------------------------------------

    def flush(self) -> None:
        """Tell the steps that wait for it; on the thread that trains."""
        if self._is_telling:
            return
        self._is_telling = True
        tally = self._tally
        updates, tally.updates = tally.updates, 0
        if updates:
            of_next = tally.wait if tally.since > tally.ended else 0
            waits, tally.waits = tally.waits - of_next, of_next
            if updates > 1 and tally.ended - tally.since > LONG_NS:
                self._tell_steps(updates - 1, waits - tally.wait, tally.since)
                updates, waits = 1, tally.wait
            self._tell_steps(updates, waits, tally.ended)
        self._is_telling = False

    def _tell_steps(self, count: int, waits: int, end: int) -> None:
        try:
            begin = self._begin
            self._tell(begin, min(begin + waits, end), end, self._index, count)
        except Exception as error:
            self._broke(error)
        self._begin, self._index = end, self._index + count

    def under_way(self) -> tuple[int, int, tuple[int, int]]:
        """Of the step under way: begin, index, and from when to when it has waited."""
        tally = self._tally
        since, wait = (tally.since, tally.wait) if tally.since > tally.ended else (self._tried, 0)
        return self._begin, self._index, (since, since + wait + self._in_vain)

    def has_worked(self) -> bool | None:
        """Whether a forward pass was made for the step under way; None if nobody has counted."""
        return self.count_nodes() != self._nodes if self._has_counted else None


def _counting(
    otherwise: Callable[[Any], None], have_been_many: Callable[[], None]
) -> Callable[[Any, Any, Any], None]:
    """The hook that counts the leader's updates; `otherwise` takes those of others."""

    def updated(optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            tally = optimizer._ett_tally
            tally.updates = count = tally.updates + 1
        except AttributeError:
            otherwise(optimizer)
            return
        tally.ended = now_ns()
        if count > _MANY:
            have_been_many()

    return updated


def _nothing() -> None:
    """A reference to what is gone."""


def _unmark(marked: Any) -> None:
    if marked is not None:
        vars(marked).pop("_ett_tally", None)


def _to_nobody(begin: int, worked: int, end: int, index: int, count: int) -> None:
    """Stands for a record that is not open."""
