"""The step detector: receives the acts of a training script, and reports steps and spans.

    update │ log, pause │ fetch │ to(device) │ forward  backward  …  backward  update │ log …   acts
           │            │ wait  ├─────────────────── step ────────────────────────────┤
     other_in_loop       data_wait                 effective                         other_in_loop

A step ends where its last optimizer update ends (`turns` knows which that is), and begins at its
first sign of work, not where the one before ended:

    forward    of a module that is trained, begun with gradients on
    fetch      the batch came, and the forward pass began soon after it: what lies between (a copy
               to the device, augmentation) belongs to the step; a long gap does not
    backward   where no forward pass can be seen, less the time that one usually takes

Waits for data are data_wait wherever they lie. What else lies between steps is none of theirs:
evaluation and saves where they are recognised, else nothing is told, and the ledger makes it
other_in_loop. `signs.py` says which gaps belong to a step.

Where updates cannot be seen (none at all, or compiled ones) a step ends at the first sign of the
next one after a backward pass, if that comes soon, else when the update should have been over. An
update without a backward pass since the last step only sets up an optimizer's state.

Evaluation is a stretch between steps in which data is fetched with gradients off, or from a
dataset that no backward pass follows, in which a model is in eval mode and computes with
gradients off, or in which, right after a step, gradients are off for half as long as one takes.
"""

from collections.abc import Callable

from torchett.record.hooks.steps.signs import MOST_SIGNS, PAUSE_NS, Signs, Writer
from torchett.record.hooks.steps.turns import Turns

GRAD_OFF_NS = 10_000_000  # right after a step and half as long as one: evaluation

Optimizer = object


