"""Sharding plans of TorchRec, stored from one start to the next.

All ranks wait while rank 0's planner searches for a plan. For the same model on the same machines
it finds the same plan each time.

    first start    rank 0 │ plan ─────────── │ keep │ broadcast │
    later          rank 0 │ read │ broadcast │

    with cached_sharding_plans("plans/"):
        model = DistributedModelParallel(…)         # or planner.collective_plan(…)

The key of a plan is a hash of all its inputs: the shapes of tables and other parameters, the
sharders, the planner's settings with its topology and constraints, and the versions of torch and
TorchRec. If an input cannot be described (for example, an object without attributes), the planner
plans as usual. Only the planning rank reads and writes the folder. So the folder need not be
shared, and ranks cannot get different plans. The files are pickles: protect the folder like code.
"""

import enum
import functools
import hashlib
import json
import logging
import pickle
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from torchett.record.api import note
from torchett.record.patches import install
from torchett.store import write_whole

log = logging.getLogger("torchett")

LEVER = "sharding-plans"
_MAGIC = b"torchett sharding plan 1\n"
_DEEPEST = 30


@dataclass(slots=True, kw_only=True)
class Found:
    """How often a plan was found, was made, or had no key."""

    hits: int = 0
    misses: int = 0
    unnamed: int = 0


@contextmanager
def cached_sharding_plans(folder: str | Path) -> Iterator[Found]:
    """In the body, EmbeddingShardingPlanner reads `folder` before it plans."""
    found = Found()
    try:
        from torchrec.distributed.planner import EmbeddingShardingPlanner as Planner
    except ImportError as error:
        log.warning("torchett: sharding plans are not cached: %s", error)
        yield found
        return

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def plan(self: Any, module: Any, sharders: Any) -> Any:
            return _looked_up(Path(folder), found, self, module, sharders, original)

        return plan

    patch = install(f"{Planner.__module__}:{Planner.__qualname__}.plan", make, lever=LEVER)
    try:
        yield found
    finally:
        if patch is not None:
            patch.remove()
        if found.hits or found.misses or found.unnamed:
            counts = {name: getattr(found, name) for name in Found.__slots__}
            note("sharding_plans", counts)


def _looked_up(
    folder: Path, found: Found, planner: Any, module: Any, sharders: Any, plan: Callable[..., Any]
) -> Any:
    try:
        path = folder / f"{plan_key(planner, module, sharders)}.plan"
    except Exception as error:
        found.unnamed += 1
        log.warning("torchett: this sharding plan is not cached: %s", error)
        return plan(planner, module, sharders)
    known = _read(path)
    if known is not None:
        found.hits += 1
        return known
    found.misses += 1
    made = plan(planner, module, sharders)
    try:
        _write(path, made)
    except Exception as error:
        log.warning("torchett: the sharding plan was not stored: %s", error)
    return made


def plan_key(planner: Any, module: Any, sharders: Any) -> str:
    """The key of the plan, equal if all its inputs are; ValueError if one cannot be described."""
    import torch
    import torchrec

    kinds = tuple(sharder.module_type for sharder in sharders)
    described = {
        "torch": torch.__version__,
        "torchrec": torchrec.__version__,
        "planner": as_json(planner),
        "sharders": as_json(sharders),
        "tensors": [
            (name, list(tensor.shape), str(tensor.dtype))
            for named in (module.named_parameters(), module.named_buffers())
            for name, tensor in named
        ],
        "modules": [
            (name, as_json(type(one)), as_json(_settings(one)))
            for name, one in module.named_modules()
            if isinstance(one, kinds)
        ],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


def _settings(module: Any) -> list[Any]:
    """The settings of a shardable module, such as the configurations of its tables; no tensors."""
    import torch

    hidden = {"_parameters", "_buffers", "_modules"}
    return [
        (name, value)
        for name, value in sorted(vars(module).items())
        if name not in hidden
        and not name.endswith("_hooks")
        and not name.endswith("_hooks_with_kwargs")
        and not isinstance(value, torch.Tensor | torch.nn.Module)
    ]


def as_json(value: Any, depth: int = 0) -> Any:
    """JSON that is equal for equal values, and only for those; ValueError if there is none."""
    if depth > _DEEPEST:
        raise ValueError(f"a {type(value).__qualname__} is nested too deeply, or contains itself")

    def further(part: Any) -> Any:
        return as_json(part, depth + 1)

    if value is None or isinstance(value, bool | int | float | str):
        return value if not isinstance(value, enum.Enum) else [_name(type(value)), value.name]
    if isinstance(value, enum.Enum):
        return [_name(type(value)), value.name]
    if isinstance(value, Mapping):
        pairs = [[further(key), further(part)] for key, part in value.items()]
        return {_name(type(value)): sorted(pairs, key=json.dumps)}
    if isinstance(value, set | frozenset):
        return {"set": sorted(map(further, value), key=json.dumps)}
    if isinstance(value, list | tuple):
        return list(map(further, value))
    if isinstance(value, type):
        return _name(value)
    if isinstance(value, types.FunctionType):
        code = value.__code__
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        consts = [const for const in code.co_consts if not isinstance(const, types.CodeType)]
        body = hashlib.sha256(code.co_code).hexdigest()
        return [_name(value), body, further(consts), further(cells), further(value.__defaults__)]
    if isinstance(value, types.MethodType):
        return [_name(value.__func__), further(value.__self__)]
    if isinstance(value, types.BuiltinFunctionType):
        return _name(value)
    if isinstance(value, functools.partial):
        return ["partial", further(value.func), further(value.args), further(value.keywords)]
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device", "Size"):
        return str(value)
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return [_name(type(value)), further(parts)]
    if hasattr(value, "__dict__"):
        return [_name(type(value)), further(vars(value))]
    raise ValueError(f"a {_name(type(value))} cannot be described")


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _read(path: Path) -> Any:
    """The plan in a file; None if the file is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    try:
        body = data[len(_MAGIC) + 32 :]
        if not data.startswith(_MAGIC) or data[len(_MAGIC) :][:32] != hashlib.sha256(body).digest():
            raise ValueError("damaged")
        return pickle.loads(body)
    except Exception as error:
        log.warning("torchett: %s is not used: %s", path, error)
        return None


def _write(path: Path, plan: Any) -> None:
    """Store a plan."""
    body = pickle.dumps(plan)
    write_whole(path, _MAGIC + hashlib.sha256(body).digest() + body, durable=False)
