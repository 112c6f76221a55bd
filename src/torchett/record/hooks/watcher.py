"""The watcher: takes the acts that hooks report, and decides whose they are and what they open.

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
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torchett.record import api
from torchett.record.clock import now_ns
from torchett.record.hooks.hints import hints
from torchett.record.hooks.imports import COSTLY_NS, Imports, Waiting
from torchett.record.hooks.loop import Loop
from torchett.record.hooks.pen import Pen
from torchett.record.hooks.saves import Saves
from torchett.record.hooks.settled import ALIKE, LONG_NS, Settled
from torchett.record.recorder import Recorder, Silent

log = logging.getLogger("torchett")
_BRIDGED_NS = 10_000_000_000  # from the last module to the optimizer: moved, wrapped, sharded
_LEARNED = 64  # steps after which a loop has shown how it evaluates
_me = threading.get_ident
P = ParamSpec("P")
T = TypeVar("T")


def _safely(act: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T | None]:
    """An act that never raises: where one fails, hooks are off from then on, and none acts.

    What is called in every step says the same in its own words, without a call more.
    """

    @wraps(act)
    def safe(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        if self.off:
            return None
        try:
            return act(self, *args, **kwargs)
        except Exception as error:
            self.broke(error)
            return None

    return safe


class Watcher:
    """All that the hooks know in this process."""

    def __init__(self) -> None:
        self.off = True
        self.grad_modes: Callable[[bool], None] = lambda on: None
        self._grad_watched = False
        self.settled = Settled(self.update_ends, self._not_as_usual, self.broke)
        self.switches: list[Callable[[bool], None]] = []  # of hooks that a settled loop can spare
        self._imports = Imports(self._imported)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.settled.unsettle()
        self.pen = Pen(self._unsettle, self._flush)
        self.saves = Saves(self.pen, self.trained_elements)
        self.loop = Loop(self.pen, self._first_index, _has_compiled)
        self.let_go: list[Callable[[], None]] = []  # undo what is of no use once training began
        self._thread = 0
        self._updates: list[int] = []  # optimizers whose update is under way, outermost first
        self._nested = False  # there were updates inside others
        self._grad_off = self._grad_off_since = 0
        self._in_backward = False
        self._iterator_ns = 0  # spent on making an iterator whose first batch is not here yet
        self._models_since = self._models_until = 0
        self._made = 0  # optimizers being made
        self._waiting = Waiting()
        self._optimizer: Callable[[], Any] | None = None
        self._boarded_ns = now_ns()

    def come_aboard(self) -> None:
        """Watch from now on."""
        if not self.off:
            return
        self._begin_anew()
        self.off = False
        self._imports.watch()
        api.when_open(self._opened)
        os.register_at_fork(after_in_child=self._forked)

    def broke(self, error: BaseException) -> None:
        """A hook failed: none of them does anything from now on."""
        if not self.off:
            self.off = True
            self.settled.unsettle()
            self._imports.stop()
            log.warning(
                "torchett: hooks are off, training goes on: %s: %s", type(error).__name__, error
            )

    def _forked(self) -> None:
        """In a forked child: its parent's record is not its own, but it may open one."""
        if self.off:
            return
        if self.pen.recorder is not None:
            self.off = True
            self.settled.unsettle()
            self._imports.stop()
        else:
            self._begin_anew()

    # The record ------------------------------------------------------------------------------

    def _open(self, works: bool = False) -> None:
        """Open the record, if it is known by now that this is a rank, and which."""
        if self.pen.recorder is not None:
            return
        rank, ranks = None, None
        if not {"RANK", "SLURM_PROCID"} & set(os.environ):
            dist = sys.modules.get("torch.distributed")
            if dist is not None and dist.is_available() and dist.is_initialized():
                rank, ranks = dist.get_rank(), dist.get_world_size()
            elif not works:
                return  # it may yet join a process group, or start ranks and never train
        api.begin(self._boarded_ns, rank=rank, ranks=ranks)

    def _opened(self, recorder: Recorder | Silent) -> None:
        if self.off:
            return
        if isinstance(recorder, Silent):
            self.off = True
            self._imports.stop()
            return
        self.pen.follow(recorder)
        waiting, self._waiting = self._waiting, Waiting()
        for t0, t1 in waiting.spans:
            self.pen.span("imports", t0, t1)
        if slowest := waiting.slowest():
            recorder.note("imports", slowest)
        atexit.register(self._finish, os.getpid())

    def _finish(self, pid: int) -> None:
        """At exit, before the record is closed: tell what is left, and what was not understood."""
        if self.off or os.getpid() != pid:
            return
        try:
            self._unsettle()
            self.loop.finish()
            self.saves.flush()
            if not self.pen.says_steps:
                for hint in hints(self.loop, self.saves):
                    api.note("hint", {"says": hint})
        except Exception as error:
            self.broke(error)

    def _takes(self, me: int) -> bool:
        """Whether this thread is now the one that trains; one of ours, that warms up, never is."""
        if self.loop.backwards or threading.current_thread().name.startswith("ett-"):
            return False
        self._thread = me
        self._updates.clear()
        self._grad_off = 0
        return True

    # The start-up ----------------------------------------------------------------------------

    def _imported(self, name: str, t0: int, t1: int) -> None:
        if self.off or t1 - t0 < COSTLY_NS:
            return
        if self.pen.recorder is not None:
            self.pen.span("imports", t0, t1)
        else:
            self._waiting.add(name, t0, t1, apart=bool(self._models_since))

    def model_made(self) -> None:
        """A module is being made; one that is made by an import is part of that."""
        if not (self.off or self._imports.busy) and _me() == (self._thread or _me()):
            self._models_until = now_ns()
            self.loop.end_start_evaluation()
            if not self._models_since:
                self._models_since = self._models_until

    def _tell_models(self, until: int = 0) -> None:
        if self._models_since:
            self.pen.span("train_module_creation", self._models_since, until or self._models_until)
            self._models_since = 0

    def optimizer_begins(self) -> None:
        self._made += 1

    def optimizer_made(self, t0: int) -> None:
        """An optimizer was made: with it, the model is complete."""
        self._made -= 1
        if self.off or self._made > 0:
            return
        try:
            if _me() != self._thread and not self._takes(_me()):
                return
            t1 = now_ns()
            self._unsettle()
            if self._models_since and t0 - self._models_until > _BRIDGED_NS:
                self._tell_models()  # what came between is not known
            self._models_since = self._models_since or t0
            self._tell_models(t1)
            self.loop.optimizers += 1
            self.loop.start_again(t1)
            self._open()
        except Exception as error:
            self.broke(error)

    @_safely
    def begins(self, account: str) -> Any:
        """An act of the start-up begins: a span that is open, to be handed to `ended`."""
        self._tell_models()
        if "RANK" in os.environ:
            self._open()
        recorder = self.pen.recorder
        if isinstance(recorder, Recorder) and not self.pen.says(account):
            return recorder.open_span(account)
        return None

    @_safely
    def ended(self, account: str, t0: int, span: Any) -> None:
        """An act of the start-up is over."""
        t1 = now_ns()
        if span is not None:
            span()
        else:
            self.pen.span(account, t0, t1)
        self.loop.start_again(t1)
        self._open()

    def prepared(self, t0: int) -> None:
        """A loader or a dataset was made."""
        t1 = now_ns()
        if not self.off and not self.loop.backwards and t1 - t0 >= COSTLY_NS:
            self.pen.span("preproc_creation", t0, t1)

    # The loop --------------------------------------------------------------------------------

    def iterator_made(self, t0: int) -> None:
        if not self.off and _me() == (self._thread or _me()):
            self._iterator_ns = now_ns() - t0
            self.settled.forget_source()

    def fetched(self, iterator: Any, t0: int, grad: bool) -> None:
        """A loader gave a batch, or had none left."""
        if self.off:
            return
        try:
            if _me() != self._thread and not self._takes(_me()):
                return
            t1 = now_ns()
            if self._iterator_ns:
                t0 -= self._iterator_ns
                self._iterator_ns = 0
            dataset = id(iterator._dataset)
            if self.settled.is_on:
                if grad and self.loop.feeds(dataset) and self.settled.feed(iterator, t0, t1):
                    return
                self._unsettle()
            if self.pen.recorder is None:
                self._tell_models()
                self._open(works=True)
            since = 0
            if not grad:
                since = self._grad_off_since if self._grad_off else 0
                self.watch_grad(True)
            self.loop.fetched(t0, t1, dataset, grad, since)
            if self.pen.says_steps:
                self.loop.interrupted = True  # its waits are told by themselves, not with a step
        except Exception as error:
            self.broke(error)

    def backward_begins(self, accumulates: bool) -> bool:
        """A backward pass begins; False if its end need not be told."""
        if self.off:
            return False
        try:
            loop = self.loop
            if _me() != self._thread and not self._takes(_me()):
                return False
            if loop.updates:  # the usual loop, under way: all that matters is that there was one
                if not loop.worked:
                    loop.works_again()
                return False
            if self._in_backward:
                return False
            if not accumulates and not loop.optimizers:
                return False
            if not loop.backwards:
                self._training_begins()
            loop.backward(now_ns())
            self._in_backward = True
            return True
        except Exception as error:
            self.broke(error)
            return False

    def backward_ends(self) -> None:
        self._in_backward = False
        self.loop.backward_done(now_ns())

    def _training_begins(self) -> None:
        if self._models_since:
            self.loop.ready = self.loop.ready or self._models_until
        self._tell_models()
        self._open(works=True)
        for undo in self.let_go:
            undo()
        self.let_go.clear()

    def gradients_zeroed(self) -> None:
        """Gradients are about to be zeroed."""
        self.loop.cleared = True
        if self.off or self.loop.updates:
            return
        try:
            if _me() == self._thread or self._takes(_me()):
                if self._models_since and not self.loop.begin:
                    self.loop.ready = self.loop.ready or self._models_until
                self.loop.zero_grad(now_ns())
        except Exception as error:
            self.broke(error)

    def update_begins(self, optimizer: Any) -> None:
        """An optimizer's update begins, perhaps inside another one's."""
        if self.off:
            return
        try:
            if _me() != self._thread and not self._takes(_me()):
                return
            self._unsettle()
            key, updates = id(optimizer), self._updates
            if updates:
                if key in updates:  # it was left by an exception
                    del updates[updates.index(key) :]
                else:
                    self._nested = True
            updates.append(key)
        except Exception as error:
            self.broke(error)

    def update_ends(self, optimizer: Any, of: Any = None) -> None:
        """An update is over; `of` is the optimizer that it was made for, if another one."""
        if self.off:
            return
        try:
            if _me() != self._thread:
                return
            self._unsettle()
            updates, key = self._updates, id(optimizer)
            if updates:
                if updates[-1] == key:
                    updates.pop()
                elif key in updates:
                    del updates[updates.index(key) :]
            if not updates:
                loop = self.loop
                if loop.index < 0:
                    self._open(works=True)
                    self._optimizer = weakref.ref(of or optimizer)
                if self.saves.soon >= 0:
                    self.saves.flush()
                loop.updated(of or optimizer, now_ns())
                if self._grad_watched and loop.steps > _LEARNED and loop.evaluates_openly():
                    self.watch_grad(False)
                if loop.alike == ALIKE:
                    self._settle(optimizer)
        except Exception as error:
            self.broke(error)

    def _settle(self, leader: Any) -> None:
        """Take out the hooks that the loop can spare, if it is of the kind that can."""
        loop = self.loop
        loop.alike = 0
        if (
            loop.optimizers > 1
            or self._nested
            or self._grad_watched
            or loop.typical > LONG_NS // 2
            or self.pen.says_steps
        ):
            return
        self.settled.settle(leader, loop.begin, loop.index, self.pen.step, loop.fed >= ALIKE)
        for switch in self.switches:
            switch(False)

    def _flush(self) -> None:
        """A span is about to be told: the steps before it come first."""
        if _me() == self._thread:
            self.settled.flush()

    def _unsettle(self) -> None:
        """Something is not as usual: put all hooks back, and let the loop go on from here."""
        settled = self.settled
        if settled.is_on:
            settled.flush()
            self.loop.go_on(*settled.under_way(), settled.has_worked())
            settled.unsettle()
            for switch in self.switches:
                switch(True)

    @_safely
    def _not_as_usual(self) -> None:
        """What a settled loop's own hooks have noticed."""
        self._unsettle()

    @_safely
    def eval_mode(self, module: Any) -> None:
        """A module that was in training mode is put into eval mode."""
        if _me() == self._thread or self._takes(_me()):
            self._unsettle()
            known = weakref.ref(module)
            self.watch_grad(True)
            self.loop.eval_mode(now_ns(), lambda: bool(getattr(known(), "training", False)))

    def watch_grad(self, on: bool) -> None:
        """Watch when gradients are off; in a loop that has settled, only while it evaluates."""
        if on != self._grad_watched:
            self._grad_watched = on
            self._grad_off = 0
            self.grad_modes(on)

    def grad_off_begins(self) -> None:
        """Gradients are turned off."""
        if not self.off and _me() == self._thread:
            self._grad_off += 1
            if self._grad_off == 1:
                self._grad_off_since = 0 if self.loop.worked else now_ns()

    def grad_off_ends(self) -> None:
        if self.off or _me() != self._thread:
            return
        if not self._grad_off:  # since before it was watched
            self.loop.grad_off(0, now_ns())
            return
        self._grad_off -= 1
        if not self._grad_off and self._grad_off_since and not self._updates:
            self.loop.grad_off(self._grad_off_since, now_ns())

    # Checkpoints -----------------------------------------------------------------------------

    @_safely
    def save_begins(self) -> Any:
        """Something is saved: a span that is open, or None where it does not count."""
        if _me() != self._thread or not self.loop.steps:
            return None
        self._unsettle()
        return self.saves.begins()

    @_safely
    def save_ends(self, span: Any, saved: Any, target: Any) -> None:
        """It is saved; `saved` is None if that failed or is not over yet."""
        if span is not None:
            self.loop.interrupted = True
            self.saves.ends(span, saved, target, self.loop.index - 1)

    @_safely
    def save_later(self, upload: Any, target: Any) -> None:
        """A save goes on in the background; `upload` is its future."""
        safe = self.saves.later(target, self.loop.index - 1)
        upload.add_done_callback(lambda done: None if done.exception() else safe())

    def trained_elements(self) -> int:
        """How many numbers the optimizer updates; 0 if that is not known."""
        optimizer = self._optimizer() if self._optimizer is not None else None
        groups = getattr(optimizer, "param_groups", [])
        return sum(p.numel() for group in groups for p in group["params"])

    @_safely
    def load_ends(self, loaded: Any, source: Any, t0: int) -> None:
        """Something was loaded."""
        if self._before_training() and self.saves.loaded(loaded, source, t0, now_ns()):
            self._restored()

    @_safely
    def state_ends(self, t0: int, optimizer: Any) -> None:
        """State was put into this optimizer, or (None) into a model."""
        if self._before_training():
            if optimizer is not None:
                self.saves.optimizer_taken(optimizer)
            if self.saves.state_taken(t0, now_ns(), optimizer is not None):
                self._restored()

    def _before_training(self) -> bool:
        return not self.loop.backwards and _me() == (self._thread or _me())

    def _restored(self) -> None:
        self._tell_models()
        self.loop.start_again(now_ns())
        if self.loop.optimizers:
            self._open()

    def _first_index(self, optimizer: Any) -> int:
        return self.saves.first_index(optimizer)


def _has_compiled() -> bool:
    """Whether torch.compile has compiled anything here."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"]["ok"])


watcher = Watcher()
