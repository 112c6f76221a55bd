"""Files written atomically: a reader finds the whole file or none."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write_whole(
    path: Path, data: bytes | Iterable[bytes], *, mode: int = 0o644, durable: bool = True
) -> None:
    """Write a file under a temporary name, then rename it: no reader sees a part of it.

    A process killed on the way leaves a `.part` file behind, never a short file. With `durable`,
    the data is synced to disk before the rename. Files that can be made again do not need it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    opened, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(opened, "wb") as file:
            file.writelines((data,) if isinstance(data, bytes) else data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        try:
            os.unlink(part)
        except OSError:
            pass
        raise
