"""Bytecode of what a job imports, kept for it where the installation has none.

    an installation with bytecode       ▓▓▓▓              import torch, dynamo and inductor
    one without, in every process       ▒▒▒▒▒▒▒▒▒▒▓▓▓▓    2,000 sources are compiled, each time
    … under `ett run`, the first one    ▒▒▓▓▓▓            compiled side by side, and kept
    … and all later ones                ▓▓▓▓

Images have none that were made by uv, are read-only, or set PYTHONDONTWRITEBYTECODE. Nothing is
written beside the sources: the folder is the user's own cache or ETT_BYTECODE, and Python itself
checks each file in it against its source.
"""

import os
import signal
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

from torchett.record.patches import install

if TYPE_CHECKING:
    import subprocess

_SIDE_BY_SIDE = 8  # cores from which on compiling ahead of the import is worth it
_PACKAGES = ("torch", "torchgen", "numpy", "sympy", "mpmath", "networkx", "triton")


def install_plugin() -> None:
    """Read and write bytecode in the folder of ETT_BYTECODE if torch has none of its own."""
    folder = os.environ.get("ETT_BYTECODE", "0")
    if folder == "0" or sys.pycache_prefix is not None:
        return
    torch = PathFinder.find_spec("torch")
    if torch is not None and not _has_bytecode(torch) and is_private(folder):
        install("sys:pycache_prefix", lambda _: folder)
        install("sys:dont_write_bytecode", lambda _: False)


def compile_ahead() -> "subprocess.Popen[bytes] | None":
    """Compile what torch imports by many processes, if that has not been done here before."""
    import subprocess

    workers = len(os.sched_getaffinity(0)) - 2
    if sys.pycache_prefix is None or workers + 2 < _SIDE_BY_SIDE:
        return None
    packages = [spec for name in _PACKAGES if (spec := PathFinder.find_spec(name)) is not None]
    if not packages or _has_bytecode(packages[0]):
        return None
    folders = [folder for spec in packages for folder in spec.submodule_search_locations or ()]
    script = os.path.join(os.path.dirname(__file__), "ahead.py")
    command = [sys.executable, "-I", "-S", "-X", f"pycache_prefix={sys.pycache_prefix}", script]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [*command, str(workers), *folders], stdout=quiet, stderr=quiet, start_new_session=True
    )


def stop(ahead: "subprocess.Popen[bytes] | None") -> None:
    """End the processes that compile ahead: no rank is left to import it."""
    if ahead is not None and ahead.poll() is None:
        os.killpg(ahead.pid, signal.SIGKILL)


def usual_folder() -> str:
    """The default folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(home, "torchett", "bytecode")


def _has_bytecode(spec: ModuleSpec) -> bool:
    """Whether there is some where Python would look for it; also if it never would."""
    return spec.cached is None or os.path.exists(spec.cached)


def is_private(folder: str) -> bool:
    """Whether no other user can write there: its content is executed."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
    except OSError:
        return False
    return is_ours(found)


def is_ours(found: os.stat_result) -> bool:
    """Whether a file or folder is this user's, and no other user can write to it."""
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022
