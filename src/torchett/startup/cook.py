"""By a recipe: a standby makes a model like the job's and calls it once, so that it is compiled.

    standby   ── waits ── a recipe is there ── imports what defines the model ── makes it of zeros
              ── forward and backward, all from the cache ── lets it go ── waits

A recipe counts if it was written since this node's agent began: then its code is in this node's
cache. What the standby finds it leaves as it was: settings, paths, environment, generators, and a
template has no thread more than before. Where anything fails the recipe is put aside and the
process begins anew: nobody knows what a half followed one has left behind. And what was brought
need not be right for the rank that the process becomes: see `fits`.
"""

import gc
import io
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from torchett.startup.recipe import Like, Recipe, recipes, settings
from torchett.startup.surroundings import kept_random_numbers

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
        for name, values in recipe.configs.items():
            around.enter_context(_configured(name, values))
        around.enter_context(kept_random_numbers())
        around.enter_context(_set(torch, recipe.settings))
        if recipe.group is not None:
            around.enter_context(_fake_group(*recipe.group))
        model = _Unpickler.of(recipe.model)
        args, kwargs = _Unpickler.of(recipe.call)
        _note_sources(set(sys.modules) - before)
        with _nothing_compiled():
            _train(torch, torch._dynamo.optimize(**recipe.optimize)(model), args, kwargs, recipe)
        del model, args, kwargs
    torch._dynamo.utils.counters.clear()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _note_sources(names: set[str]) -> None:
    for name in names:
        source = getattr(sys.modules[name], "__file__", None)
        if source is not None and name.partition(".")[0] not in _OURS:
            _sources[source] = _stamp(Path(source))


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
