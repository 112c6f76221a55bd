"""Plugins: what a launcher requests is installed in a process before its script runs.

    ett run     ETT_PLUGINS=torchett.levers.compile.cache.plugin,…   PYTHONPATH=…/record/site:…
    python         sitecustomize ─► install_asked() ─► each module's install_plugin()
    standby        has its job   ─► install_asked() ─► the same

No plugin imports torch: `when_imported("torch", …)` waits until the script does. One that fails is
off, and says so once. Which plugins there are: `record/levers.py`.
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

from torchett.record.patches import install_finder

SITE = os.path.join(os.path.dirname(__file__), "site")
log = logging.getLogger("torchett")

Then = Callable[[ModuleType], None]
_waiting: dict[str, list[Then]] = {}
_installed: set[str] = set()


def install_asked() -> None:
    """Install the plugins that ETT_PLUGINS names.

    Inductor's compile workers inherit the environment; they get those of ETT_WORKER_PLUGINS only.
    """
    if os.environ.get("ETT_DISABLE") != "1":
        asked = "ETT_WORKER_PLUGINS" if _is_compile_worker() else "ETT_PLUGINS"
        install_plugins(filter(None, os.environ.get(asked, "").split(",")))


def _is_compile_worker() -> bool:
    """Whether this is one of the processes in which Inductor compiles kernels."""
    return any("torch._inductor.compile_worker" in word for word in sys.orig_argv)


def install_default_plugins() -> None:
    """Install the plugins that every recorded process has: they only observe."""
    from torchett.record.levers import default_plugins  # reads a file of every lever

    install_plugins(default_plugins())


def install_plugins(modules: Iterable[str]) -> None:
    """Call `install_plugin()` of each of these modules, once in this process."""
    for name in modules:
        if name not in _installed:
            _installed.add(name)
            try:
                importlib.import_module(name).install_plugin()
            except Exception as error:
                log.warning("torchett: %s is off: %s: %s", name, type(error).__name__, error)


def when_imported(name: str, then: Then) -> None:
    """Call `then(module)` once the module has been imported; at once if it has been."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        _call(name, then, module)
        return
    install_finder(_finder, "import-hook")
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
    """The result of the finders behind this one.

    Asking all other finders could recurse without end.
    """
    finders = [*sys.meta_path]
    for finder in finders[finders.index(me) + 1 :] if me in finders else ():
        spec = finder.find_spec(fullname, path, target) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec
    return None


class _Finder(MetaPathFinder):
    """Finds what the other finders find, for modules with a registered callback."""

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
    """A loader that runs the callbacks; the module keeps its usual loader."""

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
