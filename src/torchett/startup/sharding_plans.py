"""Sharding plans of TorchRec, kept from one start to the next.

Rank 0's planner searches while all other ranks wait, and it finds the same plan every time the
same model starts on the same machines.

    first start    rank 0 │ plan ─────────── │ keep │ broadcast │
    later          rank 0 │ read │ broadcast │

    with cached_sharding_plans("plans/"):
        model = DistributedModelParallel(…)         # or planner.collective_plan(…)

A plan is found again by all that it was made from: the tables and every other parameter's shape,
the sharders, the planner's settings with its topology and constraints, and the versions of torch
and TorchRec. What cannot be put into words (an object without attributes, say) is not looked up,
and the planner plans as ever. Only the planning rank reads and writes the folder, so it need not
be shared, and ranks cannot come to differ. The files are pickles: keep the folder as safe as code.
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
from torchett.store import write_whole

log = logging.getLogger("torchett")

_MAGIC = b"torchett sharding plan 1\n"
_DEEPEST = 30


@dataclass(slots=True, kw_only=True)
class Found:
    """How often a plan was found, made anew, or could not be looked up."""

    hits: int = 0
    misses: int = 0
    unnamed: int = 0


@contextmanager
def cached_sharding_plans(folder: str | Path) -> Iterator[Found]:
    """In the body, EmbeddingShardingPlanner looks into `folder` before it plans."""
    found = Found()
    try:
        from torchrec.distributed.planner import EmbeddingShardingPlanner as Planner
    except ImportError as error:
        log.warning("torchett: sharding plans are not cached: %s", error)
        yield found
        return
    theirs = Planner.plan

    @functools.wraps(theirs)
    def plan(self: Any, module: Any, sharders: Any) -> Any:
        return _looked_up(Path(folder), found, self, module, sharders, theirs)

    Planner.plan = plan
    try:
        yield found
    finally:
        Planner.plan = theirs
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
        log.warning("torchett: the sharding plan was not kept: %s", error)
    return made


def plan_key(planner: Any, module: Any, sharders: Any) -> str:
    """A name for the plan, equal if all that it is made from is; ValueError where words fail."""
    import torch
    import torchrec

    kinds = tuple(sharder.module_type for sharder in sharders)
    described = {
        "torch": torch.__version__,
        "torchrec": torchrec.__version__,
        "planner": in_words(planner),
        "sharders": in_words(sharders),
        "tensors": [
            (name, list(tensor.shape), str(tensor.dtype))
            for named in (module.named_parameters(), module.named_buffers())
            for name, tensor in named
        ],
        "modules": [
            (name, in_words(type(one)), in_words(_settings(one)))
            for name, one in module.named_modules()
            if isinstance(one, kinds)
        ],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


def _settings(module: Any) -> list[Any]:
    """A shardable module's own settings: its tables' configurations and the like, no tensors."""
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


def in_words(value: Any, depth: int = 0) -> Any:
    """A value as JSON that is equal if and only if the value is; ValueError if there is none."""
    if depth > _DEEPEST:
        raise ValueError(f"a {type(value).__qualname__} goes too deep, or in circles")

    def further(part: Any) -> Any:
        return in_words(part, depth + 1)

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
    raise ValueError(f"a {_name(type(value))} has no words")


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _read(path: Path) -> Any:
    """The plan in a file; None if there is none, or not a whole one."""
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
    """Keep a plan."""
    body = pickle.dumps(plan)
    write_whole(path, _MAGIC + hashlib.sha256(body).digest() + body, durable=False)
