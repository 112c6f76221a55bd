"""The pieces of a state: what DCP plans to write of it, and the tensors and bytes behind that.

The plan is DCP's own and is kept while the state keeps its form: planning costs more than
everything else that a save does in the loop. Every `state_dict` is called at every save, with all
its hooks; only names are not made anew.
"""

import io
import pickle
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchett.levers.checkpoint.errors import CheckpointError
from torchett.levers.checkpoint.state import optimizer_names, per_rank
from torchett.levers.checkpoint.stored.storage import token
from torchett.levers.checkpoint.torch_names import flatten_state_dict


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A state at one moment: `tensors[i]` and `blobs[i]` belong to the i-th item of their kind."""

    plan: Any  # torch.distributed.checkpoint.SavePlan
    plan_id: str  # another one whenever the plan is another
    tensors: list[Any]  # live: they change with the next step
    blobs: list[bytes]
    per_rank: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors)


@dataclass(slots=True)
class _Known:
    """The form of the last state, and its plan; items with the place of their leaf."""

    form: list[Any] = field(default_factory=list)
    plan: Any = None
    plan_id: str = ""
    tensor_items: list[tuple[int, Any]] = field(default_factory=list)
    blob_items: list[tuple[int, Any]] = field(default_factory=list)


class Collector:
    """Makes pieces of states; remembers the plan, and how bytes that did not change look."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._known = _Known()
        self._names = optimizer_names.ParameterNames()
        self._leaves = leaves
        self._blobs: dict[str, tuple[bytes, bytes]] = {}

    def collect(self, state: Mapping[str, Any]) -> Pieces:
        """The pieces of `state`, a mapping of names to Stateful objects, tensors and values."""
        import torch

        nested: dict[str, Any] = {}
        own: list[str] = []
        for key, value in state.items():
            if per_rank.is_per_rank(value):
                own.append(key)
                nested[key] = {per_rank.name(self._rank): per_rank.pack(value)}
            elif isinstance(value, torch.optim.Optimizer):
                nested[key] = None  # its place; FSDP2's modules reshard in their state_dict, above
            elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
                nested[key] = value.state_dict()
            else:
                nested[key] = value
        for key, value in state.items():
            if isinstance(value, torch.optim.Optimizer):
                nested[key] = optimizer_names.by_name(value, self._names.of(value, state))
        found, form = self._leaves(nested)
        if form != self._known.form:
            found = self._plan(state, nested, found, form)
        known, plain = self._known, torch.Tensor
        return Pieces(
            plan=known.plan,
            plan_id=known.plan_id,
            tensors=[
                leaf if type(leaf := found[at]) is plain else _local(leaf, item)
                for at, item in known.tensor_items
            ],
            blobs=[self._blob(item.index.fqn, found[at]) for at, item in known.blob_items],
            per_rank=tuple(own),
        )

    def _plan(
        self, state: Mapping[str, Any], nested: dict[str, Any], found: list[Any], form: list[Any]
    ) -> list[Any]:
        """Plan anew; the leaves, by DCP's own reckoning if ours differs from it."""
        from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
        from torch.distributed.checkpoint.planner import WriteItemType

        from torchett.levers.checkpoint.upload.upload_plan import RankPlan

        official, mappings = flatten_state_dict(nested)
        for name, value in official.items():
            _refuse(name, value)
        if list(map(id, official.values())) != list(map(id, found)):
            self._leaves = _official_leaves
            found, form = _official_leaves(nested)
        plan = create_default_local_save_plan(official, self._rank == 0)
        place = {name: at for at, name in enumerate(official)}
        placed = [(place[item.index.fqn], item) for item in plan.items]
        meshes = {name: mesh for name, value in official.items() if (mesh := _mesh_of(value))}
        everywhere = frozenset(name for name, mesh in meshes.items() if _spans_all_ranks(mesh))
        self._known = _Known(
            form=form,
            plan=RankPlan(
                items=plan.items,
                planner_data=mappings,
                buffers=_buffers(state),
                meshes={name: zlib.crc32(repr(mesh).encode()) for name, mesh in meshes.items()},
                sharded=everywhere,
            ),
            plan_id=token(),
            tensor_items=[(at, i) for at, i in placed if i.type != WriteItemType.BYTE_IO],
            blob_items=[(at, i) for at, i in placed if i.type == WriteItemType.BYTE_IO],
        )
        return found

    def _blob(self, name: str, value: Any) -> bytes:
        """`value` as DCP writes it; made anew only if it changed."""
        import torch

        told = pickle.dumps(value) if not isinstance(value, bytes) else value
        known = self._blobs.get(name)
        if known is not None and known[0] == told:
            return known[1]
        buffer = io.BytesIO()
        torch.save(value, buffer)
        self._blobs[name] = (told, buffer.getvalue())
        return self._blobs[name][1]


