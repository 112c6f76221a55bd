"""Where a Lightning Trainer is: its loops, its callbacks, and its place in the data.

    ─ batch 6 ─ validation ─┤ batch 7 is fetched ├─ on_train_batch_start: what is captured here …
    fit_loop.run ─ a fresh iterator ─ 7 batches are skipped ─ on_train_batch_start: … is set here

Lightning's own restart does not go back to the same place in the data of a loader without a
`state_dict`. Generators are set as they were when the epoch's iterator was made, so that it draws
the same order; then the batches that were trained are fetched and dropped.
"""

from collections import deque
from typing import Any

from torchett.levers.checkpoint.state.per_rank import RandomState


class Progress:
    """A Stateful: what it loads has its effect in steps, as the Trainer's start goes on."""

    def __init__(self) -> None:
        self._trainer: Any = None
        self._loaded: dict[str, Any] | None = None
        self._random = RandomState()
        self._drawn_from: dict[str, Any] = {}  # generators when the epoch's iterator was made
        self._is_first = True  # that iterator was made by the start of the fit loop
        self._loaders: list[Any] = []
        self.in_epoch = False

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        loop = trainer.fit_loop  # its own state_dict asks the loaders, and that may draw
        loops = {"state_dict": {}, "epoch_progress": loop.epoch_progress.state_dict()}
        loop.epoch_loop.state_dict(loops, "epoch_loop.")
        return {
            "loops": loops,
            "in_epoch": self.in_epoch,
            "is_first": self._is_first,
            "drawn_from": self._drawn_from,
            "batches": loop.epoch_loop.batch_progress.current.completed,
            "loaders": self._loaders,
            "callbacks": {one.state_key: one.state_dict() for one in trainer.callbacks},
            "datamodule": trainer.datamodule.state_dict() if trainer.datamodule else {},
            "precision": trainer.precision_plugin.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = state

    def begins(self, trainer: Any) -> None:
        """`on_fit_start` of a run that does not resume."""
        self._trainer = trainer
        self._drawn_from = self._random.state_dict()

    def resumes(self, trainer: Any) -> None:
        """`on_fit_start`: put the loops, callbacks and plugins where they were."""
        self._trainer, state = trainer, self._loaded
        assert state is not None
        trainer.fit_loop.load_state_dict(self._to_restart_from(state))
        for callback in trainer.callbacks:
            if state["callbacks"].get(callback.state_key):
                callback.load_state_dict(state["callbacks"][callback.state_key])
        if trainer.datamodule and state["datamodule"]:
            trainer.datamodule.load_state_dict(state["datamodule"])
        if state["precision"]:
            trainer.precision_plugin.load_state_dict(state["precision"])
        self.in_epoch, self._is_first = state["in_epoch"], state["is_first"]
        self._drawn_from = state["drawn_from"]
        if self._is_first:
            self._random.load_state_dict(self._drawn_from)  # the loader and its iterator come next

    def _to_restart_from(self, state: dict[str, Any]) -> dict[str, Any]:
        """The loops' state as their restart understands it."""
        loops = dict(state["loops"])
        batches = dict(loops["epoch_loop.batch_progress"])
        batches["is_last_batch"] = False  # it may be, and is still to be trained
        loops["epoch_loop.batch_progress"] = batches
        if state["in_epoch"] and state["batches"] and state["loaders"]:
            loops["state_dict"] = {**loops["state_dict"], "combined_loader": state["loaders"]}
        return loops

    def seeks(self) -> None:
        """`on_train_start`: go to the batch that comes next."""
        state, loop = self._loaded, self._trainer.fit_loop
        if state is None or not state["in_epoch"]:
            return
        fetcher, batches = loop._data_fetcher, state["batches"]
        if batches and state["loaders"]:
            return  # Lightning has put these loaders where they were
        if not self._is_first:
            loaders = loop._combined_loader.flattened
            for loader, known in zip(loaders, state["loaders"], strict=False):
                loader.load_state_dict(known)  # of the epoch before, which ends here …
                deque(loader, maxlen=0)  # … so that the next one is another order
            for loader in loaders:
                set_epoch(loader, loop.epoch_progress.current.processed)
            self._random.load_state_dict(self._drawn_from)
            iter(fetcher)
        if not batches:  # a whole epoch: else a validation loader draws from the generators first
            loop.epoch_loop.restarting = False
        for _ in range(batches):
            next(fetcher)
        fetcher.fetched -= batches  # Lightning adds them

    def epoch_begins(self) -> None:
        """`on_train_epoch_start`: the iterator of the first epoch is made already."""
        self.in_epoch = True
        if self._trainer.current_epoch > 0:
            self._is_first = False
            self._drawn_from = self._random.state_dict()

    def batch_ends(self) -> None:
        """`on_train_batch_end`: a loader's state is of now; the next batch is fetched later."""
        loaders = self._trainer.fit_loop._combined_loader.flattened
        if all(_is_stateful(loader) for loader in loaders):
            self._loaders = [loader.state_dict() for loader in loaders]

    def is_there(self) -> bool:
        """`on_train_batch_start`: whether this is the first of a resumed run; then all is exact."""
        state, self._loaded = self._loaded, None
        if state is not None and state["in_epoch"]:
            _set_exactly(self._trainer.fit_loop, state["loops"])
        return state is not None


def set_epoch(loader: Any, epoch: int) -> None:
    """As Lightning does before each epoch: samplers order their data by it."""
    batches = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), getattr(batches, "sampler", None)):
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)


def _is_stateful(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _set_exactly(loop: Any, state: dict[str, Any], prefix: str = "") -> None:
    """Counters of a loop and of the loops in it, without making it restart."""
    loop._load_from_state_dict(state, prefix)
    for name, inner in vars(loop).items():
        if hasattr(inner, "_load_from_state_dict") and hasattr(inner, "restarting"):
            _set_exactly(inner, state, f"{prefix}{name}.")
