"""Checkpoints to and from the files of others: safetensors, torch.save, DCP, Hugging Face folders.

    export   step-00000039/  →  model.safetensors · state.pt
    import   model.safetensors (or a folder of them) · state.pt · a DCP folder  →  step-00000000/

A file is written beside its place and renamed once it is whole; what is imported is committed like
any other checkpoint.
"""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchett.levers.checkpoint.errors import CheckpointError
from torchett.levers.checkpoint.stored.storage import named_storage, token

_BY_ENDING = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".bin": "torch"}


def kind_of_file(path: Path) -> str:
    """What an exported file is, by its ending."""
    kind = _BY_ENDING.get(path.suffix)
    if kind is None:
        raise CheckpointError(
            f"{path}: expected a file that ends in {', '.join(_BY_ENDING)}, found {path.suffix!r}"
        )
    return kind


def export(state: dict[str, Any], path: Path, key: str | None) -> tuple[int, int]:
    """How many tensors were written, and how many values that safetensors cannot hold were not.

    With a `key` only what lies under it is written, without its name; safetensors has flat names.
    """
    import torch

    kind = kind_of_file(path)
    part = state if key is None else state.get(key)
    if kind == "safetensors":
        save_file = _safetensors().save_file
        flat = _flat(part if isinstance(part, Mapping) else {str(key): part})
        tensors = {n: t.contiguous() for n, t in flat.items() if isinstance(t, torch.Tensor)}
        if not tensors:
            raise CheckpointError(f"there is no tensor under {key!r} to export to {path}")
        with _whole(path) as draft:
            save_file(tensors, draft, metadata={"format": "pt"})
        return len(tensors), len(flat) - len(tensors)
    with _whole(path) as draft:
        torch.save(part, draft)
    flat = _flat(part) if isinstance(part, Mapping) else {"": part}
    return sum(isinstance(value, torch.Tensor) for value in flat.values()), 0


class _whole:  # noqa: N801
    """A file beside `path`, renamed to it when all is well, deleted otherwise."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> str:
        folder = self._path.absolute().parent
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: expected a folder to write to")
        handle, self._draft = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=folder)
        os.close(handle)
        return self._draft

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            os.unlink(self._draft)
            return
        with open(self._draft, "rb") as stream:
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(self._draft, 0o666 & ~mask)
        os.replace(self._draft, self._path)


def read_foreign(source: Path, key: str, trust: bool) -> dict[str, Any]:
    """The state in a foreign file or folder; a flat one is put under `key`."""
    if not source.exists():
        raise CheckpointError(f"{source} does not exist: expected a file or folder to import")
    if (source / ".metadata").exists():
        state = _dcp(source)
    elif source.is_dir():
        state = _hugging_face(source, trust)
    elif source.suffix == ".safetensors":
        state = dict(_safetensors().load_file(source))
    else:
        state = _torch_file(source, trust)
    return state if _is_nested(state) else {key: state}


def _is_nested(state: Mapping[str, Any]) -> bool:
    """Whether it is a state of several parts, rather than one module's tensors."""
    return any(isinstance(value, Mapping) for value in state.values())


def _dcp(folder: Path) -> dict[str, Any]:
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state: dict[str, Any] = {}
    try:
        _load_state_dict(
            state,
            storage_reader=FileSystemReader(folder),
            planner=_EmptyStateDictLoadPlanner(),
            no_dist=True,
        )
    except BaseException as error:  # CheckpointException is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        said = str(error).strip().splitlines()
        raise CheckpointError(
            f"{folder} cannot be read as a DCP checkpoint: {said[-1] if said else error!r}"
        ) from None
    return state


def _hugging_face(folder: Path, trust: bool) -> dict[str, Any]:
    """The tensors of all weight files of a folder."""
    parts = sorted(folder.glob("*.safetensors"))
    if not parts:
        parts = sorted(p for p in folder.glob("*.bin") if re.match("pytorch_model", p.name))
    if not parts:
        raise CheckpointError(
            f"{folder}: expected .metadata (DCP), *.safetensors or pytorch_model*.bin, found none"
        )
    state: dict[str, Any] = {}
    for part in parts:
        is_safe = part.suffix == ".safetensors"
        found = _safetensors().load_file(part) if is_safe else _torch_file(part, trust)
        twice = state.keys() & found.keys()
        if twice:
            raise CheckpointError(f"{part} has {min(twice)!r}, which another file has, too")
        state.update(found)
    return state


def _torch_file(path: Path, trust: bool) -> dict[str, Any]:
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=not trust)
    except Exception as error:
        hint = "" if trust else "; if you trust it, --trust lets it run its own code"
        said = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise CheckpointError(
            f"{path} cannot be loaded by torch.load: {said[:200]}{hint}"
        ) from None
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{path}: expected a dict, found a {type(state).__name__}")
    return dict(state)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise CheckpointError("safetensors is missing: pip install safetensors") from None
    return safetensors.torch


def write(state: dict[str, Any], where: str, step: int) -> str:
    """The path of a new checkpoint that holds `state` as the one after `step`."""
    from torchett.levers.checkpoint.state.pieces import Collector
    from torchett.levers.checkpoint.stored.one_writer import one_writer
    from torchett.levers.checkpoint.stored.retention import Keep
    from torchett.levers.checkpoint.upload.upload import Job, Target, upload

    storage = named_storage(where)
    pieces = Collector(0).collect(state)
    keep = Keep(last=10**9)
    job = Job(
        step=step,
        token=token(),
        generation=0,
        rank=0,
        world_size=1,
        target=Target(where=storage.root, remote=None, keep=keep, keep_remote=keep),
        plan_id=pieces.plan_id,
        plan=pieces.plan,
        slots=None,
        blobs=pieces.blobs,
        metric=None,
        per_rank=(),
    )
    writer = one_writer(storage)
    other = writer.take()
    if other is not None:
        raise CheckpointError(f"{where} is where {other} saves its checkpoints: import elsewhere")
    try:
        storage.make("")
        tensors = [tensor.detach().contiguous() for tensor in pieces.tensors]
        outcome = upload(job, tensors, None, lambda name: None)
    finally:
        writer.release()
    if outcome.error is not None:
        raise CheckpointError(f"{where} cannot be written: {outcome.error}")
    return f"{storage.root.rstrip('/')}/{outcome.name}"


def _flat(nested: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found
