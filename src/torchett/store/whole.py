"""A file is there whole, or not at all."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write_whole(
    path: Path, data: bytes | Iterable[bytes], *, mode: int = 0o644, durable: bool = True
) -> None:
    """Write a file under another name, then give it its own: no reader sees a part of it.

    A process killed on the way leaves a `.part` behind, never a short file. If it is to be
    durable, the bytes are on disk before the name is; what can be made again need not wait.
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
