"""Output files that a user names, with readable errors.

A link is followed: what it leads to is replaced whole. A device or a pipe is written to, and stays.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from torchett.model.errors import RunError
from torchett.store import write_whole as replace_whole


def write_text_file(path: Path, lines: Iterable[str]) -> None:
    """Write a text file into an existing folder, atomically."""
    expect_writable(path)
    write_bytes(path, (line.encode() for line in lines))


def write_bytes(path: Path, data: bytes | Iterable[bytes], *, durable: bool = False) -> None:
    """Write to the path that the user gave."""
    try:
        if _is_stream(path):
            with open(path, "ab") as stream:
                stream.writelines((data,) if isinstance(data, bytes) else data)
        else:
            replace_whole(_behind_links(path), data, durable=durable)
    except OSError as error:
        raise RunError(f"{path}: not writable: {error.strerror}") from None


def expect_writable(path: Path) -> None:
    """Raise now the error that `write_text_file` would raise later."""
    folder = _behind_links(path).parent
    if os.path.isdir(path):
        reason = errno.EISDIR
    elif _is_stream(path) and os.access(path, os.W_OK):
        return
    elif not os.path.isdir(folder):
        reason = errno.ENOENT
    elif not os.access(folder, os.W_OK):
        reason = errno.EACCES
    else:
        return
    raise RunError(f"{path}: not writable: {os.strerror(reason)}")


def _is_stream(path: Path) -> bool:
    """Whether bytes go through it to somewhere else: a device, a pipe, /dev/stdout."""
    folder = _behind_links(path.parent)
    of_process = folder == Path("/dev") or folder.is_relative_to("/proc")
    return os.path.exists(path) and (of_process or not os.path.isfile(path))


def _behind_links(path: Path) -> Path:
    return Path(os.path.realpath(path))
