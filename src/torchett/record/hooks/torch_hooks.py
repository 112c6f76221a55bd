"""Where torch is hooked, part by part, as each is imported. All of it runs eagerly.

Each wrapper calls what it wraps with the same arguments and gives back the same result or error.
`patches.TABLE` says why each is there; `SAVES` is all that recording needs without `ett run`.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchett.record import patches
from torchett.record.clock import now_ns
from torchett.record.hooks.forwards import PLACE
from torchett.record.hooks.watcher import watcher

Make = Callable[[Any], Any]


def _optimizers(module: ModuleType) -> None:
    from torchett.record.hooks import traced

    after, zeroing = traced.make(sys.modules["torch"])
    module.register_optimizer_step_post_hook(after)

    def making(make: Any) -> Any:
        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            t0 = now_ns()
            watcher.optimizer_begins()
            try:
                make(self, *args, **kwargs)
            finally:
                watcher.optimizer_made(t0, self)

        return made

    patches.install("torch.optim.optimizer:Optimizer.__init__", making)
    patches.install("torch.optim.optimizer:Optimizer.zero_grad", zeroing)


def _taking(of_optimizer: bool) -> Make:
    def taking(take: Any) -> Any:
        def taken(self: Any, *args: Any, **kwargs: Any) -> Any:
            t0 = now_ns()
            result = take(self, *args, **kwargs)
            watcher.checkpoints.state_ends(t0, self if of_optimizer else None)
            return result

        return taken

    return taking


def _state_of_optimizers(module: ModuleType) -> None:
    patches.install("torch.optim.optimizer:Optimizer.load_state_dict", _taking(True))


def _state_of_modules(module: ModuleType) -> None:
    patches.install("torch.nn.modules.module:Module.load_state_dict", _taking(False))


def _modules(module: ModuleType) -> None:
    from torchett.record.hooks import traced

    def making(make: Any) -> Any:
        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            watcher.model_made(self)
            make(self, *args, **kwargs)

        return made

    def setting(put: Any) -> Any:
        def set_state(self: Any, state: Any) -> None:
            watcher.model_copied(self)
            put(self, state)

        return set_state

    def to_eval(evaluate: Any) -> Any:
        def evaluating(self: Any) -> Any:
            if self.training:
                watcher.eval_mode(self)
            return evaluate(self)

        return evaluating

    def replicating(replicate: Any) -> Any:
        name = PLACE.rpartition(".")[2]

        def replicated(self: Any) -> Any:
            replica = replicate(self)
            if getattr(vars(replica).get(name), "is_ours", False):
                del vars(replica)[name]  # it would call the module that this is a replica of
            return replica

        return replicated

    base = "torch.nn.modules.module:Module."
    patches.install(base + "__init__", making)
    patches.install(base + "__setstate__", setting)
    patches.install(base + "eval", to_eval)
    patches.install(base + "zero_grad", traced.make(sys.modules["torch"])[1])
    patches.install(base + "_replicate_for_data_parallel", replicating)


def _autograd(module: ModuleType) -> None:
    def running(run: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not watcher.backward_begins(kwargs.get("accumulate_grad", True)):
                return run(*args, **kwargs)
            try:
                return run(*args, **kwargs)
            finally:
                watcher.backward_ends()

        return backward

    patches.install("torch.autograd:_engine_run_backward", running)


def _grad_modes(module: ModuleType) -> None:
    def entering(enter: Any) -> Any:
        def entered(self: Any) -> Any:
            if getattr(self, "mode", True):
                watcher.grad_off_begins()
            return enter(self)

        return entered

    def leaving(leave: Any) -> Any:
        def left(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> Any:
            if getattr(self, "mode", True):
                watcher.grad_off_ends()
            return leave(self, exc_type, exc_value, traceback)

        return left

    installed = []
    for mode in ("no_grad", "inference_mode"):
        base = f"torch.autograd.grad_mode:{mode}."
        installed.append(patches.install(base + "__enter__", entering))
        installed.append(patches.install(base + "__exit__", leaving))
    watcher.may_watch_grad([one for one in installed if one is not None])


def _loaders(module: ModuleType) -> None:
    is_grad_enabled = sys.modules["torch"].is_grad_enabled

    def making(make: Any) -> Any:
        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            t0 = now_ns()
            make(self, *args, **kwargs)
            watcher.prepared(t0)

        return made

    def beginning(begin: Any) -> Any:
        def began(self: Any) -> Any:
            t0 = now_ns()
            result = begin(self)
            watcher.iterator_made(t0)
            return result

        return began

    def fetching(following: Any) -> Any:
        def fetched(self: Any) -> Any:
            t0 = now_ns()
            try:
                return following(self)
            finally:
                watcher.fetched(self, t0, is_grad_enabled())

        return fetched

    base = "torch.utils.data.dataloader:"
    patches.install(base + "DataLoader.__init__", making)
    patches.install(base + "DataLoader.__iter__", beginning)
    patches.install(base + "_BaseDataLoaderIter.__next__", fetching)


def _scaler(module: ModuleType) -> None:
    def stepping(step: Any) -> Any:
        def stepped(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            watcher.scaler_begins()
            try:
                result = step(self, optimizer, *args, **kwargs)
            finally:
                watcher.scaler_ends()
            watcher.update_ends(optimizer)  # an update that is skipped is a step all the same
            return result

        return stepped

    patches.install("torch.amp.grad_scaler:GradScaler.step", stepping)


def _saving(save: Any) -> Any:
    def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        span, done = watcher.checkpoints.save_begins(), None
        try:
            result = save(obj, f, *args, **kwargs)
            done = obj
            return result
        finally:
            watcher.checkpoints.save_ends(span, done, f)

    return saved


def _loading(load: Any) -> Any:
    def loaded(f: Any, *args: Any, **kwargs: Any) -> Any:
        t0 = now_ns()
        result = load(f, *args, **kwargs)
        watcher.checkpoints.load_ends(result, f, t0)
        return result

    return loaded


def _serialization(module: ModuleType) -> None:
    patches.install("torch.serialization:save", _saving, also=("torch",))
    patches.install("torch.serialization:load", _loading, also=("torch",))


def _safetensors(module: ModuleType) -> None:
    def saving(save: Any) -> Any:
        def saved(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            span, done = watcher.checkpoints.save_begins(), None
            try:
                result = save(tensors, filename, *args, **kwargs)
                done = tensors
                return result
            finally:
                watcher.checkpoints.save_ends(span, done, filename)

        return saved

    patches.install("safetensors.torch:save_file", saving)


def _dcp_saver(module: ModuleType) -> None:
    def saving(save: Any) -> Any:
        def saved(*args: Any, **kwargs: Any) -> Any:
            span, done = watcher.checkpoints.save_begins(), None
            try:
                result = save(*args, **kwargs)
                done = args[0] if args else kwargs.get("state_dict")
                return result
            finally:
                watcher.checkpoints.save_ends(span, done, kwargs.get("checkpoint_id"))

        return saved

    def saving_async(async_save: Any) -> Any:
        def saved(*args: Any, **kwargs: Any) -> Any:
            span = watcher.checkpoints.save_begins()
            try:
                result = async_save(*args, **kwargs)
            finally:
                watcher.checkpoints.save_ends(span, None, None)
            if span is not None:
                upload = getattr(result, "upload_completion", result)
                watcher.checkpoints.save_later(upload, kwargs.get("checkpoint_id"))
            return result

        return saved

    base, also = "torch.distributed.checkpoint.state_dict_saver:", ("torch.distributed.checkpoint",)
    patches.install(base + "save", saving, also=also)
    patches.install(base + "async_save", saving_async, also=also)


def _dcp_loader(module: ModuleType) -> None:
    def loading(load: Any) -> Any:
        def loaded(*args: Any, **kwargs: Any) -> Any:
            t0 = now_ns()
            result = load(*args, **kwargs)
            watcher.checkpoints.load_ends(None, kwargs.get("checkpoint_id"), t0)
            return result

        return loaded

    target = "torch.distributed.checkpoint.state_dict_loader:load"
    patches.install(target, loading, also=("torch.distributed.checkpoint",))


def _process_groups(module: ModuleType) -> None:
    def starting(call: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            t0 = now_ns()
            span = watcher.begins("process_group_init")
            try:
                return call(*args, **kwargs)
            finally:
                watcher.ended("process_group_init", t0, span)

        return called

    for name in ("init_process_group", "new_group"):
        target = f"torch.distributed.distributed_c10d:{name}"
        patches.install_inside(target, starting, lever="hooks")


def _cuda(module: ModuleType) -> None:
    def starting(start: Any) -> Any:
        def started() -> None:
            if module._initialized or getattr(module._tls, "is_initializing", False):
                start()
                return
            t0 = now_ns()
            start()
            if module._initialized:
                if installed is not None:
                    installed.remove()  # once is enough
                watcher.ended("device_init", t0, None)

        return started

    installed = patches.install("torch.cuda:_lazy_init", starting)


def _preparing(prepare: Any) -> Any:
    def prepared(*args: Any, **kwargs: Any) -> Any:
        t0 = now_ns()
        result = prepare(*args, **kwargs)
        watcher.prepared(t0)
        return result

    return prepared


def _datasets(module: ModuleType) -> None:
    """Hugging Face's datasets: reading and mapping them is preprocessing."""
    if hasattr(module, "load_dataset") and module.__name__ == "datasets.load":
        patches.install("datasets.load:load_dataset", _preparing, also=("datasets",))
    elif hasattr(module, "Dataset"):
        patches.install("datasets.arrow_dataset:Dataset.map", _preparing)


def _dynamo(module: ModuleType) -> None:
    for name in ("torch_hooks", "watcher", "forwards"):  # not for torch.compile to look into
        module.add(f"torchett.record.hooks.{name}")


Hooks = dict[str, list[Callable[[ModuleType], None]]]
SAVES: Hooks = {
    "torch.nn.modules.module": [_state_of_modules],
    "torch.optim.optimizer": [_state_of_optimizers],
    "torch.serialization": [_serialization],
    "torch.distributed.checkpoint.state_dict_saver": [_dcp_saver],
    "torch.distributed.checkpoint.state_dict_loader": [_dcp_loader],
    "safetensors.torch": [_safetensors],
    "torch._dynamo.trace_rules": [_dynamo],
}
STEPS: Hooks = {
    "torch.autograd": [_autograd],
    "torch.autograd.grad_mode": [_grad_modes],
    "torch.nn.modules.module": [_modules],
    "torch.optim.optimizer": [_optimizers],
    "torch.amp.grad_scaler": [_scaler],
    "torch.utils.data.dataloader": [_loaders],
    "torch.distributed.distributed_c10d": [_process_groups],
    "torch.cuda": [_cuda],
    "datasets.arrow_dataset": [_datasets],
    "datasets.load": [_datasets],
}
