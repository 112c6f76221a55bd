"""Files of the cache folder that a MegaCache lacks, and that a job needs.

xx/cHASH.main.so            compiled C++ kernels: without them g++ runs again
xx/cHASH.so                 probes of the compiler and the instruction set: also g++
cache/HASH                  timings of matrix multiplications from autotuning
triton/N/HASH/K.autotune.json   results of Triton's own autotuner
ett-pins/NAME.json          pins
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_PROBE_SOURCE = 4096  # a probe's source is a few lines
_MOST_FILE = 64 << 20
_LAUNCHER = re.compile(r"([^/]+)/((?:__triton_launcher|cuda_utils|hip_utils)[^/]*\.so)")


def used_files(folder: Path, device: int) -> dict[str, Path]:
    """Files that this process used, by their names in a cache folder."""
    found = dict(_mapped(folder, device)) | dict(_probes(folder))
    for pattern in ("cache/*", "triton/*/*/*.autotune.json", "ett-pins/*.json"):
        found |= {path.relative_to(folder).as_posix(): path for path in folder.glob(pattern)}
    return {name: path for name, path in sorted(found.items()) if _plain(path)}


def _mapped(folder: Path, device: int) -> Iterator[tuple[str, Path]]:
    """Libraries that are mapped in this process: exactly those it needed.

    Triton's launchers may be in the user's own Triton cache if they were built before inductor
    chose the folder. A later job looks for them in its cache folder.
    """
    prefix = os.path.realpath(folder) + os.sep
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = "/" + line.rstrip("\n").partition("/")[2]
            if not path.endswith(".so"):
                continue
            if path.startswith(prefix):
                yield path[len(prefix) :], Path(path)
            elif launcher := _LAUNCHER.search(path):
                yield f"triton/{device}/{launcher[1]}/{launcher[2]}", Path(path)


def _probes(folder: Path) -> Iterator[tuple[str, Path]]:
    """Libraries that torch built to probe the compiler and the processor.

    They are loaded in separate processes, so they are recognized by the tiny sources beside them.
    """
    for library in folder.glob("??/c*.so"):
        if library.name.endswith(".main.so"):
            continue
        try:
            if library.with_suffix(".cpp").stat().st_size <= _PROBE_SOURCE:
                yield library.relative_to(folder).as_posix(), library
        except OSError:
            continue


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size <= _MOST_FILE
