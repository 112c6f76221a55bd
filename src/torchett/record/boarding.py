"""Boarding: what a launcher asked for comes aboard a process before its script runs.

    ett run     ETT_BOARD=torchett.compile.board,…   PYTHONPATH=…/record/site:…
    python         sitecustomize ─► board() ─► each module's board() ─► when_imported("torch", …)
    standby        told to go    ─► board() ─► the same

Nothing aboard imports torch: it waits until the script does. What fails is off, and says so once.
"""

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # their bases do nothing, and take 5 ms of every process to import
    Loader = MetaPathFinder = object

SITE = os.path.join(os.path.dirname(__file__), "site")
log = logging.getLogger("torchett")

# What comes aboard wherever a record is kept: it observes.
WATCHES = ("torchett.compile.watch", "torchett.compile.pins")
# What comes aboard Inductor's workers, too: they import torch while a rank waits for kernels.
_FOR_WORKERS = ("torchett.launch.imports.bytecode", "torchett.launch.imports.bundle")

Then = Callable[[ModuleType], None]
_waiting: dict[str, list[Then]] = {}
_aboard: set[str] = set()


def board() -> None:
    """Bring aboard the modules that ETT_BOARD names: each has a function `board()`."""
    if os.environ.get("ETT_DISABLE") == "1":
        return
    asked = [name for name in os.environ.get("ETT_BOARD", "").split(",") if name]
    bring(name for name in asked if name in _FOR_WORKERS or not _is_compile_worker())


def _is_compile_worker() -> bool:
    """Whether this is one of the processes in which Inductor compiles kernels."""
    return any("torch._inductor.compile_worker" in word for word in sys.orig_argv)


def bring(names: Iterable[str]) -> None:
    """Bring these modules aboard, each once."""
    for name in names:
        if name not in _aboard:
            _aboard.add(name)
            try:
                importlib.import_module(name).board()
            except Exception as error:
                log.warning("torchett: %s is off: %s: %s", name, type(error).__name__, error)


def when_imported(name: str, then: Then) -> None:
    """Call `then(module)` once the module has been imported; at once if it has been."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        _call(name, then, module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _waiting.setdefault(name, []).append(then)


def _call(name: str, then: Then, module: ModuleType) -> None:
    try:
        then(module)
    except Exception as error:
        hook = getattr(then, "__qualname__", repr(then))
        log.warning("torchett: %s of %s is off: %s: %s", hook, name, type(error).__name__, error)


def find_behind(
    me: MetaPathFinder, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """What the finders behind this one find.

    Not what all others find: two finders that ask each other never end.
    """
    finders = [*sys.meta_path]
    for finder in finders[finders.index(me) + 1 :] if me in finders else ():
        spec = finder.find_spec(fullname, path, target) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec
    return None


class _Finder(MetaPathFinder):
    """Finds what the others find, for names that somebody waits for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        spec = find_behind(self, fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Announcing(spec.loader)
        return spec


class _Announcing(Loader):
    """A loader that tells those who wait; the module keeps the loader it would have had."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        module.__loader__ = self._loader
        if spec is not None:
            spec.loader = self._loader
        self._loader.exec_module(module)
        name = module.__name__
        for then in _waiting.pop(name, []):
            _call(name, then, module)


_finder = _Finder()


def next_sitecustomize(ours: str) -> None:
    """Run the sitecustomize that `ours` stands in front of, on a path that ours is not on.

    Then ours is where it was: what a process has on its path, torch's workers will have on theirs.
    `ours` need not be of this installation: a job may mix two.
    """
    folder = os.path.dirname(ours)
    place = sys.path.index(folder) if folder in sys.path else len(sys.path)
    sys.path[:] = [entry for entry in sys.path if entry not in (SITE, folder)]
    try:
        spec = PathFinder.find_spec("sitecustomize")
        if spec is not None and spec.loader is not None:
            module = sys.modules["sitecustomize"] = module_from_spec(spec)
            spec.loader.exec_module(module)
    finally:
        sys.path.insert(place, folder)
