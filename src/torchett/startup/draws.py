"""Which generators a loss draws from: found out by a rehearsal, and known to the next attempt.

attempt 0   rehearsal: the loss once, eagerly ──► {"cuda"}       (in the run's folder)
attempt 1   the same model, code and shapes ────► {"cuda"}, at once
"""

import functools
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchett.startup.shapes import map_tensors
from torchett.store import write_whole

log = logging.getLogger("torchett")


def draws(model: Any, loss: Callable[[Any, Any], Any], batch: Any) -> set[str]:
    """The kinds of device whose generators `loss(model, batch)` draws from."""
    kept = _kept(model, loss, batch)
    if kept is not None and kept.exists():
        return set(json.loads(kept.read_bytes()))
    drawn = rehearse(model, loss, batch)
    if kept is not None:
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, json.dumps(sorted(drawn)).encode(), durable=False)
        except OSError as error:
            log.debug("torchett: draws are not kept: %s", error)
    return drawn


def _kept(model: Any, loss: Callable[[Any, Any], Any], batch: Any) -> Path | None:
    """The file for this model, loss and batch in the run's folder; None where there is no run."""
    if "ETT_RUN" not in os.environ:
        return None
    try:
        like: list[Any] = [*_parts(model), *_sources(model, loss)]
        map_tensors(lambda x: like.append([*x.shape, str(x.dtype), str(x.device)]), batch)
        name = hashlib.sha256(json.dumps(like).encode()).hexdigest()[:16]
    except Exception as error:  # a loss without a name, a file that is gone
        log.debug("torchett: draws are not remembered: %s", error)
        return None
    return Path(os.environ["ETT_RUN"], "draws", f"{name}.json")


def _parts(model: Any) -> Iterator[Any]:
    """The modules and their settings: what `repr` tells, which prints some weights as well."""
    for name, module in model.named_modules():
        settings = {key: value for key, value in vars(module).items() if _is_setting(value)}
        yield [name, type(module).__qualname__, settings]


def _is_setting(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _sources(model: Any, loss: Any) -> Iterator[Any]:
    """What would tell that the code has been changed: its files, by size and time."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    yield loss.__qualname__
    names = {type(module).__module__ for module in model.modules()} | {loss.__module__}
    for name in sorted(names):
        path = getattr(sys.modules.get(name), "__file__", None)
        if path is not None:
            told = os.stat(path)
            yield [path, told.st_size, told.st_mtime_ns]


def rehearse(model: Any, loss: Callable[[Any, Any], Any], batch: Any) -> set[str]:
    """The same, by trying; on the CPU nothing is drawn.

    Computes the loss once, eagerly: code that torch.compile meets under a dispatch mode would
    never be compiled again, so compiling is off meanwhile (for all threads: it is a short while).
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    drawn: set[str] = set()

    class Drawing(Exception):  # noqa: N818  (a signal, not an error)
        pass

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if torch.Tag.nondeterministic_seeded in op.tags:
                drawn.update(_drawn_by(op, args, kwargs))
                if "cpu" in drawn:
                    raise Drawing
            return op(*args, **kwargs)

    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), Watch():
            loss(model, batch)
    except Drawing:
        pass
    return drawn


def _drawn_by(op: Any, args: Any, kwargs: Any) -> set[str]:
    """The kind of device whose own generator this call of a random operator draws from."""
    import torch

    given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
    if given.get("generator") is not None or given.get("dropout_p") == 0.0:
        return set()
    tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
    device = tensors[0].device if tensors else torch.device(given.get("device") or "cpu")
    return {device.type}
