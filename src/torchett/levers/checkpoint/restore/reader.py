"""DCP's reader, on any storage, out of what was read ahead.

Tensors are viewed where the file's bytes lie in memory, and all copied by one call, which leaves
the interpreter to a compile that runs meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.planner import LoadItemType

from torchett.levers.checkpoint.restore.prefetch import Prefetch
from torchett.levers.checkpoint.state import saved_tensor
from torchett.levers.checkpoint.stored.catalog import Entry
from torchett.levers.checkpoint.torch_names import copy_all, narrow


class VerifiedReader(FileSystemReader):  # type: ignore[misc]
    """Reads a checkpoint that was verified."""

    def __init__(self, entry: Entry, prefetch: Prefetch) -> None:
        super().__init__("/")
        self.path = entry.name
        self.fs = _Files(entry, prefetch)

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Copy what can be viewed; DCP loads the rest."""
        rest, copies = [], []
        for item in plan.items:
            found = self._view(item) if item.type == LoadItemType.TENSOR else None
            if found is None:
                rest.append(item)
                continue
            target = planner.resolve_tensor(item).detach()
            if target.size() != found.size():
                raise ValueError(
                    f"{item.dest_index.fqn}: expected size {tuple(target.size())}, "
                    f"found {tuple(found.size())}"
                )
            copies.append((item, target, found))
        if copies:
            items, targets, views = zip(*copies, strict=True)
            copy_all(targets, views)
            for item, target in zip(items, targets, strict=True):
                planner.commit_tensor(item, target)
        return super().read_data(replace(plan, items=rest), planner)

    def _view(self, item: Any) -> Any:
        """The part of a saved tensor that this item wants; None if it has to be loaded."""
        at = self.storage_data[item.storage_index]
        if getattr(at, "transform_descriptors", None):
            return None
        data = self.fs.memory(at.relative_path)
        whole = None if data is None else saved_tensor.view(data, at.offset, at.length)
        if whole is None:
            return None
        return narrow(whole, item.storage_offsets, item.lengths)


class _Files:
    """What FileSystemReader asks of a file system."""

    def __init__(self, entry: Entry, prefetch: Prefetch) -> None:
        self._entry, self._prefetch = entry, prefetch
        self._memory: dict[str, saved_tensor.Buffer | None] = {}

    def memory(self, path: str) -> saved_tensor.Buffer | None:
        """The bytes of a file, without reading them; None where that cannot be."""
        if path not in self._memory:
            self._memory[path] = self._prefetch.memory(self._entry, path)
        return self._memory[path]

    def concat_path(self, path: str, suffix: str) -> str:
        return suffix

    @contextmanager
    def create_stream(self, path: str, mode: str) -> Iterator[Any]:
        with self._prefetch.open(self._entry, path) as stream:
            yield stream

    def exists(self, path: str) -> bool:
        return self._entry.storage.exists(f"{self._entry.name}/{path}")
