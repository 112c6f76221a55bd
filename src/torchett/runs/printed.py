"""What a process's stdout and stderr hold, where they are files: Slurm's output file, nohup's."""

import os
from collections.abc import Iterator
from pathlib import Path

_MOST_BYTES = 1 << 20  # of what is new, its end


class Printed:
    """The files, and how much of each is known already."""

    def __init__(self) -> None:
        self._known = dict(_files())

    def new(self) -> list[tuple[str, str, int]]:
        """File, what was added to it since the last look, and how many lines are before that."""
        found = []
        for path, size in _files():
            begin = max(min(self._known.get(path, 0), size), size - _MOST_BYTES)
            self._known[path] = size
            if text := read_part(Path(path), begin, size).decode(errors="replace"):
                found.append((path, text, _lines_before(Path(path), begin)))
        return found


def read_part(path: Path, begin: int, end: int) -> bytes:
    """These bytes of a file; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)
    except OSError:
        return b""


def _files() -> Iterator[tuple[str, int]]:
    """The files with their sizes; none for terminals, pipes and what was deleted."""
    seen = set()
    for fd in (2, 1):
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
            size = os.fstat(fd).st_size
        except OSError:
            continue
        if path not in seen and os.path.isfile(path):
            seen.add(path)
            yield path, size


def _lines_before(path: Path, begin: int) -> int:
    lines = 0
    try:
        with path.open("rb") as file:
            while begin > 0 and (block := file.read(min(begin, 1 << 20))):
                lines += block.count(b"\n")
                begin -= len(block)
    except OSError:
        pass
    return lines
