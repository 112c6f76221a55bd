"""TorchRec's shard metadata without a gather for every table.

A rank describes a sharded table by the shards of all ranks. TorchRec's EmbeddingCollection gathers
them, with one all_gather_object for each table, although the sharding plan on every rank has them.
Managed collision modules and object pools gather once for every buffer.

    stock    │ gather t0 │ gather t1 │ … │ gather t63 │
    ours     │ built from the plan: t0 … t63 │ one gather of 32 bytes: all ranks built the same │

    with local_shard_metadata():
        model = DistributedModelParallel(…)

The result is always that of TorchRec. Each rank checks that its own shards agree with the plan, and
the ranks compare digests of what they built. If a check fails on any rank, or if there is no plan,
all ranks gather the metadata of all tables at once, and torch's own functions build the result. A
module needs one or two object collectives, instead of one for each table.
"""

import functools
import hashlib
import importlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torchett.record.api import note
from torchett.record.patches import install

log = logging.getLogger("torchett")

Metadata = Any  # torch's ShardedTensorMetadata
Expect = Callable[[Any, "_Placeholder"], Metadata]
"""The metadata of a whole table, from the data of its module."""


@dataclass(slots=True, kw_only=True)
class Saved:
    """Counts inside a `with local_shard_metadata()`."""

    modules: int = 0
    tensors: int = 0
    from_plan: int = 0  # tensors described without a gather
    gathers: int = 0  # object collectives that were called


@contextmanager
def local_shard_metadata(*, verify: bool = True) -> Iterator[Saved]:
    """In the body, TorchRec's sharded modules describe their tables with few gathers, or none.

    All ranks must enter it around the same modules. With `verify=False` the ranks do not compare
    what they built, so there is no gather; a rank whose shards differ from the plan raises.
    """
    saved = Saved()
    with ExitStack() as patches:
        try:
            _install(patches, saved, verify)
        except (ImportError, AttributeError, KeyError) as error:
            patches.close()
            log.warning("torchett: local shard metadata is off: %s", error)
        yield saved
    if saved.modules:
        note("shard_metadata", {name: getattr(saved, name) for name in Saved.__slots__})


def _install(patches: ExitStack, saved: Saved, verify: bool) -> None:
    def patch(module: str, path: str, make: Callable[[Any], Any]) -> None:
        found: Any = importlib.import_module(module)
        if hasattr(found, path.partition(".")[0]):  # missing in some versions of TorchRec
            made = install(f"{module}:{path}", make, lever="shard-metadata")
            if made is not None:
                patches.callback(made.remove)

    def initializing(original: Callable[..., Any]) -> Callable[..., Any]:
        def init_from_local_shards(cls: Any, local_shards: Any, *size: Any, **kwargs: Any) -> Any:
            batch = _now.batch
            if batch is None or cls is not _sharded() or not batch.takes(size, kwargs):
                return original(cls, local_shards, *size, **kwargs)
            return batch.add(local_shards, size, kwargs.get("process_group"))

        return init_from_local_shards

    sharded_tensor = "torch.distributed._shard.sharded_tensor.api"
    patch(sharded_tensor, "ShardedTensor._init_from_local_shards", initializing)

    def in_table(table: str, expect: Expect | None) -> Callable[[Any], Any]:
        return functools.partial(_in_table, table, expect, saved, verify)

    patch(
        "torchrec.distributed.embedding",
        "ShardedEmbeddingCollection._initialize_torch_state",
        in_table("_model_parallel_name_to_sharded_tensor", _from_sharding_plan),
    )
    patch(
        "torchrec.distributed.mc_modules",
        "ShardedManagedCollisionCollection._initialize_torch_state",
        in_table("_model_parallel_mc_buffer_name_to_sharded_tensor", None),
    )
    for module, name in (
        ("rw_tensor_pool_sharding", "TensorPoolRwSharding"),
        ("rw_kjt_pool_sharding", "KeyedJaggedTensorPoolRwSharding"),
        ("rw_kjt_pool_sharding", "KeyedJaggedTensorPoolRwReplicatedSharding"),
    ):
        states = functools.partial(_in_states, saved, verify)
        where = f"torchrec.distributed.sharding.{module}"
        patch(where, f"{name}.get_sharded_states_to_register", states)


