"""Compiles the model on a synthetic batch while the loader still waits for the first real one.

    without    │ first batch ┄┄┄┄┄┄┄┄ │ compile forward, backward │ step 0
    with       │ first batch ┄┄┄┄┄┄┄┄ │ step 0
               │ compile on a fast one ─── │                        hidden, in the background

    batches = iter(loader)            # first: a lock that a thread holds is never free in a fork
    with ett.warm_up(model, loss, fast_batch=ett.synthetic_like(shapes)):
        first = next(batches)         # leaving the block waits for the compile

Forward and backward run on a *shadow* of the model: the same modules and code, parameters that
share the originals' memory but have separate gradients, and copies of the buffers. Compiled code
belongs to the classes, so the original's first step uses it. The original itself is never changed.
A step before the end of the compile would compile a second time: call `join()` first. A loss with
side effects is not run (see dry_run).

Random numbers. A loss that draws from a generator of the CPU (dropout on a CPU) is not compiled
here: the log has one line, and the first step compiles as usual. torch.compile saves the
generators when it begins and restores them at its end. So numbers that the script draws between
`warm_up()` and `join()` would be drawn again: seed and draw before or after. States that a
`Checkpointer` restores meanwhile are restored again at the end.
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

from torchett.levers.startup.first_compile.compile_tools import start_compile_tools
from torchett.levers.startup.first_compile.dry_run import dry_run
from torchett.levers.startup.first_compile.shapes import map_tensors
from torchett.levers.startup.plan.surroundings import Surroundings, generators, restore
from torchett.record.api import stage
from torchett.record.process.joined_threads import begin_beside, compiles_beside

T = TypeVar("T")
log = logging.getLogger("torchett")
_turn = threading.Lock()  # a dry run switches compiling off for all threads


def warm_up(
    model: Any,
    loss: Callable[[Any, Any], Any],
    *,
    fast_batch: Any,
    dynamic: Collection[int] = (),
    meet: bool = True,
) -> "WarmUp":
    """Start to compile `loss(model, batch)` and its backward on a thread.

    `loss` is the computation of the training step, with its autocast. `model` is the compiled
    model of the step (`torch.compile(model)`, `model.compile()`, with DDP inside or outside).
    `fast_batch` is a batch for `loss`, or a function that makes one, called on the thread. With
    `dynamic={0}` the first dimension of every tensor in it may differ later. If there is a process
    group, `join()` ends with a barrier, unless `meet=False`.

    An error is logged, stored as `.error` and never raised: the first step then compiles as usual.
    """
    return WarmUp(model, loss, fast_batch, tuple(dynamic), meet)


class WarmUp:
    """A running compile. As a context manager it joins at the end of the body."""

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
        """Wait until the compile is over; later calls return at once."""
        if self._joined:
            return
        self._joined = True
        with stage("pt2_compile"):
            if self._thread is not None:
                self._thread.join()
            self._shadow = self._fast_batch = None
            self._own = []
            if self._meet:
                self._guarded(_barrier)

    def then(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches; the first one is fetched at once and yielded after the compile.

        for batch in ett.steps(warm.then(batches)): …
        """
        workers: int = getattr(batches, "num_workers", 0)
        if workers and self._thread is not None and self._thread.is_alive():
            log.warning(
                "torchett: a loader forks %d workers while a thread compiles, which may hang:"
                " call iter(loader) before the warm-up",
                workers,
            )
        for batch in batches:
            self.join()
            yield batch

    def __enter__(self) -> "WarmUp":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:  # an error of the script is raised at once
            self.join()

    def _work(self) -> None:
        """The main function of the thread."""
        with stage("pt2_compile", background=True):
            self._guarded(self._compile)

    def _compile(self) -> None:
        start_compile_tools()
        made = self._fast_batch() if callable(self._fast_batch) else self._fast_batch
        batch = map_tensors(lambda tensor: _marked(tensor, self._dynamic), made)
        if callable(self._fast_batch):
            map_tensors(self._own.append, batch)  # not the script's: forward may write to it
        with _turn, compiles_beside():
            before = generators()
            draws_on_gpu = dry_run(self._shadow, self._loss, batch, self._own)
            try:
                self._loss(self._shadow, batch).backward()
            finally:
                if draws_on_gpu and "cuda" in before:
                    restore({"cuda": before["cuda"]})

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

    Forward and backward of the copy do not change the original's weights, gradients and buffers,
    and do not call its hooks on gradients. Copies of DDP modules do not communicate.
    """
    return _shadow(model)[0]


def _shadow(model: Any) -> tuple[Any, list[Any]]:
    """The copy, and the tensors and generators that it does not share with the original."""
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
            memo[id(context)] = context  # a copied context would not find the compiled code
    made = copy.deepcopy(model, memo)
    for original, module in zip(model.modules(), made.modules(), strict=True):
        if (compiled := getattr(original, "_compiled_call_impl", None)) is not None:
            # model.compile(): deepcopy drops it, so compile the copy in the same way.
            context = inspect.getclosurevars(compiled).nonlocals["self"]
            module._compiled_call_impl = context(module._call_impl)
        if isinstance(module, DistributedDataParallel):
            module.require_backward_grad_sync = False
            module.require_forward_param_sync = False
    kinds = (torch.Tensor, torch.Generator)
    return made, [v for k, v in memo.items() if isinstance(v, kinds) and k not in shared]


def _refuse_functions(module: Any) -> None:
    """ValueError if a hook, or a forward set on the module itself, is a function with state.

    A copy of the module calls the same function. State from the fast batch would still be there in
    the first step, and a module in its closure would be the original.
    """
    known = [vars(module).get(f"_{kind}hooks") for kind in _HOOKS]
    hooks = [hook for one in known if one for hook in one.values()]
    if "dynamo_ctx" not in vars(module):  # the copy gets a new forward of torch.compile
        hooks.append(vars(module).get("forward"))
    for hook in hooks:
        if _has_state(hook):
            name = getattr(hook, "__qualname__", hook)
            raise ValueError(f"a copy of {type(module).__name__} would share its function {name}")


_HOOKS = ("forward_", "forward_pre_", "backward_", "backward_pre_")


def _has_state(function: Any) -> bool:
    """Whether it is a function that can change a variable or an object outside itself."""
    while isinstance(function, functools.partial):
        function = function.func
    module = str(getattr(function, "__module__", ""))
    if not isinstance(function, FunctionType) or module.partition(".")[0] == "torch":
        return False
    if any(one.opname in ("STORE_GLOBAL", "STORE_DEREF") for one in dis.get_instructions(function)):
        return True
    closure = inspect.getclosurevars(function)
    held = [*closure.nonlocals.values(), *closure.globals.values()]
    return any(_has_state(one) or not _is_plain(one) for one in held)


def _is_plain(value: Any) -> bool:
    if isinstance(value, BuiltinFunctionType):
        value = value.__self__  # the list of `list.append`
    return value is None or isinstance(value, str | int | float | ModuleType | FunctionType | type)


def _marked(tensor: Any, dims: tuple[int, ...]) -> Any:
    """An alias of the tensor with these dimensions marked dynamic; the original stays unmarked."""
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
