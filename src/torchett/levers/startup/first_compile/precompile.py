"""A standby compiles the job's model ahead, from a recipe (`--standby-model`).

    standby   ── waits ── finds a recipe ── imports the model's modules ── makes it from zeros
              ── forward and backward, all from the cache ── frees it ── waits

Only imported modules and compiled code are left when the rank's script runs. If a recipe fails or
changes anything else, its file is renamed, one line is printed, and the standby starts again.
"""

import gc
import logging
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from torchett.levers.startup.first_compile.recipe import (
    CONFIGS,
    Recipe,
    ZerosUnpickler,
    recipe_path,
    settings,
)
from torchett.levers.startup.plan.surroundings import generators, kept_random_numbers, state_bytes
from torchett.record.patches import install

_LOOK_S = 0.5
_ROOM = 8  # times the bytes of its tensors: for gradients and activations
_MORE_ROOM = 1 << 30
_TORCHS = ("torch", "torchgen", "functorch", "triton", "sympy", "torchett")  # imported by torch
_SETTERS = {  # settings that a script may change; other changes are refused
    "precision": "set_float32_matmul_precision",
    "dtype": "set_default_dtype",
    "threads": "set_num_threads",
}
_sources: dict[str, tuple[int, int]] = {}  # stamps of modules that were imported for a recipe
_place: dict[str, str] = {}  # the rank's numbers in that recipe
followed: set[Path] = set()  # the recipe whose model this process has compiled


def follow_recipe(is_over: Callable[[float], bool]) -> None:
    """Wait for this local rank's recipe and follow it, until `is_over(seconds to wait)`."""
    path, seen = recipe_path(os.environ, os.environ.get("ETT_PLACE", "0")), None
    while not is_over(_LOOK_S):
        if not followed and (stamp := _stamp(path)) not in (seen, (0, 0)):
            seen = stamp
            try:
                follow(path)
            except BaseException as error:
                _restart_without(path, error)


def fits(env: Mapping[str, str]) -> bool:
    """Whether a rank with this environment would import the same modules as this process has.

    False if a source file has changed, or for another rank: a module may have read its number.
    """
    same_rank = all(env.get(key) == value for key, value in _place.items())
    return same_rank and all(_stamp(Path(path)) == stamp for path, stamp in _sources.items())


def _restart_without(path: Path, error: BaseException) -> NoReturn:
    why = str(error).partition("\n")[0] or type(error).__name__
    print(f"torchett: standbys do without {path.name}: {why}", file=sys.stderr, flush=True)
    path.rename(path.with_suffix(".failed"))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def follow(path: Path) -> None:
    """Compile this recipe's model, if this node's cache may have its code and memory is free."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(f"{path}: others can write to it")
        recipe = pickle.load(file)
    if not isinstance(recipe, Recipe):
        raise TypeError(f"{path}: expected a recipe, found {type(recipe).__name__}")
    since_s = float(os.environ.get("ETT_AGENT_BEGAN", "0"))
    if recipe.written_s >= since_s and _has_room(recipe):
        compile_model(recipe)
        followed.add(path)


def _has_room(recipe: Recipe) -> bool:
    """Whether the device has enough free memory; False if this process has no context there."""
    torch = sys.modules["torch"]
    if not recipe.on_device:
        return True
    has_context = torch.cuda.is_initialized()
    return bool(has_context and torch.cuda.mem_get_info()[0] >= _ROOM * recipe.nbytes + _MORE_ROOM)


def compile_model(recipe: Recipe) -> None:
    """Compile the recipe's model in this process; RuntimeError if that has side effects."""
    import torch

    _place.update(recipe.place)
    modules, began_ns = set(sys.modules), time.time_ns()
    with ExitStack() as around:
        around.enter_context(_path_and_place(recipe))
        around.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)  # the rank has logged the same
        before = _surroundings(torch)
        for name in recipe.modules:
            import_module(name)
        if recipe.group is not None:  # after the imports: a module may check for a process group
            around.enter_context(_fake_group(*recipe.group))
        model = ZerosUnpickler.of(recipe.model)
        args, kwargs = ZerosUnpickler.of(recipe.call)
        _refuse_changes(before, _surroundings(torch), "importing its modules changes {}")
        own = {name for name in set(sys.modules) - modules if name.split(".")[0] not in _TORCHS}
        files = [getattr(sys.modules[name], "__file__", None) for name in own]
        _sources.update({file: _stamp(Path(file)) for file in files if file})
        if changed := [file for file, (mtime_ns, _) in _sources.items() if mtime_ns >= began_ns]:
            raise RuntimeError(f"{changed[0]} was changed meanwhile")
        variables = _variables(own)
        for name, values in recipe.configs.items():
            around.enter_context(_configured(import_module(name), values))
        around.enter_context(kept_random_numbers())
        around.enter_context(_set(torch, recipe.settings))
        around.enter_context(_from_the_cache())
        _train(torch, torch._dynamo.optimize(**recipe.optimize)(model), args, kwargs, recipe)
        _refuse_changes(variables, _variables(own), "a call of the model changes {}")
        del model, args, kwargs
    torch._dynamo.utils.counters.clear()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _refuse_changes(before: dict[str, Any], after: dict[str, Any], text: str) -> None:
    if changed := sorted(key for key in after if before.get(key) != after[key]):
        raise RuntimeError(text.format(changed[0]))


