"""A recipe: the facts a standby needs to compile a job's model before it becomes a rank.

    attempt 0   model(x), second training call ──► recipe                    (in the run's folder)
    standby     … imports ──────────────── by the recipe: a model like it, called once ──────────┐
    attempt 1                                              ✗ ── job ── model(x): compiled ◄──────┘

It names the modules that define the model and describes its tensors: no weights, no data. Compiled
code belongs to the model's classes, and torch guards its assumptions. A rank's number has no guard,
so it is part of the recipe. A script has one recipe, for the first model that it compiles. There
is none if the script itself defines the model's classes (each attempt defines new ones), if it
captures CUDA graphs, or if it cannot be pickled. `precompile.py` follows recipes.
"""

import io
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchett.record.patches import Installed, install
from torchett.record.plugins import when_imported
from torchett.record.process.joined_threads import begin_beside
from torchett.store import write_whole

log = logging.getLogger("torchett")

_LATER_S = 2.0  # after the second call: by then its backward is in the cache
_PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
CONFIGS = ("torch._dynamo.config", "torch._inductor.config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A model and a call of it, with everything that its compiled code depends on."""

    modules: tuple[str, ...]  # those that define its classes
    model: bytes  # by TensorPickler
    call: bytes  # (args, kwargs)
    optimize: dict[str, Any]  # the arguments of torch._dynamo.optimize
    configs: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    path: tuple[str, ...]  # sys.path
    place: dict[str, str]  # the rank's numbers in its environment
    group: tuple[int, int] | None  # its rank in the default process group, and the group's size
    on_device: bool
    nbytes: int
    written_s: float  # by this node's clock


def recipe_path(env: Mapping[str, str], local_rank: str) -> Path:
    """The file for this local rank of this node."""
    return Path(env["ETT_RUN"], "recipes", f"node-{env.get('ETT_NODE', '0')}-{local_rank}.recipe")


def install_plugin() -> None:
    """Write a recipe in a rank that keeps a record."""
    if "ETT_RUN" in os.environ and "LOCAL_RANK" in os.environ:
        path = recipe_path(os.environ, os.environ["LOCAL_RANK"])
        when_imported("torch._dynamo", lambda dynamo: _FirstModel(path).watch())


class _FirstModel:
    """Writes a recipe at the second training call of the first compiled model."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._context: Any = None  # dynamo's context of the model
        self._optimize: dict[str, Any] = {}
        self._calls = 0
        self._patches: list[Installed | None] = []

    def watch(self) -> None:
        self._patches = [
            install("torch._dynamo:optimize", self._watch_optimize),
            install("torch._dynamo.eval_frame:OptimizedModule.__call__", self._watch_calls),
        ]

    def _watch_optimize(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def optimize(*args: Any, **kwargs: Any) -> Any:
            context = plain(*args, **kwargs)
            if self._context is None and not args:
                self._context, self._optimize = context, kwargs
            return context

        return optimize

    def _watch_calls(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = plain(model, *args, **kwargs)
            try:
                if model.dynamo_ctx is self._context and self._is_second(model):
                    self._write(model, args, kwargs)
            except Exception as error:
                log.debug("torchett: no recipe: %r", error)
            return result

        return call

    def _is_second(self, model: Any) -> bool:
        self._calls += model.training and sys.modules["torch"].is_grad_enabled()
        if self._calls < 2:
            return False
        for patch in filter(None, self._patches):
            patch.remove()
        return True

    def _write(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        torch = sys.modules["torch"]
        if _captures_cuda_graphs(self._optimize["backend"]):
            return
        dist = torch.distributed
        is_in_group = dist.is_available() and dist.is_initialized()
        call = TensorPickler.of((args, kwargs))
        now = {
            "call": call.data,
            "optimize": self._optimize,
            "configs": _configs(),
            "settings": settings(torch),
            "group": (dist.get_rank(), dist.get_world_size()) if is_in_group else None,
        }
        is_over = threading.Event()

        def work() -> None:  # after the start-up, unless the process ends before
            if not is_over.wait(_LATER_S):
                _write(self._path, model._orig_mod, call, now)

        begin_beside(work, name="ett-recipe", wake=is_over.set)


def _write(path: Path, model: Any, call: "TensorPickler", now: dict[str, Any]) -> None:
    try:
        made = TensorPickler.of(model)
        if b"__main__" in made.data + call.data:
            return
        recipe = Recipe(
            modules=tuple(sorted({type(one).__module__ for one in model.modules()})),
            model=made.data,
            path=tuple(sys.path),
            place={key: os.environ[key] for key in _PLACE if key in os.environ},
            on_device="cuda" in made.devices | call.devices,
            nbytes=made.nbytes + call.nbytes,
            written_s=time.time(),
            **now,
        )
        write_whole(path, pickle.dumps(recipe), mode=0o600, durable=False)
    except Exception as error:  # for example, a model with a lambda as a hook
        log.debug("torchett: no recipe: %r", error)


class TensorPickler(pickle.Pickler):
    """Writes a tensor as a number, the arguments of `torch.empty_strided`, and its kind."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file)
        self._known: dict[int, tuple[int, Any]] = {}  # holds the tensors, so that ids stay unique
        self.devices: set[str] = set()
        self.nbytes = 0

    @classmethod
    def of(cls, value: Any) -> "TensorPickler":
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
        is_parameter = type(value) is torch.nn.Parameter
        if not (is_parameter or type(value) is torch.Tensor) or value.layout != torch.strided:
            raise pickle.PicklingError(f"a {type(value).__name__} of layout {value.layout}")
        if id(value) not in self._known:
            self._known[id(value)] = len(self._known), value
            self.devices.add(value.device.type)
            self.nbytes += value.nbytes
        like = (tuple(value.shape), value.stride(), value.dtype, str(value.device))
        return self._known[id(value)][0], like, value.requires_grad, is_parameter


class ZerosUnpickler(pickle.Unpickler):
    """Makes the tensors of a TensorPickler again, filled with zeros: these are valid indices."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._made: dict[int, Any] = {}

    @classmethod
    def of(cls, data: bytes) -> Any:
        return cls(data).load()

    def persistent_load(self, written: Any) -> Any:
        number, (shape, stride, dtype, device), requires_grad, is_parameter = written
        if number not in self._made:
            torch = sys.modules["torch"]
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()
            if is_parameter:
                tensor = torch.nn.Parameter(tensor, requires_grad=requires_grad)
            self._made[number] = tensor.requires_grad_(requires_grad)
        return self._made[number]


def _captures_cuda_graphs(backend: Any) -> bool:
    config = getattr(backend, "config", None)
    own = config.get("triton.cudagraphs") if isinstance(config, dict) else None
    inductor: Any = sys.modules["torch._inductor.config"]
    return bool(inductor.triton.cudagraphs if own is None else own)


def settings(torch: Any) -> dict[str, Any]:
    """This thread's settings that compiled code has guards on."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    matmul = torch.backends.cuda.matmul
    return {
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
        "autocast": {kind: torch.get_autocast_dtype(kind) for kind in kinds},
        "the device": torch.cuda.current_device() if torch.cuda.is_initialized() else None,
        "reduced precision": (
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction,
        ),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def _configs() -> dict[str, dict[str, Any]]:
    """The compiler's settings that are plain values."""
    plain = (bool, int, float, str, type(None))
    copies = {name: sys.modules[name].get_config_copy() for name in CONFIGS}
    return {
        name: {key: value for key, value in copy.items() if isinstance(value, plain)}
        for name, copy in copies.items()
    }
