"""Files of the cache folder that a MegaCache leaves behind, and that a job cannot do without.

xx/cHASH.main.so            compiled C++ kernels: without them g++ runs again
xx/cHASH.so                 probes of the compiler and the instruction set, likewise
cache/HASH                  timings of matrix multiplications that autotuning compared
triton/N/HASH/K.autotune.json   what Triton's own autotuner chose
ett-pins/NAME.json          what was pinned
"""

import os
from collections.abc import Iterator
from pathlib import Path

_PROBE_SOURCE = 4096  # a probe's source is a few lines
_MOST_FILE = 64 << 20


def used_files(folder: Path) -> list[str]:
    """Names of files in the cache folder that this process used, relative to it."""
    found = set(_mapped(folder)) | set(_probes(folder))
    for pattern in ("cache/*", "triton/*/*/*.autotune.json", "ett-pins/*.json"):
        found |= {path.relative_to(folder).as_posix() for path in folder.glob(pattern)}
    return sorted(name for name in found if _plain(folder / name))


def _mapped(folder: Path) -> Iterator[str]:
    """Libraries of the cache folder that are loaded in this process: exactly those it needed."""
    prefix = os.path.realpath(folder) + os.sep
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if path.endswith(".so") and f"/{path}".startswith(prefix):
                yield f"/{path}"[len(prefix) :]


def _probes(folder: Path) -> Iterator[str]:
    """Libraries that torch built to learn what the compiler and the processor can do.

    They are loaded by processes of their own, but known by their tiny sources beside them.
    """
    for library in folder.glob("??/c*.so"):
        if library.name.endswith(".main.so"):
            continue
        try:
            if library.with_suffix(".cpp").stat().st_size <= _PROBE_SOURCE:
                yield library.relative_to(folder).as_posix()
        except OSError:
            continue


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size <= _MOST_FILE
