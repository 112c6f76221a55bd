"""By a recipe: a standby makes a model like the job's and calls it once, so that it is compiled.

    standby   ── waits ── a recipe is there ── imports what defines the model ── makes it of zeros
              ── forward and backward, all from the cache ── lets it go ── waits

A recipe counts if it was written since this node's agent began: then its code is in this node's
cache. What the standby finds it leaves as it was: settings, paths, environment, generators, and a
template has no thread more than before. Where anything fails the recipe is put aside and the
process begins anew: nobody knows what a half followed one has left behind. So it does where a
module, when it is imported, sets what the rank would find set (a seed, a precision, a variable of
the environment), or where forward counts in a variable of its module or class. And what was brought
need not be right for the rank that the process becomes: see `fits`.
"""

import gc
import io
import logging
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from torchett.startup.recipe import CONFIGS, Like, Recipe, recipes, settings
from torchett.startup.surroundings import generators, kept_random_numbers, repr_of

_LOOK_S = 0.5
_ROOM = 8  # times its tensors: gradients, activations
_MORE_ROOM = 1 << 30
_OURS = ("torch", "torchgen", "functorch", "triton", "sympy", "torchett")  # brought by torch itself
_seen: set[tuple[Path, tuple[int, int]]] = set()  # a recipe is written anew by each attempt
_sources: dict[str, tuple[int, int]] = {}  # of modules that a recipe has brought
_places: list[dict[str, str]] = []  # of the ranks that a recipe was for
followed: set[Path] = set()  # in this process


def until(
    told: Callable[[float], bool],
    begin_anew: Callable[[], NoReturn],
    cooked: Callable[[], None] = lambda: None,
) -> None:
    """Follow the recipes of this place until the agent says something."""
    folder = recipes(os.environ, os.environ.get("ETT_PLACE", "0"))
    while not told(_LOOK_S):
        for path in sorted(folder.glob("*.recipe")):
            known = (path, _stamp(path))
            if path not in followed and known not in _seen:
                _seen.add(known)
                _try(path, begin_anew)
                if path in followed:
                    cooked()


def fits(env: Mapping[str, str]) -> bool:
    """Whether what recipes have brought is what a rank with this environment would import.

    Not if a module's source has changed, nor at another place: a module may have asked for it.
    """
    at_home = all(env.get(key) == value for one in _places for key, value in one.items())
    return at_home and all(_stamp(Path(path)) == stamp for path, stamp in _sources.items())


def _try(path: Path, begin_anew: Callable[[], NoReturn]) -> None:
    threads = len(os.listdir("/proc/self/task"))
    try:
        recipe = _read(path)
        since_s = float(os.environ.get("ETT_AGENT_BEGAN", "0"))
        if recipe.written_s >= since_s and _has_room(recipe):
            follow(recipe)
            followed.add(path)
        if threads == 1 < len(os.listdir("/proc/self/task")):
            raise RuntimeError("it left a thread behind")
    except BaseException as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        print(f"torchett: standbys do without {path.name}: {why}", file=sys.stderr, flush=True)
        path.rename(path.with_suffix(".failed"))
        begin_anew()


def _read(path: Path) -> Recipe:
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(f"{path}: others can write to it")
        recipe = pickle.load(file)
    if not isinstance(recipe, Recipe):
        raise TypeError(f"{path}: expected a recipe, found {type(recipe).__name__}")
    return recipe


def _has_room(recipe: Recipe) -> bool:
    """Whether there is memory to spare: the ranks need it more."""
    torch = sys.modules["torch"]
    if "cuda" not in recipe.devices:
        return True
    if not torch.cuda.is_initialized():  # it would need a context that nobody asked for
        return False
    free, _ = torch.cuda.mem_get_info()
    return bool(free >= _ROOM * recipe.nbytes + _MORE_ROOM)


def follow(recipe: Recipe) -> None:
    """Have the recipe's model compiled in this process, if its code is in the cache."""
    import torch

    before = set(sys.modules)
    _places.append(recipe.place)
    with ExitStack() as around:
        around.enter_context(_path_and_place(recipe))
        around.enter_context(_silence())
        _import_without_traces(torch, recipe)
        for name, values in recipe.configs.items():
            around.enter_context(_configured(name, values))
        around.enter_context(kept_random_numbers())
        around.enter_context(_set(torch, recipe.settings))
        if recipe.group is not None:
            around.enter_context(_fake_group(*recipe.group))
        model = _Unpickler.of(recipe.model)
        args, kwargs = _Unpickler.of(recipe.call)
        names = _foreign(set(sys.modules) - before)
        _note_sources(names)
        before_it = _variables(names)
        with _nothing_compiled():
            _train(torch, torch._dynamo.optimize(**recipe.optimize)(model), args, kwargs, recipe)
        for key, told in sorted(_variables(names).items()):
            if before_it.get(key) != told:
                raise RuntimeError(f"a call of the model changes {key}")
        del model, args, kwargs
    torch._dynamo.utils.counters.clear()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _import_without_traces(torch: Any, recipe: Recipe) -> None:
    """Import what defines the model; RuntimeError if that sets anything that is put back here.

    The rank will not import it again, and would miss it.
    """
    before = _surroundings(torch)
    for data in (recipe.model, recipe.call):
        _Importer(io.BytesIO(data)).load()
    after = _surroundings(torch)
    for what, found in before.items():
        if after[what] != found:
            raise RuntimeError(f"importing its modules changes {what}")


