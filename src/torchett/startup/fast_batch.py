"""The compile begins on a fast batch, while the loader still waits for the first real one.

    without    │ first batch ┄┄┄┄┄┄┄┄ │ compile forward, backward │ step 0
    with       │ first batch ┄┄┄┄┄┄┄┄ │ step 0
               │ compile on a fast one ─── │                        hidden, in the background

    batches = iter(loader)            # first: a lock that a thread holds stays shut in a fork
    with ett.warm_up(model, loss, fast_batch=ett.synthetic_like(shapes)):
        first = next(batches)         # leaving the block waits for the compile

What runs forward and backward is a *shadow* of the model: the same modules and code, parameters
that share the originals' memory and have gradients of their own, buffers that are copies. The
code that is compiled belongs to the classes, so it is what the original's first step needs, and
the original itself is never touched. A step that comes before the compile is over would compile
once more: `join()` first. A loss that would leave a trace all the same is not run (see draws).

Random numbers. If forward draws from the CPU's generator (dropout on a CPU), a thread that does
so would move the numbers under the script's feet. The thread finds out by a rehearsal without
compiling that stops before the first such draw; then nothing overlaps and `join()` compiles,
with the generators put back. Draws on a GPU are put back when the thread ends: do not draw there
in the meantime.
"""

import copy
import dis
import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeVar

from torchett.record.api import stage
from torchett.record.threads import begin_beside
from torchett.startup.draws import draws, rehearse
from torchett.startup.garbage import rarely_collected
from torchett.startup.shapes import map_tensors
from torchett.startup.surroundings import (
    Surroundings,
    generators,
    kept_random_numbers,
    no_rewinding,
    restore,
)
from torchett.startup.turns import short_turns
from torchett.startup.workshop import fetch_tools

T = TypeVar("T")
log = logging.getLogger("torchett")
_turn = threading.Lock()  # a rehearsal switches compiling off for all threads


def warm_up(
    model: Any,
    loss: Callable[[Any, Any], Any],
    *,
    fast_batch: Any,
    dynamic: Collection[int] = (),
    meet: bool = True,
) -> "WarmUp":
    """A compile that has begun on a thread: of `loss(model, batch)` and its backward.

    `loss` is what the training step computes, autocast and all; `model` is the compiled model as
    the step uses it (`torch.compile(model)`, `model.compile()`, with DDP inside or outside).
    `fast_batch` is a batch as `loss` takes it, or a function that makes one, called on the
    thread. With `dynamic={0}` the first dimension of every tensor in it may differ later.
    Where ranks have formed a group, `join()` lets them meet, unless `meet=False`.

    Trouble is logged, kept as `.error` and never raised: the first step then compiles as ever.
    """
    return WarmUp(model, loss, fast_batch, tuple(dynamic), meet)


