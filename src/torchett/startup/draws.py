"""Which generators a loss draws from: found out by a rehearsal, and known to the next attempt.

attempt 0   rehearsal: the loss once, eagerly ──► {"cuda"}       (in the run's folder)
attempt 1   the same model, code and shapes ────► {"cuda"}, at once

The rehearsal also refuses a loss that would leave a trace: one that writes to weights in forward
(an embedding's `max_norm`) or to tensors that are not the model's, uses weights of another model,
whose gradients it would leave behind, or talks to other ranks. What forward does beside tensors,
to a counter in a global variable say, nobody sees, and it is done once more.
"""

import functools
import hashlib
import json
import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchett.startup.shapes import map_tensors
from torchett.store import write_whole

log = logging.getLogger("torchett")


def draws(
    model: Any, loss: Callable[[Any, Any], Any], batch: Any, own: Collection[Any] = ()
) -> set[str]:
    """The kinds of device whose generators `loss(model, batch)` draws from."""
    kept = _kept(model, loss, batch)
    if kept is not None and kept.exists():
        return set(json.loads(kept.read_bytes()))
    drawn = rehearse(model, loss, batch, own)
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


def rehearse(
    model: Any,
    loss: Callable[[Any, Any], Any],
    batch: Any,
    own: Collection[Any] = (),
    *,
    drawing: bool = False,
) -> set[str]:
    """The same, by trying; on the CPU nothing is drawn, unless `drawing`.

    What `random` and numpy draw counts as the CPU's.

    Computes the loss once, eagerly: code that torch.compile meets under a dispatch mode would
    never be compiled again, so compiling is off meanwhile (for all threads: it is a short while).
    ValueError before it leaves a trace; on tensors and generators of its `own` it leaves none.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    drawn: set[str] = set()
    memory = _Memory(model, batch, own)

    class Drawing(Exception):  # noqa: N818  (a signal, not an error)
        pass

    def draw(kinds: set[str]) -> None:
        drawn.update(kinds)
        if "cpu" in drawn and not drawing:
            raise Drawing

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
            memory.check(op, given)
            if torch.Tag.nondeterministic_seeded in op.tags:
                draw(_drawn_by(given, own))
            result = op(*args, **kwargs)
            memory.made(result, given)
            return result

    try:
        told = _pythons_told(lambda: draw({"cpu"}))
        with told, torch.no_grad(), torch.compiler.set_stance("force_eager"), Watch():
            loss(model, batch)
    except Drawing:
        pass
    return drawn


@contextmanager
def _pythons_told(draw: Callable[[], None]) -> Iterator[None]:
    """In the body, `draw` is called before this thread draws from `random` or `numpy.random`."""
    here = threading.get_ident()

    def telling(theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def told(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == here:
                draw()
            return theirs(*args, **kwargs)

        return told

    places: list[tuple[Any, Any]] = [(random, getattr(random, "_inst", None))]
    if (numpys := sys.modules.get("numpy.random")) is not None:
        places.append((numpys, getattr(getattr(numpys, "mtrand", None), "_rand", None)))
    found = [
        (module, name, function)
        for module, generator in places
        for name, function in vars(module).items()
        if getattr(function, "__self__", module) is generator and "state" not in name
    ]
    for module, name, function in found:
        setattr(module, name, telling(function))
    try:
        yield
    finally:
        for module, name, function in found:
            setattr(module, name, function)


class _Memory:
    """Whose memory the tensors of a rehearsal lie in: may it be written to, is it known at all?"""

    def __init__(self, model: Any, batch: Any, own: Collection[Any]) -> None:
        self._own = set(map(_place, _tensors(own)))
        self._known = {*map(_place, model.parameters()), *map(_place, model.buffers())} | self._own
        self._known.update(map(_place, _tensors(batch)))

    def check(self, op: Any, given: dict[str, Any]) -> None:
        """Refuse a call that would leave a trace."""
        if op.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
            raise ValueError("the loss talks to other ranks")
        for argument in op._schema.arguments if op._schema.is_mutable else ():
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = _tensors(given.get(argument.name))
                if not all(_place(tensor) in self._own for tensor in written):
                    raise ValueError(f"the loss writes to weights, or beside the model ({op})")
        for tensor in _tensors(given):
            if tensor.requires_grad and tensor.is_leaf and _place(tensor) not in self._known:
                raise ValueError(f"the loss uses weights that are not the model's ({op})")

    def made(self, result: Any, given: dict[str, Any]) -> None:
        """What has come of a call may be written to, unless it is a view of what was given."""
        new = set(map(_place, _tensors(result))) - set(map(_place, _tensors(given)))
        self._own |= new
        self._known |= new


def _tensors(value: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _place(tensor: Any) -> int:
    """Tells tensors apart that share no memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a sparse one has no memory of its own
        return id(tensor)


def _drawn_by(given: dict[str, Any], own: Collection[Any]) -> set[str]:
    """The kind of device whose own generator this call of a random operator draws from."""
    import torch

    if given.get("dropout_p") == 0.0:
        return set()
    if (generator := given.get("generator")) is not None:
        theirs = [one for one in own if isinstance(one, torch.Generator)]
        if any(generator._cdata == one._cdata for one in theirs):
            return set()
        if generator._cdata == torch.default_generator._cdata:
            return {"cpu"}
        raise ValueError("the loss draws from a generator that is not the model's")
    tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
    device = tensors[0].device if tensors else torch.device(given.get("device") or "cpu")
    return {device.type}
