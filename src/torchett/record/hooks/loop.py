"""The training loop, recognised from what it does.

    fetch  zero_grad  (forward)  backward  …  backward  update │ (log)  fetch  …        what is seen
    ══════ ├──────────────── step 0 ───────────────────────────┼─────── ══════ step 1   what is told

A step runs from the end of the one before to the end of its last optimizer update. Waits for
data, saves and evaluation lie over it as spans. Which update ends a step:

    one optimizer                    each of its updates, whatever number of backward passes
    several, in turn (D G D G)       the last of the turn; the first turn is told when it repeats
    one more often (D D D G D D D)   each update of that one
    none at all, or a compiled one   the next zero_grad after a backward pass

An update without a backward pass since the last step only sets up an optimizer's state.

Evaluation is a stretch between steps in which data is fetched with gradients off, or from a
dataset that no backward pass follows, in which a model is in eval mode and computes with
gradients off, or in which, right after a step, gradients are off for half as long as one takes.
"""

from collections.abc import Callable
from typing import Protocol

SHORT_WAIT_NS = 100_000_000  # waits up to this are told with their step, in one entry
PAUSE_NS = 100_000_000  # between steps: longer ones, compared to the steps, are none of theirs
GRAD_OFF_NS = 10_000_000  # right after a step and half as long as one: evaluation
_MOST_WAITS = 64

Optimizer = object


class Pen(Protocol):
    """What the loop tells what it saw."""

    def step(self, waited_ns: int, begin_ns: int, end_ns: int, index: int) -> None: ...

    def span(self, account: str, t0_ns: int, t1_ns: int) -> None: ...