def _sharded() -> Any:
    from torch.distributed._shard.sharded_tensor.api import ShardedTensor

    return ShardedTensor


def _in_table(
    table: str, expect: Expect | None, saved: Saved, verify: bool, original: Any
) -> Callable[..., None]:
    """Wraps the method that fills `self.<table>` with sharded tensors: all are made at its end."""

    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        with _batch(self, expect, saved, verify) as batch:
            original(self, *args, **kwargs)
            made = batch.make_all()
            tensors = getattr(self, table)
            for name, one in tensors.items():
                if isinstance(one, _Placeholder):
                    tensors[name] = made[one.index]

    return initialize


def _in_states(saved: Saved, verify: bool, original: Any) -> Callable[..., Iterator[Any]]:
    """Wraps the method that yields sharded tensors one by one: it yields when all are made."""

    @functools.wraps(original)
    def states(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with _batch(self, None, saved, verify) as batch:
            found = list(original(self, *args, **kwargs))
            made = batch.make_all()
        for name, one in found:
            yield name, made[one.index] if isinstance(one, _Placeholder) else one

    return states


class _Now(threading.local):
    batch: "_Batch | None" = None


_now = _Now()


@contextmanager
def _batch(owner: Any, expect: Expect | None, saved: Saved, verify: bool) -> Iterator["_Batch"]:
    outer, _now.batch = _now.batch, _Batch(owner=owner, expect=expect, saved=saved, verify=verify)
    try:
        yield _now.batch
    finally:
        _now.batch = outer


@dataclass(slots=True, kw_only=True)
class _Placeholder:
    """Stands for a sharded tensor until that is made."""

    index: int
    local_shards: Any
    size: Any


@dataclass(slots=True, kw_only=True)
class _Batch:
    """The sharded tensors of one module, in an order that is the same on all ranks."""

    owner: Any
    expect: Expect | None
    saved: Saved
    verify: bool
    wanted: list[_Placeholder] = field(default_factory=list)
    group: Any = None

    def takes(self, size: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether a tensor with these arguments joins the batch; the same on all ranks."""
        import torch.distributed as dist

        group = kwargs.get("process_group")
        known = kwargs.keys() <= {"process_group", "init_rrefs"} and not kwargs.get("init_rrefs")
        same = not self.wanted or group is self.group
        return known and same and None not in size and dist.get_world_size(group) > 1

    def add(self, local_shards: Any, size: Sequence[Any], group: Any) -> _Placeholder:
        from torch.distributed._shard.sharded_tensor.api import _flatten_tensor_size

        self.group = group
        size = _flatten_tensor_size(size)
        one = _Placeholder(index=len(self.wanted), local_shards=local_shards, size=size)
        self.wanted.append(one)
        return one

    def make_all(self) -> list[Any]:
        """The sharded tensors for all placeholders."""
        if not self.wanted:
            return []
        self.saved.modules += 1
        self.saved.tensors += len(self.wanted)
        if self.expect is not None:
            made = self._from_plan()
            if made is not None:
                self.saved.from_plan += len(made)
                return made
        return self._gathered()

    def _from_plan(self) -> list[Any] | None:
        """The tensors made from the module's data; None if the ranks do not agree."""
        assert self.expect is not None
        digest, made = "", []
        try:
            found = [self.expect(self.owner, one) for one in self.wanted]
            made = [self._make(o, m) for o, m in zip(self.wanted, found, strict=True)]
            digest = hashlib.sha256("\n".join(map(_canonical, found)).encode()).hexdigest()
        except Exception as error:
            if not self.verify:
                raise
            log.info("torchett: shard metadata is gathered: %s", error)
        if not self.verify:
            return made
        digests = self._all_gather(digest)
        return made if digest and all(other == digest for other in digests) else None

    def _gathered(self) -> list[Any]:
        """The tensors made by torch's functions from all ranks' metadata, with one gather."""
        import torch.distributed as dist
        from torch.distributed._shard.sharded_tensor.utils import (
            build_global_metadata,
            build_metadata_from_local_shards,
        )

        group = self.group if self.group is not None else dist.group.WORLD
        mine = [
            build_metadata_from_local_shards(one.local_shards, one.size, dist.get_rank(), group)
            if one.local_shards
            else None
            for one in self.wanted
        ]
        everyones = self._all_gather(mine)
        return [
            self._make(one, build_global_metadata([rows[one.index] for rows in everyones]))
            for one in self.wanted
        ]

    def _make(self, one: _Placeholder, metadata: Metadata) -> Any:
        from torch.distributed._shard.sharded_tensor.api import ShardedTensor

        return ShardedTensor._init_from_local_shards_and_global_metadata(
            one.local_shards, metadata, process_group=self.group
        )

    def _all_gather(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        self.saved.gathers += 1
        everyones: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(everyones, value, group=self.group)
        return everyones


def _from_sharding_plan(module: Any, one: _Placeholder) -> Metadata:
    """The metadata of a table from an EmbeddingCollection's sharding plan, equal to a gather's.

    Raises if the plan does not have the table, or differs from this rank's own shards.
    """
    import torch.distributed as dist
    from torch.distributed._shard.sharded_tensor import ShardedTensorMetadata
    from torch.distributed._shard.sharded_tensor.metadata import TensorProperties
    from torch.distributed._shard.sharding_spec import ShardMetadata
    from torchrec.modules.embedding_configs import data_type_to_dtype

    shards_of = module._model_parallel_name_to_local_shards
    name = next(name for name, shards in shards_of.items() if shards is one.local_shards)
    config, sharding = module._table_name_to_config[name], module.module_sharding_plan[name]
    if getattr(config, "use_virtual_table", False):
        raise ValueError(f"{name} is a virtual table")
    # Ranks in the order of the group, a rank's own shards in the plan's order.
    order = {rank: i for i, rank in enumerate(dist.get_process_group_ranks(module_group(module)))}
    shards = sorted(sharding.sharding_spec.shards, key=lambda shard: order[shard.placement.rank()])
    shards = [
        ShardMetadata(
            shard_offsets=list(shard.shard_offsets),
            shard_sizes=list(shard.shard_sizes),
            placement=shard.placement,
        )
        for shard in shards
    ]
    me = dist.get_rank()
    if [s for s in shards if s.placement.rank() == me] != [s.metadata for s in one.local_shards]:
        raise ValueError(f"{name} is not sharded as in the plan")
    tensor = one.local_shards[0].tensor if one.local_shards else None
    properties = TensorProperties(
        dtype=data_type_to_dtype(config.data_type) if tensor is None else tensor.dtype,
        requires_grad=False if tensor is None else tensor.requires_grad,
        pin_memory=False if tensor is None else tensor.is_pinned(),
    )
    return ShardedTensorMetadata(
        shards_metadata=shards, size=one.size, tensor_properties=properties
    )


def module_group(module: Any) -> Any:
    """The group over which a sharded module is sharded."""
    env = module._env
    return getattr(env, "sharding_pg", None) or env.process_group


def _canonical(metadata: Metadata) -> str:
    """Metadata as text, equal for equal metadata only."""
    shards = [(s.shard_offsets, s.shard_sizes, str(s.placement)) for s in metadata.shards_metadata]
    return repr((shards, tuple(metadata.size), str(metadata.tensor_properties)))