def leaves(nested: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """The leaves in the order of DCP's flatten_state_dict, and the form: what a plan depends on.

    The form has the keys of each mapping, the length of each list and the shape of each leaf in
    the order of the walk, so that the same form means the same names.

        {"a": {"x": 7, "y": [t]}}   →   [7, t],  [("a",), ("x", "y"), None, 1, Tensor, shape, dtype]
    """
    import torch

    found: list[Any] = []
    form: list[Any] = []
    tensor = torch.Tensor
    values = frozenset((int, float, str, bool, bytes, type(None)))

    def is_leaf(value: list[Any]) -> bool:
        for entry in value:
            if isinstance(entry, list) and not is_leaf(entry):
                return False
            if isinstance(entry, Mapping | tensor):
                return False
        return True

    def walk(value: Any) -> None:
        inner: Iterable[Any]
        if type(value) is dict or isinstance(value, Mapping):
            form.append(tuple(map(str, value)))
            inner = value.values()
        elif isinstance(value, list) and not is_leaf(value):
            form.append(len(value))
            inner = value
        else:
            found.append(value)
            form.extend(_shape_of(value))
            return
        for one in inner:
            kind = type(one)
            if kind is tensor:
                found.append(one)
                form.extend((kind, one.shape, one.dtype))
            elif kind in values:
                found.append(one)
                form.append(None)
            else:
                walk(one)

    walk(nested)
    return found, form


def _official_leaves(nested: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """The same by DCP's own function, with each name in the form."""
    flat, _ = flatten_state_dict(dict(nested))
    return list(flat.values()), [(name, *_shape_of(value)) for name, value in flat.items()]


def _shape_of(value: Any) -> tuple[Any, ...]:
    """What a plan depends on."""
    import torch

    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return (kind, value.shape, value.dtype)
    if isinstance(value, torch.Tensor):
        return (kind, value.shape, value.dtype, getattr(value, "placements", None))
    if hasattr(value, "local_shards"):  # torch's ShardedTensor, TorchRec's state
        return (kind, value.size(), tuple(s.tensor.shape for s in value.local_shards()))
    return (None,)


def _local(value: Any, item: Any) -> Any:
    """The tensor on this rank that an item of a leaf stands for."""
    import torch
    from torch.distributed.checkpoint.utils import find_state_dict_object

    local = getattr(value, "_local_tensor", None)
    if type(local) is torch.Tensor:
        return local
    return find_state_dict_object({item.index.fqn: value}, item.index).detach()


def _refuse(name: str, value: Any) -> None:
    """CheckpointError for a leaf whose bytes cannot be told or that would lose its state."""
    import torch

    if isinstance(value, list | tuple | torch.nn.Module | torch.optim.Optimizer):
        parts = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(part, torch.nn.Module | torch.optim.Optimizer) for part in parts):
            raise CheckpointError(
                f"{name!r} holds modules or optimizers in a list or dict: give each a key of its "
                "own in the state"
            )
    local = getattr(value, "_local_tensor", value)
    if isinstance(local, torch.Tensor) and hasattr(local, "__tensor_flatten__"):
        raise CheckpointError(
            f"{name!r} is a {type(local).__name__}, a tensor made of other tensors, which cannot "
            "be saved: keep its state in plain tensors, or convert it in a state_dict hook"
        )


def _buffers(state: Mapping[str, Any]) -> frozenset[str]:
    """Names of the buffers of modules: what a forward pass of this rank alone may change."""
    import torch

    return frozenset(
        f"{key}.{name}"
        for key, module in state.items()
        if isinstance(module, torch.nn.Module)
        for name, _ in module.named_buffers(remove_duplicate=False)
    )


def _mesh_of(value: Any) -> tuple[int, ...]:
    """Ranks of a DTensor's mesh; none of any other value."""
    mesh = getattr(value, "device_mesh", None)
    return tuple(mesh.mesh.flatten().tolist()) if hasattr(value, "_local_tensor") and mesh else ()


def _spans_all_ranks(mesh: tuple[int, ...]) -> bool:
    import torch.distributed as dist

    return bool(dist.is_initialized() and len(mesh) == dist.get_world_size())