class Loop:
    """Takes acts in the order of time (all times in nanoseconds), tells steps and spans."""

    def __init__(
        self,
        pen: Pen,
        first_index: Callable[[Optimizer | None], int],
        compiles: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pen, self._first_index, self._compiles = pen, first_index, compiles
        self.begin = 0  # of the step under way; 0: the loop has not begun
        self.index = -1  # of the step under way; −1: not known yet
        self.steps = self.backwards = self.updates = 0
        self.ready = 0  # where the last act of the start-up ended
        self.optimizers = 0  # that were made
        self.interrupted = False  # a span other than a wait lies over the step under way
        self.pauses_ns = 0
        self.pauses = 0
        self.worked = False  # a backward pass since the last step
        self._may_have_worked = False  # nobody looked; an update will tell
        self.fed = 0  # usual steps in a row that waited for a batch
        self._backward_end = 0
        self._waits: list[tuple[int, int]] = []
        self._waited = 0
        self.typical = 0  # what a step takes
        self.alike = 0  # usual steps in a row
        self._apart = 0  # of the step under way: evaluation
        self.cleared = False  # gradients were zeroed since the last step
        # Updates
        self._leader = 0  # the optimizer whose updates end steps; 0: not known
        self._turn: dict[int, int] = {}  # updates since the last step: optimizer → when
        self._bare = 0  # an update before any backward pass
        # Loops without updates
        self._by_backward = False
        self._held = 0  # where the first stretch of backward passes without an update ended
        self._zeroed = False
        # Data and evaluation
        self._training_sets: set[int] = set()
        self._unknown: dict[int, None] = {}
        self._fetches: list[tuple[int, int]] = []  # of unknown datasets
        self._since = self._until = 0  # evaluation
        self._evaluated: set[int] = set()  # what it was fed from
        self._fed = False  # with batches
        self._predicts = False  # right after a step
        self._is_training: Callable[[], bool] = lambda: False

    # Data ------------------------------------------------------------------------------------

    def fetched(self, t0: int, t1: int, dataset: int, grad: bool, grad_off_since: int = 0) -> None:
        """A batch came (or the loader was found empty)."""
        if grad and dataset in self._training_sets:
            begin = self.begin
            if begin and not (self._since or self._fetches or self._by_backward):
                if begin < t0 < begin + PAUSE_NS and len(self._waits) < _MOST_WAITS:
                    self._waits.append((t0, t1))
                    self._waited += t1 - t0
                else:
                    self._wait(t0, t1)
                return
            if self._since:
                self.end_evaluation()
            if self._fetches:
                self._others_were_evaluation()
            if self._by_backward and self.worked:
                self._close(t0)
            if self.begin:
                self._wait(t0, t1)
            else:
                self._first_batch(t0, t1)
        elif grad and self._until and dataset in self._evaluated and not self._is_training():
            self._until = t1
        elif grad:
            self._unknown[dataset] = None
            if len(self._fetches) == _MOST_WAITS:
                del self._fetches[1]
            self._fetches.append((t0, t1))
        else:
            if not self._since:
                first = self._fetches[0][0] if self._fetches else t0
                self._since = min(first, grad_off_since or t0)
                self._is_training = lambda: False
            self._evaluated.update(self._unknown)
            self._evaluated.add(dataset)
            self._forget_fetches()
            self._until = t1
            self._fed = True

    def _wait(self, t0: int, t1: int) -> None:
        begin = self.begin
        if t0 < begin:
            t0 = begin
        if not self.worked and self.steps > 2 and not self._waits and not self.interrupted:
            pause = t0 - begin
            if pause > PAUSE_NS and pause > 5 * self.typical:
                self.begin = t0
                self.pauses_ns += pause
                self.pauses += 1
        if t1 > t0:
            self._waits.append((t0, t1))
            self._waited += t1 - t0
            if len(self._waits) > _MOST_WAITS:
                self._tell_waits()

    def _tell_waits(self) -> None:
        for t0, t1 in self._waits:
            self._pen.span("data_wait", t0, t1)
        self._waits.clear()
        self._waited = 0
        self.interrupted = True

    def _first_batch(self, t0: int, t1: int) -> None:
        self._enter(t0)
        self._pen.span("get_first_batch_data", t0, t1)
        self.begin = t1

    def _enter(self, t: int) -> None:
        """The loop begins; what came after the optimizer was made belongs to the start-up."""
        if self.optimizers and self.ready and not self.steps:
            self._pen.span("pre_train", self.ready, t)

    def _others_were_evaluation(self) -> None:
        """Fetches that no backward pass followed were for evaluation (if the loop has begun)."""
        if self.steps:
            t0, t1 = self._fetches[0][0], self._fetches[-1][1]
            self._pen.span("evaluation", t0, t1)
            self._aside(t1 - t0)
        self._forget_fetches()

    def _others_were_training(self) -> None:
        self._training_sets.update(self._unknown)
        fetches = list(self._fetches)
        self._forget_fetches()
        if fetches and not (self.begin and (self.steps or self._waits)):
            self._first_batch(*fetches.pop(0))
        for t0, t1 in fetches:
            self._wait(t0, t1)

    def _forget_fetches(self) -> None:
        self._unknown.clear()
        self._fetches.clear()

    # Evaluation ------------------------------------------------------------------------------

    def eval_mode(self, t: int, is_training: Callable[[], bool]) -> None:
        """A model was put into eval mode; `is_training` tells when it is no longer."""
        if self.worked and (self._by_backward or self._held):
            self._stretch_over(t)
        if not self._since or (not self._until and self._is_training()):
            self._since, self._until = t, 0
            self._is_training = is_training

    def grad_off(self, t0: int, t1: int) -> None:
        """Gradients were off from t0 to t1."""
        if self.worked:
            return
        if not self._since:
            if (
                t0
                and t1 - t0 > GRAD_OFF_NS
                and t1 - t0 > self.typical // 2 > 0
                and self._is_between(t0)
            ):
                self._pen.span("evaluation", t0, t1)
                self._aside(t1 - t0)
                self._predicts = True
            return
        if self._since >= t0 or not self._is_training():
            self._until = t1
            self._evaluated.update(self._unknown)
            self._forget_fetches()
        elif not self._until:
            self._since = 0  # back in training mode, and nothing was computed meanwhile

    def evaluates_openly(self) -> bool:
        """Whether evaluation, if there is any, was seen by more than gradients being off."""
        return not (self._predicts or self._since)

    def _is_between(self, t: int) -> bool:
        """Whether nothing of the next step had been seen when this began, right after a step."""
        return t >= self.begin and not (self._waits or self._fetches or self.cleared)

    def _aside(self, ns: int) -> None:
        """A span lies over the step under way: that time is none of its own."""
        self.interrupted = True
        self._apart += ns

    def end_evaluation(self) -> None:
        """The loop goes on: what was evaluation is told."""
        since, until = self._since, self._until
        self._since = self._until = 0
        self._evaluated.clear()
        self._fed = False
        if until > since:
            self._pen.span("evaluation", since, until)
            self._aside(until - since)
            if not self.steps and not self.backwards:
                self.ready = max(self.ready, until)
                self.begin = until if self.begin and self.begin < since else self.begin

    def start_again(self, t: int) -> None:
        """An act of the start-up: whatever looked like the loop before it was not."""
        if self.backwards:
            return
        self.end_start_evaluation()
        self.begin, self.ready = 0, t
        self._forget_fetches()

    def end_start_evaluation(self) -> None:
        """Models are made, which computes without gradients, too: it was no evaluation."""
        if self._since and not self.backwards:
            self._until = self._until if self._fed else 0
            self.end_evaluation()

    # Work ------------------------------------------------------------------------------------

    def backward(self, t: int) -> None:
        """A backward pass begins."""
        if not self.worked:
            if self._since:
                self.end_evaluation()
            if self._fetches:
                self._others_were_training()
            if not self.begin:
                self._begin_late(t)
            self.worked = True
        elif not self._zeroed and not self.optimizers and not self.updates:
            self._stretch_over(self._backward_end)
            self.worked = True
        self.backwards += 1

    def works_again(self) -> None:
        """The first backward pass of a later step begins."""
        if self._since or self._fetches:
            self.backward(self.begin)
        else:
            self.worked = True
            self.backwards += 1

    def _begin_late(self, t: int) -> None:
        """The loop began unnoticed, after the last thing that was seen."""
        self.begin = self.ready or t

    def backward_done(self, t: int) -> None:
        self._backward_end = t

    def zero_grad(self, t: int) -> None:
        """Gradients are about to be zeroed."""
        self._zeroed = True
        if self.updates:
            return
        if self.worked:
            if not self.optimizers or self._by_backward or self._compiles():
                self._stretch_over(t)
        elif not self.begin and not self._fetches and not self._since:
            self._enter(t)
            self.begin = t

    def _stretch_over(self, t: int) -> None:
        """Backward passes without an update end here: a step, once there are two such."""
        if self._by_backward:
            self._close(t)
            return
        self.worked = False
        if not self._held:
            self._held = t
            return
        first, self._held = self._held, 0
        self._by_backward = True
        self._close(first)
        self._close(t)

    def updated(self, optimizer: Optimizer, t: int) -> None:
        """The update of an optimizer that is not part of another one's is over."""
        key = id(optimizer)
        self.worked = self.worked or self._may_have_worked
        if (
            key == self._leader
            and self.worked
            and not (self._turn or self.interrupted or self._waited > SHORT_WAIT_NS)
            and self.steps > 1
        ):  # the usual case, at the least cost: as _close does it
            begin, waited, index = self.begin, self._waited, self.index
            self._pen.step(begin, begin + waited, t, index)
            self.fed += 1
            if waited:
                self._waits.clear()
                self._waited = 0
            else:
                self.fed = 0
            self.typical += (t - begin - waited - self.typical) >> 3
            self.begin = t
            self.index = index + 1
            self.steps += 1
            self.updates += 1
            self.alike += 1
            self.worked = self._may_have_worked = self.cleared = False
            return
        if not self.worked and (self.backwards or not self._is_second_bare(t)):
            return
        self._by_backward, self._held = False, 0
        self.updates += 1
        if key == self._leader:
            self._turn.clear()
            self._close(t, optimizer)
        elif key in self._turn:
            last, end = next(reversed(self._turn.items()))
            self._turn.clear()
            self._leader = last
            self._close(end, optimizer)
            self.worked = True
            if key == last:
                self._close(t, optimizer)
            else:
                self._turn[key] = t
        elif self.optimizers < 2 and not self._leader:
            self._leader = key
            self._close(t, optimizer)
        else:
            self._turn[key] = t

    def _is_second_bare(self, t: int) -> bool:
        """Whether this loop updates without backward passes: the second time it is believed."""
        first, self._bare = self._bare, t
        if not first:
            return False
        if self._fetches:
            self._others_were_training()
        if not self.begin:
            self._begin_late(first)
        if not self.steps and self.begin <= first:
            self._close(first)
        return True

    def _close(self, t: int, optimizer: Optimizer | None = None) -> None:
        """A step ended at t, now or (of a turn that was not understood yet) some time ago."""
        if self.index < 0:
            self.index = self._first_index(optimizer)
        begin, waited = self.begin, self._waited
        if not 0 < begin <= t:
            begin = t
        later: list[tuple[int, int]] | None = None
        if self._waits:
            if self._waits[-1][0] >= t:
                later = [wait for wait in self._waits if wait[0] >= t]
                self._waits = [wait for wait in self._waits if wait[0] < t]
                waited = self._waited = sum(t1 - t0 for t0, t1 in self._waits)
            if self.interrupted or waited > SHORT_WAIT_NS:
                self._tell_waits()
            self._waits.clear()
            self._waited = 0
        told = waited if not self.interrupted and waited <= t - begin else 0
        self._pen.step(begin, begin + told, t, self.index)
        took = t - begin - waited - self._apart
        if self.steps > 1:
            self.typical += (took - self.typical) >> 3
        else:  # the first step compiles and warms up: the second one tells more
            self.typical = took
        if later:
            self._waits, self._waited = later, sum(t1 - t0 for t0, t1 in later)
        self.begin = t
        self.index += 1
        self.steps += 1
        self.alike = 0
        self._apart = 0
        self.worked = self._may_have_worked = self.interrupted = self.cleared = False

    def go_on(self, begin: int, index: int, wait: tuple[int, int], worked: bool | None) -> None:
        """Steps up to this one were told by others: it began, waited and worked like that.

        If nobody knows whether it worked, it has not for the moment (what comes may be evaluation),
        and it has if an update is the next that is seen.
        """
        done = index - self.index
        self.begin, self.index = begin, index
        self.steps += done
        self.updates += done
        self.backwards += done
        self.alike = 0
        self._wait(*wait)
        self.worked = bool(worked)
        self._may_have_worked = worked is None

    def feeds(self, dataset: int) -> bool:
        """Whether this dataset is known to be trained on."""
        return dataset in self._training_sets

    def finish(self) -> None:
        """The process ends: tell what was still open."""
        if self._since:
            self.end_evaluation()
        if self._fetches:
            self._others_were_evaluation()
        if self._turn and self.worked and not self._leader:
            self._close(next(reversed(self._turn.values())))
        elif self.worked and self._held:
            self._stretch_over(self._backward_end)
        elif self.worked and self._by_backward:
            self._close(self._backward_end)
