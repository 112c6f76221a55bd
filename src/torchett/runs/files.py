"""Files that users asked for, with errors that they can read."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from torchett.model.errors import RunError
from torchett.store import write_whole as write_bytes


def write_whole(path: Path, lines: Iterable[str]) -> None:
    """Write a text file into a folder that exists; it is there whole, or not at all."""
    try:
        path.parent.stat()
        write_bytes(path, (line.encode() for line in lines), durable=False)
    except OSError as error:
        raise RunError(f"{path}: not writable: {error.strerror}") from None


def expect_writable(path: Path) -> None:
    """Say now what `write_whole` would say when the work is done."""
    if path.is_dir():
        reason = errno.EISDIR
    elif not path.parent.is_dir():
        reason = errno.ENOENT
    elif not os.access(path.parent, os.W_OK):
        reason = errno.EACCES
    else:
        return
    raise RunError(f"{path}: not writable: {os.strerror(reason)}")
