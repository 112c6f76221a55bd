"""The bytecode of all that a job's processes import, in one file.

    Python       torch.nn ─ which folder? ─ which file? ─ its bytecode: open, read, close    2,400 ×
    with this    torch.nn ─ is its source as it was? ──── its bytecode: read                 2,400 ×

    imports-….ett    pyc │ pyc │ … │ texts │ index │ where these two lie, their checksum

What is stale, damaged or not in it Python finds as ever. With it lie the texts that modules compile
while they are imported, methods of dataclasses: 2,600 in torch. It is written by a process that has
time, while the ranks train, and beside a shared library of compiled code if there is one: a node
that is new to the job finds both.
"""

import builtins
import marshal
import os
import struct
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from torchett.launch.imports.bytecode import is_ours, is_private

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder
else:  # its base does nothing, and takes 5 ms of every process to import
    MetaPathFinder = object

_END = struct.Struct("<QQI8s")  # where texts and index begin, the checksum of both, the format
_FORMAT = b"ettpyc/1"
_HEAD = struct.Struct("<4sIII")  # of a .pyc: Python's version, flags, the source's time and size
_ENOUGH = 0.95  # of what a process has imported: a bundle with less is written anew
_MOST_TEXTS = 20_000
_MOST_FILES = 4
_ABANDONED_S = 600.0


class Entry(NamedTuple):
    """Where the bytecode of a module lies, and for which source it was made."""

    source: str
    is_package: bool
    stamp: tuple[int, int]
    offset: int
    length: int
    checksum: int

    @property
    def folder(self) -> str:
        """Where its parent's modules lie."""
        return os.path.dirname(os.path.dirname(self.source) if self.is_package else self.source)

    def is_fresh(self) -> bool:
        """Whether its source is as it was."""
        try:
            return _stamp(os.stat(self.source)) == self.stamp
        except OSError:
            return False


def _stamp(source: os.stat_result) -> tuple[int, int]:
    """What Python compares."""
    return int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF


class Bundle:
    """A bundle to read from."""

    def __init__(self, path: str) -> None:
        """OSError or ValueError if there is none, or none that this user can trust."""
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.texts, self.index = self._tables()
        except BaseException:
            os.close(self._file)
            raise

    def _tables(self) -> tuple[dict[str, CodeType], dict[str, Entry]]:
        found = os.fstat(self._file)
        if not is_ours(found):
            raise ValueError("others can write to it")
        end = found.st_size - _END.size
        if end < 0:
            raise ValueError("it is too short")
        texts, index, checksum, form = _END.unpack(os.pread(self._file, _END.size, end))
        data = os.pread(self._file, end - texts, texts) if texts <= index <= end else b""
        if form != _FORMAT or zlib.crc32(data) != checksum:
            raise ValueError("it is damaged, or of another version")
        entries: dict[str, tuple[Any, ...]] = marshal.loads(data[index - texts :])
        index_of = {name: Entry(*entry) for name, entry in entries.items()}
        return marshal.loads(data[: index - texts]), index_of

    def bytecode(self, name: str) -> bytes | None:
        """What a .pyc file of this module would hold; None if it is damaged."""
        entry = self.index[name]
        try:
            data = os.pread(self._file, entry.length, entry.offset)
        except OSError:
            return None
        return data if zlib.crc32(data) == entry.checksum else None


class Finder(MetaPathFinder):
    """Finds modules that the bundle has, where Python would find them."""

    def __init__(self) -> None:
        self._looked = False
        self.bundle: Bundle | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self._looked and fullname == "torch":  # other processes should not notice it
            self._look()
        bundle = self.bundle
        entry = bundle.index.get(fullname) if bundle is not None else None
        if bundle is None or entry is None or not entry.is_fresh():
            return None
        if path is None:  # anything on sys.path may stand in front of it
            found = PathFinder.find_spec(fullname, None, target)
            if found is None or found.origin != entry.source:
                return None
        elif len(path) != 1 or path[0] != entry.folder:
            return None
        loader = _Loader(fullname, entry.source, bundle)
        spec = ModuleSpec(fullname, loader, origin=entry.source, is_package=entry.is_package)
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(entry.source))
        return spec

    def _look(self) -> None:
        self._looked = True
        try:
            if (path := _path()) is not None:
                self.bundle = Bundle(path)
                _texts.update(self.bundle.texts)
        except (OSError, ValueError, EOFError, TypeError):
            pass  # Python finds everything without it, and a new one will be written
        _keep_texts()


class _Loader(SourceFileLoader):
    """Python's own, but for where it reads bytecode."""

    def __init__(self, fullname: str, path: str, bundle: Bundle) -> None:
        super().__init__(fullname, path)
        self._bundle = bundle

    def get_data(self, path: str) -> bytes:
        if path != self.path and (data := self._bundle.bytecode(self.name)) is not None:
            return data
        return super().get_data(path)


