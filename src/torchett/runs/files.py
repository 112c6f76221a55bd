"""Files that are there whole or not at all."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from torchett.model.errors import RunError


def write_whole(path: Path, lines: Iterable[str]) -> None:
    """Write the file beside its place, then move it there."""
    made = None
    try:
        handle, made = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(lines)
        os.chmod(made, 0o644)
        os.replace(made, path)
    except BaseException as error:
        if made is not None and os.path.exists(made):
            os.unlink(made)
        if isinstance(error, OSError):
            raise RunError(f"{path}: not writable: {error.strerror}") from None
        raise
