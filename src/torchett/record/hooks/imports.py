"""Imports of the script, timed: each module that the script imports, with all that it imports.

import torch            ├── torch ──────────────┤           one interval; what torch imports
import numpy                                     ├ numpy ┤   is part of it
"""

import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchett.record.clock import now_ns
from torchett.record.patches import install_finder, remove_finder
from torchett.record.plugins import find_behind

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # their bases do nothing, and take 5 ms of every process to import
    Loader = MetaPathFinder = object

Told = Callable[[str, int, int], None]
COSTLY_NS = 1_000_000  # imports shorter than this are not worth a span
_JOINED_NS = 2_000_000  # imports closer than this are recorded as one
_MOST_SPANS, _MOST_COSTS, _SLOWEST = 60, 1000, 8


class Waiting:
    """Imports that wait for the record to be opened."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self._costs: list[tuple[int, str]] = []

    def add(self, name: str, t0: int, t1: int, *, apart: bool) -> None:
        """Keep an import; `apart`: something lies between it and the one before."""
        if len(self._costs) < _MOST_COSTS:
            self._costs.append((t1 - t0, name))
        spans = self.spans
        if spans and t0 - spans[-1][1] < _JOINED_NS and not apart:
            spans[-1] = spans[-1][0], t1
        elif len(spans) < _MOST_SPANS:
            spans.append((t0, t1))

    def slowest(self) -> dict[str, float]:
        """The modules that took longest, and their seconds."""
        slowest = sorted(self._costs, reverse=True)[:_SLOWEST]
        return {name: round(ns / 1e9, 3) for ns, name in slowest}


class Imports(MetaPathFinder):
    """The first finder of sys.meta_path: times each outermost import."""

    def __init__(self, tell: Told) -> None:
        self._tell = tell
        self.busy = False
        self._main = threading.main_thread().ident

    def watch(self) -> None:
        install_finder(self, "imports")

    def stop(self) -> None:
        remove_finder(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the other finders, with a timed loader; None inside another import."""
        if self.busy or threading.get_ident() != self._main:
            return None
        spec = find_behind(self, fullname, path, target)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Timed(spec.loader, self)
        return spec

    def load(self, loader: Loader, module: ModuleType) -> None:
        """Execute the module and record how long it took, unless another import contains it."""
        if self.busy:
            loader.exec_module(module)
            return
        self.busy = True
        t0 = now_ns()
        try:
            loader.exec_module(module)
        finally:
            self.busy = False
            self._tell(module.__name__, t0, now_ns())


class _Timed(Loader):
    """A loader that is timed; the module keeps the loader it would have had."""

    def __init__(self, loader: Loader, imports: Imports) -> None:
        self._loader, self._imports = loader, imports

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._imports.load(self._loader, module)
