"""Where torch is hooked, part by part, as each is imported. All of it runs eagerly.

Each wrapper calls what it wraps with the same arguments and gives back the same result or error.
"""

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchett.record.clock import now_ns
from torchett.record.hooks.watcher import watcher


def _optimizers(module: ModuleType) -> None:
    from torchett.record.hooks import traced

    before, after, zeroing = traced.make(sys.modules["torch"])
    optimizer = module.Optimizer
    first = module.register_optimizer_step_pre_hook(before).id
    last = module.register_optimizer_step_post_hook(after).id
    _switch(optimizer, "zero_grad", zeroing(optimizer.zero_grad))
    make, take = optimizer.__init__, optimizer.load_state_dict

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        t0 = now_ns()
        watcher.optimizer_begins()
        try:
            make(self, *args, **kwargs)
        finally:
            watcher.optimizer_made(t0)

    def watch_updates(on: bool) -> None:  # in place: the tables may be being gone through
        module._global_optimizer_pre_hooks[first] = before if on else _idle
        module._global_optimizer_post_hooks[last] = after if on else watcher.settled.after_update

    watcher.switches.append(watch_updates)
    optimizer.__init__ = made
    optimizer.load_state_dict = _taking(take, True)


def _idle(optimizer: Any, args: Any, kwargs: Any) -> None:
    """A hook that has nothing to do for the moment."""


def _switch(owner: Any, name: str, hooked: Any) -> None:
    """Hook an attribute so that a settled loop can do without; what others put there stays."""
    plain = vars(owner)[name]

    def switch(on: bool) -> None:
        if vars(owner)[name] is (plain if on else hooked):
            setattr(owner, name, hooked if on else plain)

    switch(True)
    watcher.switches.append(switch)


def _taking(take: Callable[..., Any], of_optimizer: bool) -> Callable[..., Any]:
    @functools.wraps(take)
    def taken(self: Any, *args: Any, **kwargs: Any) -> Any:
        t0 = now_ns()
        result = take(self, *args, **kwargs)
        watcher.state_ends(t0, self if of_optimizer else None)
        return result

    return taken


def _modules(module: ModuleType) -> None:
    from torchett.record.hooks import traced

    base = module.Module
    make, to_eval = base.__init__, base.eval

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        watcher.model_made()
        make(self, *args, **kwargs)

    @functools.wraps(to_eval)
    def evaluating(self: Any) -> Any:
        if self.training:
            watcher.eval_mode(self)
        return to_eval(self)

    def undo() -> None:
        if base.__init__ is made:
            base.__init__ = make

    base.__init__, base.eval = made, evaluating
    _switch(base, "zero_grad", traced.make(sys.modules["torch"])[2](base.zero_grad))
    base.load_state_dict = _taking(base.load_state_dict, False)
    watcher.let_go.append(undo)


def _autograd(module: ModuleType) -> None:
    run = module._engine_run_backward

    @functools.wraps(run)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if not watcher.backward_begins(kwargs.get("accumulate_grad", True)):
            return run(*args, **kwargs)
        try:
            return run(*args, **kwargs)
        finally:
            watcher.backward_ends()

    _switch(module, "_engine_run_backward", backward)
    watcher.settled.count_nodes = module._get_sequence_nr


def _grad_modes(module: ModuleType) -> None:
    switches = [_grad_mode(mode) for mode in (module.no_grad, module.inference_mode)]

    def watch(on: bool) -> None:
        for switch in switches:
            switch(on)

    watcher.grad_modes = watch
    watcher.watch_grad(True)


