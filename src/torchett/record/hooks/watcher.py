"""The watcher: receives the acts that hooks report, and assigns them to threads and spans.

    torch_hooks ─► watcher ─► step_detector ─► span_writer ─► recorder

Acts count when they come from the thread that trains: the one whose backward pass came first, and
until then the one that acted last. The record is opened by the first act that only a trainer does.
"""

import atexit
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from torchett.record import api
from torchett.record.clock import now_ns
from torchett.record.hooks.checkpoint_acts import CheckpointActs
from torchett.record.hooks.forwards import Forwards, has_compiled
from torchett.record.hooks.grad_mode import GradMode, grad_enabled
from torchett.record.hooks.imports import COSTLY_NS, Imports, Waiting
from torchett.record.hooks.model_spans import ModelSpans
from torchett.record.hooks.never_raises import never_raises
from torchett.record.hooks.saves import SaveDetector
from torchett.record.hooks.span_writer import SpanWriter
from torchett.record.hooks.steps.hints import hints
from torchett.record.hooks.steps.step_detector import StepDetector
from torchett.record.patches import Installed
from torchett.record.recorder import Recorder, Silent

log = logging.getLogger("torchett")
_me = threading.get_ident


class Watcher:
    """The state of all hooks in this process."""

    def __init__(self) -> None:
        self.disabled = True
        self._watches = self._watches_steps = False
        self._grad_mode = GradMode([])
        self._imports = Imports(self._imported)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.writer = SpanWriter()
        self.saves = SaveDetector(self.writer, self.trained_elements)
        self.checkpoints = CheckpointActs(self)
        self.detector = StepDetector(self.writer, self.saves.first_index, has_compiled)
        self.forwards = Forwards(self.forward_begins, self.forward_ends)
        self._thread = 0
        self._in_scaler = False
        self._grad_mode.forget()
        self._in_backward = False
        self._iterator_ns = 0  # spent on making an iterator whose first batch is not here yet
        self._models = ModelSpans(self.writer)
        self._waiting = Waiting()
        self._optimizer: Callable[[], Any] | None = None
        self._installed_ns = now_ns()
        if self._watches:
            api.when_resumed(self.saves.first_index)

    def watch(self, steps: bool = True) -> bool:
        """Take acts from now on (of saves and loads alone, without `steps`); False if it did."""
        if self._watches:
            return False
        self._watches, self._watches_steps = True, steps
        self._begin_anew()
        self.disabled = False
        if steps:
            self._imports.watch()
        api.when_open(self._opened)
        os.register_at_fork(after_in_child=self._forked)
        return True

    def may_watch_grad(self, hooks: list[Installed]) -> None:
        """These hooks watch when gradients are off."""
        self._grad_mode = GradMode(hooks)

    def disable(self, error: BaseException) -> None:
        """A hook failed: all hooks are disabled from now on."""
        if not self.disabled:
            self._stop()
            log.warning(
                "torchett: hooks are off, training goes on: %s: %s", type(error).__name__, error
            )

    def _stop(self) -> None:
        self.disabled = True
        self._imports.stop()

    def _forked(self) -> None:
        """In a forked child: its parent's record is not its own, but it may open one."""
        if self.disabled:
            return
        if self.writer.recorder is not None:
            self._stop()
        else:
            self._begin_anew()

    # The record ------------------------------------------------------------------------------

    def _open(self, works: bool = False) -> None:
        """Open the record if it is known that this process is a rank, and which one."""
        if self.writer.recorder is not None:
            return
        rank, ranks = None, None
        if not {"RANK", "SLURM_PROCID"} & set(os.environ):
            dist = sys.modules.get("torch.distributed")
            if dist is not None and dist.is_available() and dist.is_initialized():
                rank, ranks = dist.get_rank(), dist.get_world_size()
            elif not works:
                return  # it may yet join a process group, or start ranks and never train
        api.begin(self._installed_ns, rank=rank, ranks=ranks)

    def _opened(self, recorder: Recorder | Silent) -> None:
        if self.disabled:
            return
        if isinstance(recorder, Silent):
            self._stop()
            return
        if self.writer.recorder is None:
            atexit.register(self._finish, os.getpid())
        else:  # training begins anew in this process
            self._begin_anew()
        self.writer.follow(recorder)
        waiting, self._waiting = self._waiting, Waiting()
        for t0, t1 in waiting.spans:
            self.writer.span("imports", t0, t1)
        if slowest := waiting.slowest():
            recorder.note("imports", slowest)

    @never_raises
    def _finish(self, pid: int) -> None:
        """At exit, before the record is closed: record what is left and what was not recognised."""
        if os.getpid() != pid:
            return
        self.detector.finish()
        self.saves.flush()
        if not self.writer.says_steps and self._watches_steps:
            for hint in hints(self.detector, self.saves):
                api.note("hint", {"says": hint})

    def _takes(self, me: int) -> bool:
        """Whether this thread is the training thread; torchett's own warm-up thread never is."""
        if self.detector.backwards or threading.current_thread().name.startswith("ett-"):
            return False
        self._thread = me
        self._grad_mode.forget()
        return True

    # The start-up ----------------------------------------------------------------------------

    def _imported(self, name: str, t0: int, t1: int) -> None:
        if self.disabled or t1 - t0 < COSTLY_NS:
            return
        if self.writer.recorder is not None:
            self.writer.span("imports", t0, t1)
        else:
            self._waiting.add(name, t0, t1, apart=bool(self._models.since))

    def model_made(self, module: Any) -> None:
        """A module is constructed; one that an import constructs is part of the import."""
        if self.disabled:
            return
        self.forwards.made(module)
        if self.detector.backwards or self._imports.busy or _me() != (self._thread or _me()):
            return
        self._models.module_made(now_ns())
        self.detector.end_start_evaluation()

    def model_copied(self, module: Any) -> None:
        """A module is a copy of another one, or comes from a file."""
        if not self.disabled:
            self.forwards.made(module)

    def optimizer_begins(self) -> None:
        self._models.optimizer_begins()

    def optimizer_made(self, t0: int, optimizer: Any) -> None:
        """An optimizer was constructed: the model is complete."""
        if not self._models.optimizer_made() or self.disabled:
            return
        try:
            if _me() != self._thread and not self._takes(_me()):
                return
            t1 = now_ns()
            self._models.tell_with_optimizer(t0, t1)
            self.detector.optimizer_made()
            self.detector.start_again(t1)
            self.forwards.watch(optimizer)
            self._open()
        except Exception as error:
            self.disable(error)

    @never_raises
    def begins(self, account: str) -> Any:
        """An act of the start-up begins: returns an open span for `ended`."""
        self._models.tell()
        if "RANK" in os.environ:
            self._open()
        recorder = self.writer.recorder
        if isinstance(recorder, Recorder) and not self.writer.says(account):
            return recorder.open_span(account)
        return None

    @never_raises
    def ended(self, account: str, t0: int, span: Any) -> None:
        """An act of the start-up is over."""
        t1 = now_ns()
        if span is not None:
            span()
        else:
            self.writer.span(account, t0, t1)
        self.detector.start_again(t1)
        self._open()

    def prepared(self, t0: int) -> None:
        """A loader or a dataset was made."""
        t1 = now_ns()
        if not self.disabled and not self.detector.backwards and t1 - t0 >= COSTLY_NS:
            self.writer.span("preproc_creation", t0, t1)

    # The loop --------------------------------------------------------------------------------

    def iterator_made(self, t0: int) -> None:
        if not self.disabled and _me() == (self._thread or _me()):
            self._iterator_ns = now_ns() - t0

    def fetched(self, iterator: Any, t0: int, grad: bool) -> None:
        """A loader returned a batch, or is exhausted."""
        if self.disabled:
            return
        try:
            if _me() != self._thread and not self._takes(_me()):
                return
            t1 = now_ns()
            if self._iterator_ns:
                t0 -= self._iterator_ns
                self._iterator_ns = 0
            if self.writer.recorder is None:
                self._models.tell()
                self._open(works=True)
            since = 0
            if not grad:
                since = self._grad_mode.since
                self._grad_mode.watch(True)
            self.detector.fetched(t0, t1, id(iterator._dataset), grad, since)
        except Exception as error:
            self.disable(error)

    def forward_begins(self, module: Any) -> bool:
        """A trained module is called; returns whether its end must be reported."""
        if self.disabled:
            return False
        try:
            if self.detector.worked or _me() != (self._thread or _me()) or not grad_enabled():
                return False
            if not module.training and self.detector.evaluates():
                return True
            self.detector.forward(now_ns())
        except Exception as error:
            self.disable(error)
        return False

    @never_raises
    def forward_ends(self) -> None:
        """A trained module has computed in eval mode."""
        self.detector.evaluated(now_ns())

    def backward_begins(self, accumulates: bool) -> bool:
        """A backward pass begins; returns False if its end need not be reported."""
        if self.disabled:
            return False
        try:
            detector = self.detector
            if _me() != self._thread and not self._takes(_me()):
                return False
            if detector.worked and detector.updates:
                return False  # the usual loop, under way: all that matters is that there was one
            if self._in_backward or not (accumulates or detector.optimizers):
                return False
            if not detector.backwards:
                self._training_begins()
            if not detector.optimizers:
                self._trains_by_hand()
            detector.backward(now_ns())
            self._in_backward = not detector.updates
            return self._in_backward
        except Exception as error:
            self.disable(error)
            return False

    def backward_ends(self) -> None:
        self._in_backward = False
        self.detector.backward_done(now_ns())

    def _trains_by_hand(self) -> None:
        """No optimizer shows which model is trained: use the modules seen so far."""
        if self._models.since:
            self.detector.ready_by(self._models.until)
        self.forwards.watch(None)

    def _training_begins(self) -> None:
        if self._models.since:
            self.detector.ready_by(self._models.until)
        self._models.tell()
        self._open(works=True)

    def gradients_zeroed(self) -> None:
        """Gradients are about to be zeroed."""
        if self.disabled:
            return
        try:
            detector = self.detector
            if _me() != self._thread and not self._takes(_me()):
                return
            if not detector.updates and not detector.optimizers:
                self._trains_by_hand()
            detector.zero_grad(now_ns())
        except Exception as error:
            self.disable(error)

    def scaler_begins(self) -> None:
        """A gradient scaler is about to update, or to skip the update."""
        self._in_scaler = _me() == self._thread

    def scaler_ends(self) -> None:
        self._in_scaler = False

    def update_ends(self, optimizer: Any) -> None:
        """An optimizer's update is over."""
        if self.disabled or self._in_scaler:
            return
        try:
            if _me() != self._thread:
                return
            t = now_ns()
            detector = self.detector
            if detector.index < 0:
                self._open(works=True)
                self._optimizer = weakref.ref(optimizer)
            if self.saves.soon >= 0:
                self.saves.flush()
            detector.updated(optimizer, t)
            forwards = self.forwards
            if not forwards.knows(optimizer):
                forwards.watch(optimizer)
            forwards.step_over()
            if self._grad_mode.watched:
                self._grad_mode.settle(detector)
        except Exception as error:
            self.disable(error)

    @never_raises
    def eval_mode(self, module: Any) -> None:
        """A module that was in training mode is put into eval mode."""
        if _me() == self._thread or self._takes(_me()):
            known = weakref.ref(module)
            self._grad_mode.watch(True)
            self.detector.eval_mode(now_ns(), lambda: bool(getattr(known(), "training", False)))

    def grad_off_begins(self) -> None:
        """Gradients are turned off."""
        if not self.disabled and _me() == self._thread:
            self._grad_mode.begins(self.detector.worked)

    def grad_off_ends(self) -> None:
        if not self.disabled and _me() == self._thread:
            self._grad_mode.ends(self.detector)

    # Checkpoints -----------------------------------------------------------------------------

    def trains_here(self) -> bool:
        """Whether this is the training thread, or none is known."""
        return _me() == (self._thread or api.trainer_thread())

    def before_training(self) -> bool:
        """Whether no step has begun, and this thread may be the one that will train."""
        began = self.detector.backwards or self.writer.says_steps
        return not began and _me() == (self._thread or _me())

    def restored(self) -> None:
        """State was put into a model or an optimizer: an act of the start-up."""
        self._models.tell()
        self.detector.start_again(now_ns())
        if self.detector.optimizers:
            self._open()

    def trained_elements(self) -> int:
        """How many numbers the optimizer updates; 0 if that is not known."""
        optimizer = self._optimizer() if self._optimizer is not None else None
        groups = getattr(optimizer, "param_groups", [])
        return sum(p.numel() for group in groups for p in group["params"])


watcher = Watcher()
