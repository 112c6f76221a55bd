"""Where a step's wait and its work begin: from the signs since the last step, and what is usual.

    update │ log, pause │ fetch │ to(device) │ forward  backward  …  backward  update
           ended        │ wait  │ gap        │ forwards[0]        backwards[0]
                                └─ where work begins: if the gap is short; else at the forward pass

A gap is short if it lasts at most 2 ms or half of what a step works, and no more than 100 ms, or
than twice the usual gap. All times are in nanoseconds.
"""

from typing import Protocol

SHORT_WAIT_NS = 100_000_000  # shorter waits are recorded with their step, in one entry
PAUSE_NS = 100_000_000  # gaps up to this may be a large model's usual ones
NO_GAP_NS = 2_000_000
MOST_SIGNS = 64
_KNOWN = 8  # steps in a row with the same number of forward passes: that is how they are made

Interval = tuple[int, int]


class Writer(Protocol):
    """Receives what the detector has recognised."""

    def step(self, waited_ns: int, begin_ns: int, end_ns: int, index: int) -> None: ...

    def span(self, account: str, t0_ns: int, t1_ns: int) -> None: ...


class Signs:
    """Signs of work since the last step, and what has been usual so far."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.waits: list[Interval] = []
        self.forwards: list[int] = []
        self.backwards: list[int] = []  # first ones of a stretch
        self.explained = 0  # ns of evaluation, saves and waits that are spans of their own
        self.steps = 0
        self.ended = 0  # where the last step ended
        self.typical = 0  # what a step works
        self.unsure_ns = 0  # of all work: forward passes that were not seen, pauses between updates
        self._gap = 0  # usual, from the batch to the forward pass
        self._forward = 0  # from the last act to the backward pass, where no forward is seen
        self._tail = 0  # from the backward pass to the next act, where no update is seen
        self._count = self._counted = 0  # forward passes before the first backward pass

    def wait(self, t0: int, t1: int) -> None:
        """A batch was waited for."""
        if len(self.waits) == MOST_SIGNS:
            self._writer.span("data_wait", *self.waits.pop(0))
        self.waits.append((t0, t1))

    def forward(self, t: int) -> None:
        if len(self.forwards) < MOST_SIGNS:
            self.forwards.append(t)

    def explain(self, t0: int, t1: int, worked: bool) -> None:
        """A span between steps: no sign of work before its end counts."""
        self.explained += t1 - t0
        if self.forwards and not worked:
            self.forwards = [t for t in self.forwards if t >= t1]

    def take_later(self, end: int) -> tuple[list[Interval], list[int], list[int]]:
        """Take out what came after `end`: it is the next step's; usually nothing."""
        waits, forwards, backwards = self.waits, self.forwards, self.backwards
        if not (
            (waits and waits[-1][0] >= end)
            or (forwards and forwards[-1] >= end)
            or (backwards and backwards[-1] >= end)
        ):
            return [], [], []
        self.waits = [wait for wait in waits if wait[0] < end]
        self.forwards = [t for t in forwards if t < end]
        self.backwards = [t for t in backwards if t < end]
        return (
            [wait for wait in waits if wait[0] >= end],
            [t for t in forwards if t >= end],
            [t for t in backwards if t >= end],
        )

    def step_over(
        self, begin: int, end: int, later: tuple[list[Interval], list[int], list[int]]
    ) -> None:
        """A step worked from `begin` to `end`; these signs are the next one's."""
        took = end - begin
        if self.steps > 1:
            self.typical += (min(took, 4 * self.typical) - self.typical) >> 3
        else:  # the first step compiles and warms up: use the second one
            self.typical = took
        self.ended = end
        self.steps += 1
        self.explained = 0
        self.waits, self.forwards, self.backwards = later

    # Where work begins -----------------------------------------------------------------------

    def work_begins(self, end: int, ready: int) -> int:
        """Where the first forward pass of this step began; the start-up was over at `ready`."""
        forwards = self.forwards
        backward = self.backwards[0] if self.backwards else end
        if not forwards or forwards[0] > backward:
            return self._work_began_unseen(backward, ready)
        count = len(forwards)
        if count == self._count:
            self._counted += 1
        elif count > self._count and self._counted >= _KNOWN:
            self._counted -= 2  # the first ones were no training: evaluation, or a sample
            return max(forwards[count - self._count], self.ended)
        else:
            self._count, self._counted = count, 0
        return forwards[0] if forwards[0] > self.ended else self.ended

    def _work_began_unseen(self, backward: int, ready: int) -> int:
        """The same where only the backward pass was seen: a forward pass must have preceded it."""
        before = self.ended or ready
        for _, t1 in self.waits:
            if before < t1 <= backward:
                before = t1
        gap, usual = backward - before, self._forward
        if not before or gap < 0:
            return backward
        if gap > PAUSE_NS and gap > 5 * usual:
            return backward - usual
        self._forward += (gap - usual) >> 3 if self.steps > 1 else gap - usual
        if self.steps:
            self.unsure_ns += gap
        return before

    # Where its wait begins -------------------------------------------------------------------

    def window(self, begin: int, end: int) -> Interval:
        """Where the step's wait and its work begin; waits that are none of it are spans."""
        waits = self.waits
        if len(waits) == 1 and waits[0][1] <= begin:
            return self._after_one_wait(*waits[0], begin)
        return self._after_waits(begin, end) if waits else (begin, begin)

    def _after_one_wait(self, t0: int, t1: int, begin: int) -> Interval:
        """The same for a wait that comes first."""
        if t0 < self.ended:
            t0 = self.ended
        gap = begin - t1
        if gap > self._short(self._gap):
            self._tell_wait(t0, t1)
            self._gap += (min(gap, self.typical) - self._gap) >> 3
            return begin, begin
        self._gap += (gap - self._gap) >> 3
        if t1 - t0 > SHORT_WAIT_NS:
            self._tell_wait(t0, t1)
            return t1, t1
        return t0, t1

    def _after_waits(self, begin: int, end: int) -> Interval:
        """The same for several waits; those during the work are spans of their own."""
        before = [wait for wait in self.waits if wait[1] <= begin]
        amidst = self.waits[len(before) :]
        waited, begins = begin, begin
        if before:
            for t0, t1 in before[:-1]:
                self._tell_wait(t0, t1)
            waited, begins = self._after_one_wait(*before[-1], begin)
        total = sum(t1 - t0 for t0, t1 in amidst)
        if total < NO_GAP_NS and begins + total < end:
            return waited, begins + total  # as if it had been waited for at the beginning
        for t0, t1 in amidst:
            self._tell_wait(max(t0, begins), min(t1, end))
        return waited, begins

    def _tell_wait(self, t0: int, t1: int) -> None:
        self._writer.span("data_wait", t0, t1)
        self.explained += t1 - t0

    # Where it ends, if no update is seen -----------------------------------------------------

    def end_before(self, t: int, backward_end: int) -> int:
        """Where the unseen update was over, at the latest when the next act came."""
        done = backward_end
        signs = [*(t0 for t0, _ in self.waits), *self.forwards]
        tail = min((sign for sign in signs if sign >= done), default=t) - done
        if tail > self._short(self._tail):
            return done + self._tail
        change = tail - self._tail
        self._tail += change >> 3 if self.steps > 1 else change
        return done + tail

    def _short(self, usual: int) -> int:
        """How long a gap may be that belongs to a step, where gaps usually take that long."""
        if self.steps < 3:
            return PAUSE_NS
        half = self.typical >> 1
        longest = max(PAUSE_NS, 2 * usual)
        return max(NO_GAP_NS, min(half, longest))
