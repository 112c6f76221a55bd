"""An unmodified script compiles while its loader fetches the first batch, from its restart on.

    attempt 0   model(x), the first call ──► what x was like, autocast    (in the run's folder)
    attempt 1   iter(loader) ─┬ first batch ┄┄┄┄┄┄┄┄┄┄┄┄ │ model(x): nothing left to compile
                              └ compile on a made-up x ─ │

For models by `torch.compile(module)`; aboard by `ett run --warm-up`. It begins once the loader has
its workers, and the first call waits for it: see fast_batch for what it leaves alone.
"""

import functools
import json
import logging
import os
import threading
import weakref
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

from torchett.record.boarding import when_imported
from torchett.startup.fast_batch import WarmUp, warm_up
from torchett.startup.shapes import remember_shapes, synthetic_like
from torchett.store import write_whole

log = logging.getLogger("torchett")

_MOST = 8  # models of a script


def board() -> None:
    """Watch for compiled models and loaders, in a rank that keeps a record."""
    if "ETT_RUN" in os.environ:
        folder = Path(os.environ["ETT_RUN"], "first-calls")
        calls = FirstCalls(folder, int(os.environ.get("RANK", "0")))
        when_imported("torch._dynamo.eval_frame", calls.watch_models)
        when_imported("torch.utils.data.dataloader", calls.watch_loaders)


class FirstCalls:
    """The compiled models of this process that have not been called yet, and their warm-ups."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._waiting: dict[int, tuple[int, Any]] = {}  # id → number, weak reference
        self._warm: dict[int, WarmUp] = {}
        self._made = 0
        self._begun = self._copies = False

    def watch_models(self, eval_frame: ModuleType) -> None:
        """See models made, and called for the first time."""
        kind = eval_frame.OptimizedModule
        make, call = kind.__init__, kind.__call__

        @functools.wraps(make)
        def made(model: Any, *args: Any, **kwargs: Any) -> None:
            make(model, *args, **kwargs)
            if self._made < _MOST and not self._copies:
                self._waiting[id(model)] = (self._made, weakref.ref(model))
                self._made += 1

        @functools.wraps(call)
        def called(model: Any, *args: Any, **kwargs: Any) -> Any:
            if id(model) in self._waiting:
                self._first_call(model, args, kwargs)
            return call(model, *args, **kwargs)

        kind.__init__, kind.__call__ = made, called

    def watch_loaders(self, dataloader: ModuleType) -> None:
        """See the first loader begin: its workers are there when `__iter__` returns."""
        begin = dataloader.DataLoader.__iter__

        @functools.wraps(begin)
        def begun(loader: Any) -> Any:
            batches = begin(loader)
            if not self._begun and threading.current_thread() is threading.main_thread():
                self._warm_up()
            return batches

        dataloader.DataLoader.__iter__ = begun

    def _warm_up(self) -> None:
        """Begin to compile the models whose first call is remembered."""
        for number, reference in list(self._waiting.values()):
            model, path = reference(), self._path(number)
            if model is None or not path.exists():
                continue
            self._begun = self._copies = True
            try:
                told = json.loads(path.read_bytes())
                if _fits(model, told):
                    loss = functools.partial(_loss, told["autocast"])
                    batch = functools.partial(synthetic_like, told["call"])
                    self._warm[number] = warm_up(model, loss, fast_batch=batch, meet=False)
            except Exception as error:
                log.warning("torchett: no warm-up: %s: %s", type(error).__name__, error)
            self._copies = False

    def _first_call(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let the warm-up end; remember what a training step calls the model with."""
        import torch

        if not (model.training and torch.is_grad_enabled()):
            return
        number, reference = self._waiting.pop(id(model))
        if reference() is not model:  # another that is gone had its id
            return
        try:
            if number in self._warm:
                self._warm.pop(number).join()
            told = {"call": remember_shapes({"args": args, "kwargs": kwargs}), **_around(torch)}
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(number), json.dumps(told).encode(), durable=False)
        except Exception as error:
            log.debug("torchett: a first call is not remembered: %s", error)

    def _path(self, number: int) -> Path:
        return self._folder / f"rank-{self._rank}-model-{number}.json"


def _around(torch: ModuleType) -> dict[str, Any]:
    """What compiled code is guarded by beside its arguments."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    names = {kind: str(torch.get_autocast_dtype(kind)).removeprefix("torch.") for kind in kinds}
    return {"autocast": names}


def _fits(model: Any, told: dict[str, Any]) -> bool:
    """Whether the model is where it was when it was called: not, say, still on its way there."""
    devices = {parameter.device.type for parameter in model.parameters()}
    return model.training and devices <= set(_devices(told["call"]))


def _devices(spec: Any) -> list[str]:
    if isinstance(spec, dict):
        found = [spec["device"].partition(":")[0]] if "device" in spec and "shape" in spec else []
        return found + [name for part in spec.values() for name in _devices(part)]
    return [name for part in spec for name in _devices(part)] if isinstance(spec, list) else []


def _loss(autocast: dict[str, str], model: Any, call: dict[str, Any]) -> Any:
    """A number that depends on all that the model returns."""
    import torch
    from torch.utils._pytree import tree_leaves

    with ExitStack() as stack:
        for kind, name in autocast.items():
            stack.enter_context(torch.autocast(kind, dtype=getattr(torch, name)))
        result = model(*call["args"], **call["kwargs"])
    found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return sum(leaf.float().sum() for leaf in found if leaf.requires_grad)