def _surroundings(torch: Any) -> dict[str, Any]:
    drawn = {f"the generator of {name}": repr_of(state) for name, state in generators().items()}
    configs = {name: import_module(name).get_config_copy() for name in CONFIGS}
    around = {"the environment": dict(os.environ), "sys.path": [*sys.path]}
    return {"torch's settings": settings(torch), **drawn, **configs, **around}


def _foreign(names: set[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0] not in _OURS}


def _note_sources(names: set[str]) -> None:
    for name in names:
        source = getattr(sys.modules[name], "__file__", None)
        if source is not None:
            _sources[source] = _stamp(Path(source))


def _variables(names: set[str]) -> dict[str, Any]:
    """What the variables of these modules and their classes are, and how much they hold."""
    found = {}
    for name in names:
        for key, value in vars(sys.modules[name]).items():
            found[f"{name}.{key}"] = _told(value)
            if isinstance(value, type) and value.__module__ == name:
                for own, held in vars(value).items():
                    found[f"{name}.{key}.{own}"] = _told(held)
    return {key: told for key, told in found.items() if not key.rpartition(".")[2].startswith("__")}


def _told(value: Any) -> Any:
    size = len(value) if isinstance(value, list | dict | set | deque) else 0
    version = getattr(value, "_version", 0) if type(value).__module__ == "torch" else 0
    return id(value), size, version


def _train(torch: Any, model: Any, args: Any, kwargs: Any, recipe: Recipe) -> None:
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


class _Unpickler(pickle.Unpickler):
    """Makes tensors of zeros: whatever they index, there is a first one."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._made: dict[int, Any] = {}

    @classmethod
    def of(cls, data: bytes) -> Any:
        return cls(data).load()

    def persistent_load(self, told: Any) -> Any:
        number, like = told
        if number not in self._made:
            self._made[number] = _zeros(like)
        return self._made[number]


class _Importer(pickle.Unpickler):
    """Imports what a pickle names, and makes nothing of it."""

    def find_class(self, module: str, name: str) -> Any:
        import_module(module)
        return _Nothing

    def persistent_load(self, told: Any) -> Any:
        return None


class _Nothing:
    def __new__(cls, *args: Any, **kwargs: Any) -> "_Nothing":
        return object.__new__(cls)

    def _ignore(self, *args: Any, **kwargs: Any) -> None:
        pass

    __init__ = __setstate__ = __setitem__ = append = extend = add = _ignore


def _zeros(like: Like) -> Any:
    import torch

    steps = zip(like.shape, like.stride, strict=True)
    extent = 0 if 0 in like.shape else 1 + sum((n - 1) * step for n, step in steps)
    storage = torch.zeros(extent, dtype=like.dtype, device=like.device)
    tensor = storage.as_strided(like.shape, like.stride)
    if like.is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=like.requires_grad)
    return tensor.requires_grad_(like.requires_grad)


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    """In the body code comes from the cache or not at all, and no workers are begun that compile.

    Compiling would take minutes of a core that the ranks need.
    """
    config: Any = import_module("torch._inductor.config")
    compile_fx: Any = import_module("torch._inductor.compile_fx")
    theirs = compile_fx.fx_codegen_and_compile

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise LookupError("a graph of the model is not in the cache")

    compile_fx.fx_codegen_and_compile = refuse
    try:
        with config.patch(compile_threads=1):
            yield
    finally:
        compile_fx.fx_codegen_and_compile = theirs


@contextmanager
def _fake_group(rank: int, size: int) -> Iterator[None]:
    """A default group of this size that has nobody to talk to."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook  # torch has a word to say at each error of a rank
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


@contextmanager
def _configured(name: str, values: dict[str, Any]) -> Iterator[None]:
    config: Any = import_module(name)
    own = config.get_config_copy()
    others = {key: value for key, value in values.items() if own.get(key, value) != value}
    with config.patch(others):
        yield


@contextmanager
def _silence() -> Iterator[None]:
    """What torch would warn of, it has warned of in the rank."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)


@contextmanager
def _path_and_place(recipe: Recipe) -> Iterator[None]:
    """The rank's folders of modules, and its place: modules may ask for it."""
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
    """torch's settings as they were in the rank; afterwards as they are here."""
    found = settings(torch)
    try:
        _change(torch, found, wanted)
        yield
    finally:
        _change(torch, wanted, found)


def _change(torch: Any, old: dict[str, Any], new: dict[str, Any]) -> None:
    """What is the same is not touched: torch keeps whether somebody has said so."""
    if new["device"] is not None and new["device"] != old["device"]:
        torch.cuda.set_device(new["device"])
    reduced = torch.backends.cuda.matmul
    if new["fp16"] != old["fp16"]:
        reduced.allow_fp16_reduced_precision_reduction = new["fp16"]
    if new["bf16"] != old["bf16"]:
        reduced.allow_bf16_reduced_precision_reduction = new["bf16"]
    if new["threads"] != old["threads"]:
        torch.set_num_threads(new["threads"])
    if new["precision"] != old["precision"]:
        torch.set_float32_matmul_precision(new["precision"])
    if new["dtype"] != old["dtype"]:
        torch.set_default_dtype(new["dtype"])
    if (new["deterministic"], new["warn_only"]) != (old["deterministic"], old["warn_only"]):
        torch.use_deterministic_algorithms(new["deterministic"], warn_only=new["warn_only"])


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return found.st_mtime_ns, found.st_size
