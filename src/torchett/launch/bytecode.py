"""Bytecode of what a job imports, kept for it where the installation has none.

    an installation with bytecode       ▓▓▓▓              import torch, dynamo and inductor
    one without, in every process       ▒▒▒▒▒▒▒▒▒▒▓▓▓▓    2,000 sources are compiled, each time
    … under `ett run`, the first one    ▒▒▓▓▓▓            compiled side by side, and kept
    … and all later ones                ▓▓▓▓

Images have none that were made by uv, are read-only, or set PYTHONDONTWRITEBYTECODE. Nothing is
written beside the sources: the folder is the user's own cache or ETT_BYTECODE, and
Python itself checks each file in it against its source.
"""

import os
import signal
import sys
from importlib.util import cache_from_source
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

_SIDE_BY_SIDE = 8  # cores from which on compiling ahead of whoever imports is worth it
_PACKAGES = ("torch", "sympy", "networkx", "numpy", "mpmath", "triton")
_NEVER_IMPORTED = r"/(testing|tests?|benchmarks?)/"


def board() -> None:
    """Read and write bytecode in the folder of ETT_BYTECODE if torch has none of its own."""
    folder = os.environ.get("ETT_BYTECODE", "0")
    if folder == "0" or sys.pycache_prefix is not None:
        return
    torch = _package("torch")
    if torch is None or os.path.exists(cache_from_source(f"{torch}/__init__.py")):
        return
    if _is_private(folder):
        sys.pycache_prefix, sys.dont_write_bytecode = folder, False


def compile_ahead() -> "subprocess.Popen[bytes] | None":
    """Compile what torch imports by many processes, if that has not been done here before."""
    import subprocess

    workers = len(os.sched_getaffinity(0)) - 2
    found = [folder for name in _PACKAGES if (folder := _package(name)) is not None]
    if sys.pycache_prefix is None or workers + 2 < _SIDE_BY_SIDE or not found:
        return None
    if os.path.exists(cache_from_source(f"{found[0]}/__init__.py")):
        return None
    command = [sys.executable, "-I", "-X", f"pycache_prefix={sys.pycache_prefix}"]
    command += ["-m", "compileall", "-qq", "-j", str(workers), "-x", _NEVER_IMPORTED, *found]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)


def stop(ahead: "subprocess.Popen[bytes] | None") -> None:
    """End what compiles ahead: nobody is left to import it."""
    if ahead is not None and ahead.poll() is None:
        os.killpg(ahead.pid, signal.SIGKILL)


def usual_folder() -> str:
    """The folder if nobody chose one."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(home, "torchett", "bytecode")


def _package(name: str) -> str | None:
    """Where it is installed, without importing it."""
    for folder in sys.path:
        if os.path.isfile(os.path.join(folder, name, "__init__.py")):
            return os.path.join(folder, name)
    return None


def _is_private(folder: str) -> bool:
    """Whether nobody else can write there: what lies there is run."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022
