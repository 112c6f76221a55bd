"""Files that users asked for, with errors that they can read."""

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