class WarmUp:
    """A compile under way. Also a context manager: leaving the body joins."""

    def __init__(
        self,
        model: Any,
        loss: Callable[[Any, Any], Any],
        fast_batch: Any,
        dynamic: tuple[int, ...],
        meet: bool,
    ) -> None:
        self._loss, self._fast_batch, self._dynamic = loss, fast_batch, dynamic
        self._meet = meet
        self._joined = False
        self._shadow: Any = None
        self._own: list[Any] = []
        self._later: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        self.error: Exception | None = None
        if os.environ.get("ETT_DISABLE") == "1":
            self._joined = True
            return
        try:
            self._shadow, self._own = _shadow(model)
        except Exception as error:
            self._failed(error)
            return
        self._thread = begin_beside(Surroundings().call, self._work, name="ett-warm-up")

    def join(self) -> None:
        """Wait until the first step has nothing left to compile; at once from then on."""
        if self._joined:
            return
        self._joined = True
        with stage("pt2_compile"):
            if self._thread is not None:
                self._thread.join()
            if self._later is not None:
                self._guarded(self._later)
            self._later = self._shadow = self._fast_batch = None
            self._own = []
            if self._meet:
                self._guarded(_barrier)

    def then(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches; the first is fetched, and handed out once the compile is over.

        for batch in ett.steps(warm.then(batches)): …
        """
        workers: int = getattr(batches, "num_workers", 0)
        if workers and self._thread is not None and self._thread.is_alive():
            log.warning(
                "torchett: a loader forks %d workers while a thread compiles, which may hang:"
                " begin it before the warm-up, by iter(loader)",
                workers,
            )
        for batch in batches:
            self.join()
            yield batch

    def __enter__(self) -> "WarmUp":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:  # an error of the script's own is not kept waiting
            self.join()

    def _work(self) -> None:
        """What the thread does."""
        with stage("pt2_compile", background=True), short_turns(), rarely_collected():
            self._guarded(self._rehearse_and_run)

    def _rehearse_and_run(self) -> None:
        fetch_tools()
        made = self._fast_batch() if callable(self._fast_batch) else self._fast_batch
        batch = map_tensors(lambda tensor: _marked(tensor, self._dynamic), made)
        if callable(self._fast_batch):
            map_tensors(self._own.append, batch)  # made for us: forward may write to it
        with _turn:
            before = generators()
            with no_rewinding():
                drawn = draws(self._shadow, self._loss, batch, self._own)
                if "cpu" in drawn:
                    self._later = lambda: self._run_kept(batch)
                else:
                    self._run(batch)
            restore({name: before[name] for name in before.keys() & drawn})

    def _run_kept(self, batch: Any) -> None:
        with _turn, kept_random_numbers():
            rehearse(self._shadow, self._loss, batch, self._own, drawing=True)
            self._run(batch)

    def _run(self, batch: Any) -> None:
        self._loss(self._shadow, batch).backward()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.error = error
        log.warning("torchett: the warm-up did not work, the first step compiles: %r", error)


def shadow(model: Any) -> Any:
    """A copy of the model whose parameters share their memory with the original's.

    Forward and backward of the copy leave the original's weights, gradients, buffers and hooks
    on gradients alone; copies of DDP modules do not talk to other ranks.
    """
    return _shadow(model)[0]


def _shadow(model: Any) -> tuple[Any, list[Any]]:
    """The same, and the tensors and generators that are its own."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    for module in model.modules():
        _refuse_functions(module)
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        if type(parameter) is torch.nn.Parameter:
            # .data, not .detach(): a restore may write to the weights while we run.
            twin = torch.nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
            twin.__dict__.update(parameter.__dict__)
            memo[id(parameter)] = twin
    shared = set(memo)
    for module in model.modules():
        if (context := vars(module).get("dynamo_ctx")) is not None:
            memo[id(context)] = context  # code that another backend has compiled is not found
    made = copy.deepcopy(model, memo)
    for original, module in zip(model.modules(), made.modules(), strict=True):
        if (compiled := getattr(original, "_compiled_call_impl", None)) is not None:
            # model.compile(): a copy leaves it behind, so compile the copy the same way.
            context = inspect.getclosurevars(compiled).nonlocals["self"]
            module._compiled_call_impl = context(module._call_impl)
        if isinstance(module, DistributedDataParallel):
            module.require_backward_grad_sync = False
            module.require_forward_param_sync = False
    kinds = (torch.Tensor, torch.Generator)
    return made, [v for k, v in memo.items() if isinstance(v, kinds) and k not in shared]


def _refuse_functions(module: Any) -> None:
    """ValueError if a hook or a forward of the module's own is a function that remembers things.

    A copy of the module calls the same function: what that has noted of the fast batch would be
    there in the first step, and a module it holds would be the original.
    """
    known = [vars(module).get(f"_{kind}hooks") for kind in _HOOKS]
    hooks = [hook for one in known if one for hook in one.values()]
    if "dynamo_ctx" not in vars(module):  # torch.compile's own forward is made anew
        hooks.append(vars(module).get("forward"))
    for hook in hooks:
        if _remembers(hook):
            name = getattr(hook, "__qualname__", hook)
            raise ValueError(f"a copy of {type(module).__name__} would share its function {name}")


_HOOKS = ("forward_", "forward_pre_", "backward_", "backward_pre_")


def _remembers(function: Any) -> bool:
    """Whether it is a function with anything at hand that it could change."""
    while isinstance(function, functools.partial):
        function = function.func
    module = str(getattr(function, "__module__", ""))
    if not isinstance(function, FunctionType) or module.partition(".")[0] == "torch":
        return False
    if any(one.opname in ("STORE_GLOBAL", "STORE_DEREF") for one in dis.get_instructions(function)):
        return True
    around = inspect.getclosurevars(function)
    held = [*around.nonlocals.values(), *around.globals.values()]
    return any(_remembers(one) or not _is_plain(one) for one in held)


def _is_plain(value: Any) -> bool:
    if isinstance(value, BuiltinFunctionType):
        value = value.__self__  # a list, for its append
    return value is None or isinstance(value, str | int | float | ModuleType | FunctionType | type)


def _marked(tensor: Any, dims: tuple[int, ...]) -> Any:
    """The tensor with these dimensions marked dynamic; the caller's own stays unmarked."""
    import torch._dynamo

    if not dims:
        return tensor
    marked = tensor.detach().requires_grad_(tensor.requires_grad)
    for dim in dims:
        if dim < tensor.dim():
            torch._dynamo.maybe_mark_dynamic(marked, dim)
    return marked


def _barrier() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.barrier()
