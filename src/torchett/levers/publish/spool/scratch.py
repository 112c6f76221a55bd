"""Folders for a job's files while they are made; what a killed worker left is swept.

ett-publish-4711-93820-x7k2/      made by process 4711, which began at tick 93820
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchett.record.clock import process_start_ticks

_NAME = re.compile(r"ett-publish-(\d+)-(\d+)-.+")


@contextmanager
def scratch_folder(where: Path | None) -> Iterator[Path]:
    """A new folder in `where` (TMPDIR), gone afterwards."""
    top = where or Path(tempfile.gettempdir())
    sweep(top)
    pid = os.getpid()
    prefix = f"ett-publish-{pid}-{process_start_ticks(pid) or 0}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=top) as folder:
        yield Path(folder)


def sweep(top: Path) -> None:
    """Delete folders of this user whose process is gone."""
    for entry in os.scandir(top):
        found = _NAME.fullmatch(entry.name)
        if found and process_start_ticks(int(found[1])) != int(found[2]):
            try:
                if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    shutil.rmtree(entry.path, ignore_errors=True)
            except OSError:
                pass  # another worker sweeps, too