class StepDetector:
    """Receives acts in the order of time (in nanoseconds), and reports steps and spans."""

    def __init__(
        self,
        writer: Writer,
        first_index: Callable[[Optimizer | None], int],
        compiles: Callable[[], bool] = lambda: False,
    ) -> None:
        self._writer, self._first_index, self._compiles = writer, first_index, compiles
        self.index = -1  # of the step under way; −1: not known yet
        self._signs = Signs(writer)
        self.backwards = self.updates = 0
        self.ready = 0  # where the last act of the start-up ended
        self.optimizers = 0  # that were made
        self.pauses = self.pauses_ns = 0  # long gaps between steps that nothing explains
        self.worked_ns = 0  # of all steps
        self.worked = False  # a backward pass since the last step
        self._backward_end = 0
        self._amid = 0  # where an update ended that did not end the step
        self._cleared = False  # gradients were zeroed
        # Which act ends a step
        self._turns = Turns()
        self._bare = 0  # an update before any backward pass
        self._by_backward = False
        self._held = 0  # where the first stretch of backward passes without an update ended
        self._zeroed = False
        # Data and evaluation
        self._has_batch = False  # the first one
        self._training_sets: set[int] = set()
        self._unknown: dict[int, None] = {}
        self._fetches: list[tuple[int, int]] = []  # of unknown datasets
        self._since = self._until = 0  # evaluation
        self._evaluated: set[int] = set()  # what it was fed from
        self._fed = False  # with batches
        self._predicts = False  # right after a step
        self._is_training: Callable[[], bool] = lambda: False

    @property
    def steps(self) -> int:
        """How many there were."""
        return self._signs.steps

    @property
    def unsure_ns(self) -> int:
        """The time of steps whose first sign of work was not seen."""
        return self._signs.unsure_ns

    # Data ------------------------------------------------------------------------------------

    def fetched(self, t0: int, t1: int, dataset: int, grad: bool, grad_off_since: int = 0) -> None:
        """A batch arrived, or the loader is exhausted."""
        if grad and dataset in self._training_sets:
            if self._since:
                self.end_evaluation()
            if self._fetches:
                self._others_were_evaluation()
            if self._by_backward and self.worked:
                self._close(self._signs.end_before(t0, self._backward_end))
            self._wait(t0, t1)
        elif grad and self._until and dataset in self._evaluated and not self._is_training():
            self._until = t1
        elif grad:
            self._unknown[dataset] = None
            if len(self._fetches) == MOST_SIGNS:
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
        if not self._has_batch:
            self._has_batch = True
            self._enter(t0)
            self._writer.span("get_first_batch_data", t0, t1)
            self.ready = t1
            return
        if self._amid:
            self._goes_on(t0)
        self._signs.wait(t0, t1)

    def _enter(self, t: int) -> None:
        """The loop begins; what came after the last act of the start-up belongs to that."""
        if not self.steps and 0 < self.ready < t and (self.optimizers or self._has_batch):
            self._writer.span("pre_train", self.ready, t)
            self.ready = t

    def _others_were_evaluation(self) -> None:
        """Batches without a backward pass after them were for evaluation, if the loop has begun."""
        t0, t1 = self._fetches[0][0], self._fetches[-1][1]
        if self.steps:
            self._writer.span("evaluation", t0, t1)
            self.explain(t0, t1)
        self._forget_fetches()

    def _others_were_training(self) -> None:
        self._training_sets.update(self._unknown)
        for t0, t1 in self._fetches:
            self._wait(t0, t1)
        self._forget_fetches()

    def _forget_fetches(self) -> None:
        self._unknown.clear()
        self._fetches.clear()

    def feeds(self, dataset: int) -> bool:
        """Whether this dataset is known to be trained on."""
        return dataset in self._training_sets

    # Evaluation ------------------------------------------------------------------------------

    def eval_mode(self, t: int, is_training: Callable[[], bool]) -> None:
        """A model was put into eval mode; `is_training` tells when it is no longer."""
        if self.worked and (self._by_backward or self._held):
            self._stretch_over(t)
        if not self._since or (not self._until and self._is_training()):
            self._since, self._until = t, 0
            self._is_training = is_training

    def evaluates(self) -> bool:
        """Whether a model is, or was until now, in eval mode."""
        return self._since > 0 and not self._is_training()

    def evaluated(self, t: int) -> None:
        """A trained model has computed in eval mode, with gradients on."""
        if self.evaluates() and not self.worked:
            self._until = t

    def grad_off(self, t0: int, t1: int) -> None:
        """Gradients were off from t0 to t1."""
        if self.worked:
            return
        if not self._since:
            if (
                t0
                and t1 - t0 > GRAD_OFF_NS
                and t1 - t0 > self._signs.typical // 2 > 0
                and self._is_between(t0)
            ):
                self._writer.span("evaluation", t0, t1)
                self.explain(t0, t1)
                self._predicts = True
            return
        if self._since >= t0 or not self._is_training():
            self._until = t1
            self._evaluated.update(self._unknown)
            self._forget_fetches()
        elif not self._until:
            self._since = 0  # back in training mode, and nothing was computed meanwhile

    def evaluates_openly(self) -> bool:
        """Whether evaluation is recognised by more than disabled gradients."""
        return not (self._predicts or self._since)

    def _is_between(self, t: int) -> bool:
        """Whether nothing of the next step had been seen when this began, right after a step."""
        return t >= self._signs.ended and not (
            self._signs.waits or self._fetches or self._signs.forwards or self._cleared
        )

    def explain(self, t0: int, t1: int) -> None:
        """A span between steps: no sign of work before its end counts."""
        self._signs.explain(t0, t1, self.worked)

    def end_evaluation(self) -> None:
        """The loop continues: report the evaluation before it."""
        since, until = self._since, self._until
        self._since = self._until = 0
        self._evaluated.clear()
        self._fed = False
        if until > since:
            self._writer.span("evaluation", since, until)
            self.explain(since, until)
            if not self.steps and not self.backwards:
                self.ready = max(self.ready, until)

    def optimizer_made(self) -> None:
        """An optimizer was made, not inside another one."""
        self.optimizers += 1

    def ready_by(self, t: int) -> None:
        """The start-up was over by then, unless that is known already."""
        self.ready = self.ready or t

    def start_again(self, t: int) -> None:
        """An act of the start-up: whatever looked like the loop before it was not."""
        if self.backwards:
            return
        self.end_start_evaluation()
        self.ready = t
        self._signs.forwards.clear()
        self._forget_fetches()

    def end_start_evaluation(self) -> None:
        """Models are made, which computes without gradients, too: it was no evaluation."""
        if self._since and not self.backwards:
            self._until = self._until if self._fed else 0
            self.end_evaluation()

    # Work ------------------------------------------------------------------------------------

    def forward(self, t: int) -> None:
        """A forward pass of a trained module begins, with gradients on."""
        if self._amid:
            self._goes_on(t)
        if not (self.worked and self._turns.leader):
            self._signs.forward(t)

    def backward(self, t: int) -> None:
        """A backward pass begins, not inside another one."""
        self.backwards += 1
        if not self.worked:
            if self._since:
                self.end_evaluation()
            if self._fetches:
                self._others_were_training()
        elif not self._zeroed and not self.optimizers and not self.updates:
            self._stretch_over(self._backward_end)
        else:
            return
        self.worked = True
        self._signs.backwards.append(t)

    def backward_done(self, t: int) -> None:
        self._backward_end = t

    def zero_grad(self, t: int) -> None:
        """Gradients are about to be zeroed."""
        self._cleared = True
        if self.updates:
            return
        self._zeroed = True
        if self.worked and (not self.optimizers or self._by_backward or self._compiles()):
            self._stretch_over(t)

    def updated(self, optimizer: Optimizer, t: int) -> None:
        """The update of an optimizer is over."""
        if not self.worked and (self.backwards or not self._is_second_bare(t)):
            return
        self._by_backward, self._held = False, 0
        self.updates += 1
        ends = self._turns.ends(id(optimizer), t, self.optimizers)
        for end in ends:
            self._close(end, optimizer)
            self.worked = end < t
        if not ends:
            self._amid = t

    def _goes_on(self, t: int) -> None:
        """The next act of a step after an update that did not end it."""
        gap, self._amid = t - self._amid, 0
        if gap > PAUSE_NS and gap > 5 * self._signs.typical:
            self._signs.unsure_ns += gap

    def _is_second_bare(self, t: int) -> bool:
        """Whether this loop updates without backward passes: true from the second time on."""
        first, self._bare = self._bare, t
        if not first:
            return False
        if self._fetches:
            self._others_were_training()
        if not self.steps:
            self._close(first)
        return True

    # Loops whose updates are not seen

    def _stretch_over(self, t: int) -> None:
        """Backward passes without an update are over at t: a step, once there are two such."""
        end = self._signs.end_before(t, self._backward_end)
        self.worked = False
        if self._by_backward:
            self._close(end)
        elif self._held:
            first, self._held = self._held, 0
            self._by_backward = True
            self._close(first)
            self._close(end)
        else:
            self._held = end

    # Steps -----------------------------------------------------------------------------------

    def _close(self, end: int, optimizer: Optimizer | None = None) -> None:
        """A step ended."""
        if self.index < 0:
            self.index = self._first_index(optimizer)
        signs = self._signs
        later = signs.take_later(end)
        begin = signs.work_begins(end, self.ready)
        if not signs.steps:
            begin = self._first_begins(begin)
        window = signs.window(begin, end)
        if signs.ended:
            self._look_for_a_pause(window[0] - signs.ended)
        self._writer.step(*window, end, self.index)
        self.worked_ns += end - begin
        signs.step_over(begin, end, later)
        self.index += 1
        self.worked = self._cleared = False
        self._amid = 0

    def _first_begins(self, begin: int) -> int:
        """Where the first step begins: when its batch came, if that was not long before."""
        if self._has_batch and 0 < begin - self.ready <= PAUSE_NS:
            return self.ready
        self._enter(begin)
        return begin

    def _look_for_a_pause(self, gap: int) -> None:
        if gap > PAUSE_NS:
            gap -= self._signs.explained
            if gap > PAUSE_NS and gap > 5 * self._signs.typical:
                self.pauses += 1
                self.pauses_ns += gap

    def finish(self) -> None:
        """The process ends: report what is still open."""
        if self._since:
            self.end_evaluation()
        if self._fetches:
            self._others_were_evaluation()
        if self.worked and self._turns.left():
            self._close(self._turns.left())
        elif self.worked and self._held:
            self._stretch_over(self._backward_end)
        elif self.worked and self._by_backward:
            self._close(self._signs.end_before(self._backward_end, self._backward_end))
