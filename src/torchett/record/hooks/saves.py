"""Checkpoints that a script saves and loads: what they cost, and which step they hold.

    save      ├ checkpoint_blocked ┤ durable, if it holds as much as the optimizer updates
    load      ├ checkpoint_restore ┤ if state is then put into a model or an optimizer

The first step after a load has the number after the one that was saved. That is known, in this
order, from the run folder (what was saved where, by an earlier attempt), from the optimizer's own
count of updates, and from a counter in what was loaded.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torchett.record import api
from torchett.record.hooks.span_writer import SpanWriter
from torchett.record.recorder import Recorder

log = logging.getLogger("torchett")
SEEN = "saves.jsonl"
_COUNTERS = ("iter_num", "global_step", "global_steps", "iteration", "num_updates", "step")
_MOST_NODES = 100_000
_MOST_LOADS = 32

Ends = Callable[[], None]


class SaveDetector:
    """Saves and loads of one process."""

    def __init__(self, writer: SpanWriter, trained_elements: Callable[[], int]) -> None:
        self._writer, self._trained_elements = writer, trained_elements
        self._saving = False
        self.soon = -1  # a step whose save is complete once the loop goes on
        self._loads: list[tuple[int, int, Any, Any]] = []  # begin, end, source, counter
        self._taken: list[tuple[Any, Any]] = []  # what was restored: source, counter
        self._counts_updates = False  # an optimizer's state was restored
        self._done_before: int | None = None  # updates of an optimizer that was restored
        self.resumed_unknown = False

    def begins(self) -> Ends | None:
        """A save begins; None if it is part of another one."""
        recorder = self._writer.recorder
        if self._saving or not isinstance(recorder, Recorder):
            return None
        self.flush()
        self._saving = True
        if self._writer.says("checkpoint_blocked"):
            return _nothing
        return recorder.open_span("checkpoint_blocked")

    def ends(self, span: Ends, saved: Any, target: Any, step: int) -> None:
        """The save is over; `step` is the last one that was finished."""
        self._saving = False
        span()
        if saved is None or step < 0 or not self._is_whole(saved):
            return
        path = _path(target)
        if path is None:  # into memory, or a file still open: safe once the loop goes on
            if self._trained_elements():  # else it may be anything: a part of a state, a message
                self.soon = step
        else:
            self._writer.durable(step)
            self._remember(path, step)

    def later(self, target: Any, step: int) -> Ends:
        """What to call once a save in the background is safe."""

        def safe() -> None:
            self._writer.durable(step)
            path = _path(target)
            if path is not None:
                self._remember(path, step)

        return safe

    def flush(self) -> None:
        """The loop went on (or ends): what was saved before is safe."""
        if self.soon >= 0:
            self._writer.durable(self.soon)
            self.soon = -1

    def loaded(self, what: Any, source: Any, t0: int, t1: int) -> bool:
        """Note a load; whether it restored something by itself."""
        if len(self._loads) < _MOST_LOADS:
            self._loads.append((t0, t1, _path(source), _counter(what)))
        module = getattr(sys.modules.get("torch.nn"), "Module", None)
        if what is None or (module is not None and isinstance(what, module)):
            return self.state_taken(t1, t1, what is None)
        return False

    def optimizer_taken(self, optimizer: Any) -> None:
        """Read how many updates a restored optimizer has done.

        Now the number may be asked for even where a GPU keeps it: loading has waited for it, too.
        """
        self._done_before = _updates_done(optimizer, ask=True)

    def state_taken(self, t0: int, t1: int, of_optimizer: bool) -> bool:
        """State went into a model or an optimizer; whether it had been loaded before."""
        self._counts_updates = self._counts_updates or of_optimizer
        if not self._loads and not self._taken:
            return False
        for begin, end, source, counter in self._loads:
            self._writer.span("checkpoint_restore", begin, end)
            self._taken.append((source, counter))
        self._loads.clear()
        self._writer.span("checkpoint_restore", t0, t1)
        return True

    def first_index(self, optimizer: Any = None) -> int:
        """The number of the first step of this process."""
        if not self._taken and not self._counts_updates:
            return 0
        known = self._seen_before()
        for source, _ in reversed(self._taken):
            if source in known:
                return known[source] + 1
        done = _updates_done(optimizer) if self._counts_updates else None
        if done is not None:
            return max(done - 1, 0)
        if self._done_before is not None:
            return self._done_before
        for _, counter in reversed(self._taken):
            if counter is not None:
                return int(counter)
        self.resumed_unknown = bool(self._taken)
        return 0

    def _is_whole(self, saved: Any) -> bool:
        """Whether this holds a model: at least half of what the optimizer updates, if known."""
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        if isinstance(saved, torch.nn.Module):
            return True
        elements, nodes, todo = 0, 0, [saved]
        while todo and nodes < _MOST_NODES:
            nodes += 1
            node = todo.pop()
            if isinstance(node, torch.Tensor):
                elements += node.numel()
            elif isinstance(node, Mapping):
                todo += node.values()
            elif isinstance(node, (list, tuple)):
                todo += node
            elif isinstance(node, torch.nn.Module):
                return True
        return elements > 0 and elements >= self._trained_elements() / 2

    def _remember(self, path: str, step: int) -> None:
        """Write down in the run folder which step a checkpoint holds, for later attempts."""
        if api._run is None:
            return
        line = json.dumps({"path": path, "step": step}) + "\n"
        try:
            with open(os.path.join(api._run, SEEN), "a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            log.debug("torchett: not written down which step %s holds: %s", path, error)

    def _seen_before(self) -> dict[Any, int]:
        found: dict[Any, int] = {}
        if api._run is None:
            return found
        try:
            with open(os.path.join(api._run, SEEN), encoding="utf-8") as file:
                for line in file:
                    try:
                        fact = json.loads(line)
                        found[fact["path"]] = int(fact["step"])
                    except (ValueError, KeyError, TypeError):
                        continue  # a line that a killed rank left unfinished
        except OSError:
            pass
        return found


def _nothing() -> None:
    pass


def _path(target: Any) -> str | None:
    """The file or folder that is meant; None if it is neither."""
    if isinstance(target, (str, os.PathLike)):
        return os.path.realpath(os.fsdecode(target))
    name = getattr(target, "name", None)
    return os.path.realpath(name) if isinstance(name, str) and os.path.exists(name) else None


def _counter(what: Any) -> int | None:
    """A count of steps that is kept beside the state, under one of its usual names."""
    if isinstance(what, dict):
        for name in _COUNTERS:
            value = what.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
    return None


def _updates_done(optimizer: Any, ask: bool = False) -> int | None:
    """How many updates an optimizer has done, if it counts them where no device must be asked.

    With `ask` a device is asked as well.
    """
    state = getattr(optimizer, "state", None)
    if not isinstance(state, Mapping):
        return None
    for values in state.values():
        count: Any = values.get("step") if isinstance(values, Mapping) else None
        if isinstance(count, (int, float)):
            return int(count)
        if ask and hasattr(count, "item"):
            return int(count.item())
        if getattr(getattr(count, "device", None), "type", None) == "cpu":
            return int(count)
        if count is not None:
            return None
    return None


def install_plugin() -> None:
    """Watch saves and loads wherever a record is kept: a restart goes on at the step it loaded."""
    from torchett.record.hooks import hook, torch_hooks
    from torchett.record.hooks.watcher import watcher

    if watcher.watch(steps=False):
        hook(torch_hooks.SAVES)