def _grad_mode(mode: Any) -> Callable[[bool], None]:
    """What hooks a context in which gradients are off, or takes the hook out again."""
    enter, leave = mode.__enter__, mode.__exit__

    @functools.wraps(enter)
    def entered(self: Any) -> Any:
        if getattr(self, "mode", True):
            watcher.grad_off_begins()
        return enter(self)

    @functools.wraps(leave)
    def left(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> Any:
        if getattr(self, "mode", True):
            watcher.grad_off_ends()
        return leave(self, exc_type, exc_value, traceback)

    def switch(on: bool) -> None:
        mode.__enter__, mode.__exit__ = (entered, left) if on else (enter, leave)

    return switch


def _loaders(module: ModuleType) -> None:
    loader, iterator = module.DataLoader, module._BaseDataLoaderIter
    make, begin, following = loader.__init__, loader.__iter__, iterator.__next__
    is_grad_enabled = sys.modules["torch"].is_grad_enabled

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        t0 = now_ns()
        make(self, *args, **kwargs)
        watcher.prepared(t0)

    @functools.wraps(begin)
    def began(self: Any) -> Any:
        t0 = now_ns()
        result = begin(self)
        watcher.iterator_made(t0)
        return result

    def elsewhere(self: Any, t0: int) -> None:
        watcher.fetched(self, t0, is_grad_enabled())

    fetched = watcher.settled.fetching(iterator, is_grad_enabled, elsewhere)
    functools.update_wrapper(fetched, following)
    loader.__init__, loader.__iter__, iterator.__next__ = made, began, fetched


def _scaler(module: ModuleType) -> None:
    step = module.GradScaler.step

    @functools.wraps(step)
    def stepped(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        watcher.update_begins(self)  # an update that is skipped is a step all the same
        result = step(self, optimizer, *args, **kwargs)
        watcher.update_ends(self, optimizer)
        return result

    module.GradScaler.step = stepped


def _serialization(module: ModuleType) -> None:
    save, load = module.save, module.load

    @functools.wraps(save)
    def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        span, done = watcher.save_begins(), None
        try:
            result = save(obj, f, *args, **kwargs)
            done = obj
            return result
        finally:
            watcher.save_ends(span, done, f)

    _replace("save", save, saved, module, "torch")
    _replace("load", load, _loading(load), module, "torch")


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def loaded(f: Any, *args: Any, **kwargs: Any) -> Any:
        t0 = now_ns()
        result = load(f, *args, **kwargs)
        watcher.load_ends(result, f, t0)
        return result

    return loaded


def _safetensors(module: ModuleType) -> None:
    save = module.save_file

    @functools.wraps(save)
    def saved(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        span, done = watcher.save_begins(), None
        try:
            result = save(tensors, filename, *args, **kwargs)
            done = tensors
            return result
        finally:
            watcher.save_ends(span, done, filename)

    vars(module)["save_file"] = saved


def _dcp_saver(module: ModuleType) -> None:
    save, async_save = module.save, module.async_save

    @functools.wraps(save)
    def saved(*args: Any, **kwargs: Any) -> Any:
        span, done = watcher.save_begins(), None
        try:
            result = save(*args, **kwargs)
            done = args[0] if args else kwargs.get("state_dict")
            return result
        finally:
            watcher.save_ends(span, done, kwargs.get("checkpoint_id"))

    @functools.wraps(async_save)
    def saving(*args: Any, **kwargs: Any) -> Any:
        span = watcher.save_begins()
        try:
            result = async_save(*args, **kwargs)
        finally:
            watcher.save_ends(span, None, None)
        if span is not None:
            upload = getattr(result, "upload_completion", result)
            watcher.save_later(upload, kwargs.get("checkpoint_id"))
        return result

    _replace("save", save, saved, module, "torch.distributed.checkpoint")
    _replace("async_save", async_save, saving, module, "torch.distributed.checkpoint")


def _dcp_loader(module: ModuleType) -> None:
    load = module.load

    @functools.wraps(load)
    def loaded(*args: Any, **kwargs: Any) -> Any:
        t0 = now_ns()
        result = load(*args, **kwargs)
        watcher.load_ends(None, kwargs.get("checkpoint_id"), t0)
        return result

    _replace("load", load, loaded, module, "torch.distributed.checkpoint")


def _process_groups(module: ModuleType) -> None:
    for name in ("init_process_group", "new_group"):
        function = getattr(module, name)
        cell = _innermost(function)
        if cell is not None:  # inside torch's own wrappers: names taken earlier are hooked as well
            cell.cell_contents = _starting(cell.cell_contents, "process_group_init")
        else:
            wrapped = _starting(function, "process_group_init")
            _replace(name, function, wrapped, module, "torch.distributed")


def _innermost(function: Any) -> Any:
    """The cell that holds what torch's logging wrappers call; None if there is none."""
    found = None
    while getattr(function, "__closure__", None) and "func" in function.__code__.co_freevars:
        found = function.__closure__[function.__code__.co_freevars.index("func")]
        function = found.cell_contents
    return found


def _starting(call: Callable[..., Any], account: str) -> Callable[..., Any]:
    @functools.wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        t0 = now_ns()
        span = watcher.begins(account)
        try:
            return call(*args, **kwargs)
        finally:
            watcher.ended(account, t0, span)

    return called


def _cuda(module: ModuleType) -> None:
    start = module._lazy_init

    @functools.wraps(start)
    def started() -> None:
        if module._initialized or getattr(module._tls, "is_initializing", False):
            start()
            return
        t0 = now_ns()
        start()
        if module._initialized:
            vars(module)["_lazy_init"] = start  # once is enough
            watcher.ended("device_init", t0, None)

    vars(module)["_lazy_init"] = started


def _datasets(module: ModuleType) -> None:
    """Hugging Face's datasets: reading and mapping them is preprocessing."""
    for owner, name in ((module, "load_dataset"), (getattr(module, "Dataset", None), "map")):
        if owner is not None and hasattr(owner, name):
            setattr(owner, name, _preparing(getattr(owner, name)))


def _preparing(prepare: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(prepare)
    def prepared(*args: Any, **kwargs: Any) -> Any:
        t0 = now_ns()
        result = prepare(*args, **kwargs)
        watcher.prepared(t0)
        return result

    return prepared


def _dynamo(module: ModuleType) -> None:
    module.add(__name__)  # none of this is for torch.compile to look into
    module.add("torchett.record.hooks.watcher")


def _replace(name: str, old: Any, new: Any, *modules: "ModuleType | str") -> None:
    """Put `new` where `old` is found under this name."""
    for given in modules:
        module = sys.modules.get(given) if isinstance(given, str) else given
        if module is not None and getattr(module, name, None) is old:
            setattr(module, name, new)


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "torch.autograd": _autograd,
    "torch.autograd.grad_mode": _grad_modes,
    "torch.nn.modules.module": _modules,
    "torch.optim.optimizer": _optimizers,
    "torch.amp.grad_scaler": _scaler,
    "torch.utils.data.dataloader": _loaders,
    "torch.serialization": _serialization,
    "torch.distributed.checkpoint.state_dict_saver": _dcp_saver,
    "torch.distributed.checkpoint.state_dict_loader": _dcp_loader,
    "torch.distributed.distributed_c10d": _process_groups,
    "torch.cuda": _cuda,
    "torch._dynamo.trace_rules": _dynamo,
    "safetensors.torch": _safetensors,
    "datasets.arrow_dataset": _datasets,
    "datasets.load": _datasets,
}
