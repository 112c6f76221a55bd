"""torch's own libraries, loaded by a thread while its process imports what needs none of them.

    import torch                 │ ▓▓ libtorch … ▒▒▒▒▒▒ ▓▓▓▓▓▓▓▓▓▓ │ dynamo: sympy ▓▓▓▓▓▓ …
    with libtorch on a thread    │ ▓▓ libtorch … ▒▒▒▒▒▒ ▓▓▓▓▓▓▓▓▓▓ │ dynamo …
                                      sympy ▓▓▓▓▓▓

Loading needs no interpreter: hundreds of megabytes are bound, and what is static in them is made.
It begins when torch has decided which libraries are to be used and is about to load its first.
"""

import ctypes
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder
else:
    MetaPathFinder = object

# The loader has a lock: extensions of the standard library that sympy and networkx come to, by
# modules that anybody may import, are loaded before it is taken.
_EXTENSIONS = (
    *("array", "bz2", "cmath", "csv", "ctypes", "datetime", "decimal", "fcntl", "hashlib", "heapq"),
    *("lzma", "queue", "random", "select", "socket", "struct", "subprocess", "typing"),
    *("unicodedata", "xml.etree.ElementTree", "zlib"),
)
_BESIDE = ("sympy", "networkx")  # Python alone; dynamo and inductor import them


def load_beside() -> None:
    """Have it done when this process imports torch."""
    if "torch._C" not in sys.modules:
        sys.meta_path.insert(0, _Beside())


class _Beside(MetaPathFinder):
    """Finds nothing: it is asked when torch is about to load its first library.

    It stays where it is: whoever is taken away while finders are asked has the next one left out.
    """

    _asked = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torch._C" and not self._asked:
            self._asked = True
            for folder in path or ():
                _load_and_import(os.path.join(folder, "lib", "libtorch.so"))
        return None


def _load_and_import(library: str) -> None:
    """What fails is left to torch, and to whoever imports it."""
    beside = [name for name in _BESIDE if _has_bytecode(name)]
    if not beside:  # somebody may be compiling it for us, but not as the first
        return
    _import_all(_EXTENSIONS)
    # A call of the loader lets go of the interpreter, as `ctypes.CDLL` does not in every Python.
    load, flags = ctypes.CDLL(None).dlopen, sys.getdlopenflags()
    load.restype = ctypes.c_void_p
    args = (library.encode(), flags)
    loading = threading.Thread(target=load, args=args, name="ett-libraries", daemon=True)
    loading.start()
    _import_all(beside)
    loading.join()


def _has_bytecode(name: str) -> bool:
    """Whether Python need not compile it first."""
    try:
        spec: Any = find_spec(name)
        return bool(spec.loader.get_data(spec.cached))
    except (OSError, AttributeError, TypeError, ValueError):
        return False


def _import_all(names: Sequence[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # not there, or broken: whoever needs it will say so
            pass