def _surroundings(torch: Any) -> dict[str, Any]:
    """The global state that a rank's script could find changed."""
    drawn = {f"the generator of {name}": state_bytes(state) for name, state in generators().items()}
    configs = {name: import_module(name).get_config_copy() for name in CONFIGS}
    around = {"the environment": dict(os.environ), "sys.path": [*sys.path]}
    return {"torch's settings": settings(torch), **drawn, **configs, **around}


def _variables(modules: set[str]) -> dict[str, Any]:
    """Identity, length and version of every variable of these modules and their classes."""
    owners: list[tuple[str, Any]] = [(name, sys.modules[name]) for name in modules]
    for name, module in list(owners):
        kinds = [value for value in vars(module).values() if isinstance(value, type)]
        owners += [(f"{name}.{k.__name__}", k) for k in kinds if k.__module__ == name]
    found = {f"{name}.{key}": value for name, owner in owners for key, value in vars(owner).items()}
    return {name: _state(one) for name, one in found.items() if ".__" not in name}


def _state(value: Any) -> Any:
    size = len(value) if isinstance(value, list | dict | set | deque) else 0
    version = getattr(value, "_version", 0) if type(value).__module__ == "torch" else 0
    return id(value), size, version


def _train(torch: Any, model: Any, args: Any, kwargs: Any, recipe: Recipe) -> None:
    """Run one forward and backward."""
    from torch.utils._pytree import tree_leaves

    for module in model.modules():
        if hasattr(module, "require_backward_grad_sync"):  # DDP
            module.require_backward_grad_sync = module.require_forward_param_sync = False
    with ExitStack() as stack:
        for kind, dtype in recipe.settings["autocast"].items():
            stack.enter_context(torch.autocast(kind, dtype=dtype))
        result = model(*args, **kwargs)
    found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    loss = sum(leaf.float().sum() for leaf in found if leaf.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def _from_the_cache() -> Iterator[None]:
    """LookupError in the body if code is not cached: compiling would take the ranks' cores."""
    config: Any = import_module("torch._inductor.config")
    import_module("torch._inductor.compile_fx")

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise LookupError("a graph of the model is not in the cache")

    installed = install("torch._inductor.compile_fx:fx_codegen_and_compile", lambda plain: refuse)
    if installed is None:
        raise RuntimeError("fx_codegen_and_compile cannot be replaced")
    try:
        with config.patch(compile_threads=1):
            yield
    finally:
        installed.remove()


@contextmanager
def _fake_group(rank: int, size: int) -> Iterator[None]:
    """A default process group of this size without peers."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook  # torch replaces it
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def _configured(config: Any, values: dict[str, Any]) -> Any:
    """A context manager that sets the compiler's settings as in the rank."""
    own = config.get_config_copy()
    return config.patch({key: value for key, value in values.items() if own.get(key) != value})


@contextmanager
def _path_and_place(recipe: Recipe) -> Iterator[None]:
    """In the body: the rank's sys.path, and its numbers in the environment."""
    path, env = [*sys.path], dict(os.environ)
    sys.path[:] = recipe.path
    os.environ.update(recipe.place)
    try:
        yield
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(env)


@contextmanager
def _set(torch: Any, wanted: dict[str, Any]) -> Iterator[None]:
    """Set torch's settings as in the rank, and restore them after the body."""
    here = settings(torch)
    others = {key for key in here if here[key] != wanted[key]} - {"autocast"}
    if refused := sorted(others - _SETTERS.keys()):
        raise RuntimeError(f"the script sets {refused[0]}")
    try:
        for key in others:
            getattr(torch, _SETTERS[key])(wanted[key])
        yield
    finally:
        for key in others:
            getattr(torch, _SETTERS[key])(here[key])


def _stamp(path: Path) -> tuple[int, int]:
    """Modification time and size of the file; (0, 0) if it is missing."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return found.st_mtime_ns, found.st_size
