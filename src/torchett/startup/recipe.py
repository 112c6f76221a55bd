"""A recipe: what a standby needs to have a job's model compiled before it is one of its ranks.

    attempt 0   model(x), the second in training ──► recipe                  (in the run's folder)
    standby     … imports ── walks the compiler ── by the recipe: a model like it, called once ──┐
    attempt 1                                              ✗ ── "go" ── model(x): compiled ◄─────┘

It names the modules that define the model, and says of each tensor what it is like; no weights, no
data. Compiled code belongs to the classes, and torch guards it by all that it depends on: if
anything is otherwise in the next attempt, it compiles as ever. All but a rank's place: whoever asks
for it in forward (`dist.get_rank()`) has it compiled in, unguarded. So it belongs to the recipe.

Written at the second call, as code is in the cache once its backward has been compiled, too.

Not for a model whose classes are the script's own: each attempt makes those anew.

`board()` writes recipes (`ett run --standby-model`); `cook.py` follows them.
"""

import io
import logging
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from torchett.record.boarding import when_imported
from torchett.record.threads import begin_beside
from torchett.store import write_whole

log = logging.getLogger("torchett")

_MOST = 8  # models of a script
_LATER_S = 2.0  # from the second call on
_PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
CONFIGS = ("torch._dynamo.config", "torch._inductor.config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Like:
    """What a tensor is like."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    device: str
    requires_grad: bool
    is_parameter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A model and a call of it, with all that compiled code depends on beside them."""

    model: bytes  # see _Pickler
    call: bytes  # (args, kwargs)
    optimize: dict[str, Any]  # what torch.compile made of its arguments
    configs: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    path: tuple[str, ...]  # sys.path
    place: dict[str, str]  # of the rank, in its environment
    group: tuple[int, int] | None  # its rank in the default process group, and the group's size
    devices: frozenset[str]  # of all tensors: "cpu", "cuda"
    nbytes: int
    written_s: float  # by this node's clock


def recipes(env: Mapping[str, str], place: str) -> Path:
    """The folder for ranks at this place of this node."""
    return Path(env["ETT_RUN"], "recipes", f"node-{env.get('ETT_NODE', '0')}-{place}")


def board() -> None:
    """Write recipes in a rank that keeps a record."""
    if "ETT_RUN" in os.environ and "LOCAL_RANK" in os.environ:
        folder = recipes(os.environ, os.environ["LOCAL_RANK"])
        when_imported("torch._dynamo", Watch(folder).begin)


class Watch:
    """Sees models compiled, and called in training."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._waiting: dict[int, int] = {}  # ids of these, which live as long as a model: calls
        self._left = _MOST

    def begin(self, dynamo: Any) -> None:
        optimize = dynamo.optimize
        kind = dynamo.eval_frame.OptimizedModule
        call = kind.__call__

        @wraps(optimize)
        def noted(*args: Any, **kwargs: Any) -> Any:
            context = optimize(*args, **kwargs)
            if not args and self._left:
                self._left -= 1
                self._asked[context] = kwargs
                self._waiting[id(context)] = 0
            return context

        @wraps(call)
        def called(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = call(model, *args, **kwargs)
            if self._waiting and id(model.dynamo_ctx) in self._waiting:
                self._call(model, args, kwargs)
            return result

        dynamo.optimize, kind.__call__ = noted, called

    def _call(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            torch = sys.modules["torch"]
            if not (model.training and torch.is_grad_enabled()):
                return
            self._waiting[id(model.dynamo_ctx)] += 1
            if self._waiting[id(model.dynamo_ctx)] < 2:
                return
            del self._waiting[id(model.dynamo_ctx)]
            optimize = self._asked[model.dynamo_ctx]
            if _captures(optimize["backend"]):
                return
            call = _Pickler.of((args, kwargs))
            told: dict[str, Any] = {"optimize": optimize, "group": _group(torch)}
            told |= {"settings": settings(torch), "configs": _configs()}
            path = self._folder / f"model-{_MOST - self._left - len(self._waiting)}.recipe"
            _write_later(path, model._orig_mod, call, told)
        except Exception as error:
            log.debug("torchett: no recipe: %r", error)


def _write_later(path: Path, model: Any, call: "_Pickler", told: dict[str, Any]) -> None:
    """When the start-up is over, unless the process is by then."""
    over = threading.Event()

    def work() -> None:
        if not over.wait(_LATER_S):
            _write(path, model, call, told)

    begin_beside(work, name="ett-recipe", wake=over.set)


def _write(path: Path, model: Any, call: "_Pickler", told: dict[str, Any]) -> None:
    try:
        made = _Pickler.of(model)
        if b"__main__" in made.data + call.data:
            return
        recipe = Recipe(
            model=made.data,
            call=call.data,
            path=tuple(sys.path),
            place={key: os.environ[key] for key in _PLACE if key in os.environ},
            devices=frozenset(made.devices | call.devices),
            nbytes=made.nbytes + call.nbytes,
            written_s=time.time(),
            **told,
        )
        write_whole(path, pickle.dumps(recipe), mode=0o600, durable=False)
    except Exception as error:  # a model with hooks, say, that are no functions of a module
        log.debug("torchett: no recipe: %r", error)


class _Pickler(pickle.Pickler):
    """Writes for each tensor its number, and for its first occurrence what it is like."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file)
        self._known: dict[int, int] = {}
        self._kept: list[Any] = []  # or another could have its id
        self.devices: set[str] = set()
        self.nbytes = 0

    @classmethod
    def of(cls, value: Any) -> "_Pickler":
        pickler = cls()
        pickler.dump(value)
        return pickler

    @property
    def data(self) -> bytes:
        return self._file.getvalue()

    def persistent_id(self, value: Any) -> Any:
        torch = sys.modules["torch"]
        if not isinstance(value, torch.Tensor):
            return None
        known = self._known.get(id(value))
        if known is not None:
            return known, None
        is_parameter = type(value) is torch.nn.Parameter
        if not (is_parameter or type(value) is torch.Tensor) or value.layout != torch.strided:
            raise pickle.PicklingError(f"a {type(value).__name__} of layout {value.layout}")
        number = self._known[id(value)] = len(self._kept)
        self._kept.append(value)
        self.devices.add(value.device.type)
        self.nbytes += value.nbytes
        return number, Like(
            shape=tuple(value.shape),
            stride=tuple(value.stride()),
            dtype=value.dtype,
            device=str(value.device),
            requires_grad=value.requires_grad,
            is_parameter=is_parameter,
        )


def _captures(backend: Any) -> bool:
    """Whether compiled code is captured as CUDA graphs: those hold memory of their own."""
    config = getattr(backend, "config", None)
    own = config.get("triton.cudagraphs") if isinstance(config, dict) else None
    inductor: Any = sys.modules["torch._inductor.config"]
    return bool(inductor.triton.cudagraphs if own is None else own)


def _group(torch: Any) -> tuple[int, int] | None:
    dist = torch.distributed
    is_there = dist.is_available() and dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if is_there else None


def settings(torch: Any) -> dict[str, Any]:
    """What compiled code is guarded by, beside its arguments, on this thread."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    reduced = torch.backends.cuda.matmul
    return {
        "threads": torch.get_num_threads(),
        "device": torch.cuda.current_device() if torch.cuda.is_initialized() else None,
        "fp16": reduced.allow_fp16_reduced_precision_reduction,
        "bf16": reduced.allow_bf16_reduced_precision_reduction,
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "dtype": torch.get_default_dtype(),
        "autocast": {kind: torch.get_autocast_dtype(kind) for kind in kinds},
    }


def _configs() -> dict[str, dict[str, Any]]:
    """The compiler's settings, as far as they are plain values."""
    found = {}
    for name in CONFIGS:
        config: Any = sys.modules[name]
        copy = config.get_config_copy()
        found[name] = {key: value for key, value in copy.items() if _is_plain(value)}
    return found


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
