"""torch's hash of its own sources, a part of every key of its caches: remembered.

    torch     2,300 files read and hashed, in each process that compiles     ▓▓▓▓▓▓▓▓
    here      are all as old and as long as they were? then it is the same   ▓

It lies where bytecode is kept (`bundle.py`), and is written by a process that has time.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from types import ModuleType

from torchett.launch.imports.bundle import shared_folder
from torchett.launch.imports.bytecode import is_ours, is_private

_NO_SOURCES = ("include", "lib", "share", "bin", "__pycache__")
_HASHED = (".py", ".cpp", ".ld", ".so")  # what torch reads, and a little more


def recall(codecache: ModuleType) -> None:
    """Tell torch, if it would come to the same."""
    folder, root = shared_folder(), codecache._TORCH_PATH
    if folder is None or not hasattr(codecache.torch_key, "set"):
        return
    try:
        with open(_path(folder, root), encoding="ascii") as file:
            known = json.load(file) if is_ours(os.fstat(file.fileno())) else {}
        if known["sources"] == stamp(root):
            codecache.torch_key.set(bytes.fromhex(known["key"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # torch will hash them


def remember() -> None:
    """Write down what torch has hashed in this process."""
    from pathlib import Path

    from torch._inductor import codecache

    from torchett.store import write_whole

    folder, root = shared_folder(), codecache._TORCH_PATH
    if folder is None or not is_private(folder):
        return
    path = Path(_path(folder, root))
    said = json.dumps({"sources": stamp(root), "key": codecache.torch_key().hex()}).encode()
    if not path.exists() or path.read_bytes() != said:
        write_whole(path, said, mode=0o600, durable=False)


def stamp(root: str) -> str:
    """Another one whenever a source in this folder is."""
    sha = hashlib.sha256()
    for path, source in stamped(root):
        sha.update(f"{path} {source.st_mtime_ns} {source.st_size}\n".encode())
    return sha.hexdigest()


def stamped(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """All that torch may hash, in an order that does not change."""
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as found:
            for entry in sorted(found, key=lambda entry: entry.name):
                if entry.name.endswith(_HASHED):
                    yield entry.path, entry.stat()
                elif entry.name not in _NO_SOURCES and entry.is_dir():
                    folders.append(entry.path)


def _path(folder: str, root: str) -> str:
    return os.path.join(folder, f"torch-{hashlib.sha256(root.encode()).hexdigest()[:16]}.json")