_texts: dict[str, CodeType] = {}


def _keep_texts() -> None:
    """Have dataclasses take the code of a text from here; what is compiled is kept."""
    import dataclasses

    def run(text: str, *names: Any) -> None:
        code = _texts.get(text)
        if code is None:
            code = compile(text, "<string>", "exec", dont_inherit=True)
            if len(_texts) < _MOST_TEXTS:
                _texts[text] = code
        builtins.exec(code, *names)

    dataclasses.exec = run  # type: ignore[attr-defined]


def board() -> None:
    """Read from the bundle of this job's processes when torch is imported."""
    if shared_folder() is not None and "torch" not in sys.modules and _finder() is None:
        sys.meta_path.insert(0, Finder())


def _finder() -> Finder | None:
    return next((one for one in sys.meta_path if isinstance(one, Finder)), None)


def shared_folder() -> str | None:
    """Where things that imports need are kept: one that other nodes see, if there is one."""
    kept = os.environ.get("ETT_BYTECODE", "0")
    return None if kept == "0" else os.environ.get("ETT_IMPORTS", kept)


def _path() -> str | None:
    """Where it lies: one for each Python, installation and list of modules to preload."""
    folder = shared_folder()
    if folder is None:
        return None
    facts = (
        *(MAGIC_NUMBER, sys.flags.optimize, sys.prefix, os.environ.get("ETT_PRELOAD", "")),
        *_installed(),
    )
    return os.path.join(folder, f"imports-{zlib.crc32(repr(facts).encode()):08x}.ett")


def _installed() -> list[str]:
    """The packages beside torch, with their versions.

    Sources of two versions may have the same size, and in some images they have the same time.
    """
    torch = PathFinder.find_spec("torch")
    if torch is None or torch.origin is None:
        return []
    beside = os.listdir(os.path.dirname(os.path.dirname(torch.origin)))
    return sorted(name for name in beside if name.endswith(".dist-info"))


def write() -> None:
    """Write the bundle of what this process has imported, unless the one it read will do."""
    path, finder = _path(), _finder()
    if path is None or finder is None or not is_private(os.path.dirname(path)):
        return
    modules = _imported()
    known = finder.bundle.index if finder.bundle is not None else {}
    fresh = sum(name in known and known[name].is_fresh() for name in modules)
    if fresh < _ENOUGH * len(modules):
        _write(path, modules)
        _tidy(os.path.dirname(path))


def _imported() -> dict[str, ModuleSpec]:
    """Modules of this process that have sources, in the order of their imports."""
    specs = {name: getattr(module, "__spec__", None) for name, module in sys.modules.items()}
    return {
        name: spec
        for name, spec in specs.items()
        if spec is not None
        and spec.name == name
        and isinstance(spec.loader, SourceFileLoader)
        and spec.origin
        and spec.cached
    }


def _write(path: str, modules: Mapping[str, ModuleSpec]) -> None:
    from pathlib import Path

    from torchett.store import write_whole

    def parts() -> Iterator[bytes]:
        offset, index = 0, {}
        for name, spec in modules.items():
            data = _bytecode_of(spec)
            if data is None:
                continue
            _, _, *stamp = _HEAD.unpack_from(data)
            is_package = spec.submodule_search_locations is not None
            where = (offset, len(data), zlib.crc32(data))
            index[name] = (spec.origin, is_package, tuple(stamp), *where)
            offset += len(data)
            yield data
        texts, entries = marshal.dumps(_texts), marshal.dumps(index)
        yield texts
        yield entries
        checksum = zlib.crc32(entries, zlib.crc32(texts))
        yield _END.pack(offset, offset + len(texts), checksum, _FORMAT)

    write_whole(Path(path), parts(), mode=0o600, durable=False)


def _bytecode_of(spec: ModuleSpec) -> bytes | None:
    """What Python would read for it; None if it checks it by other means than the source's time."""
    assert isinstance(spec.loader, SourceFileLoader)
    try:
        data = spec.loader.get_data(str(spec.cached))
    except OSError:
        return None
    usual = len(data) > _HEAD.size and _HEAD.unpack_from(data)[:2] == (MAGIC_NUMBER, 0)
    return data if usual else None


def _tidy(folder: str) -> None:
    """Keep the newest few, of other Pythons or lists, and no part that a killed writer left."""
    now, files = time.time(), []
    for entry in os.scandir(folder):
        age_s = now - entry.stat().st_mtime
        if entry.name.startswith("imports-"):
            files.append((age_s, entry.path))
        elif entry.name.startswith(".imports-") and age_s > _ABANDONED_S:
            os.unlink(entry.path)
    for _, path in sorted(files)[_MOST_FILES:]:
        os.unlink(path)
