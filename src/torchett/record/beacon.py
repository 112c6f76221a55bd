"""The file in which a trainer says how fresh its last durable checkpoint is.

It lies in the run folder. The rank that knows when a checkpoint is durable writes it; `ett run`
adds what only a launcher knows and passes it on to the scheduler.
"""

import os
from pathlib import Path

from torchett.model.beacon import Beacon, parse_beacon, to_json
from torchett.model.errors import InputError

NAME = "beacon.json"


def beacon_path(run: Path) -> Path:
    return run / NAME


def write_beacon(path: Path, beacon: Beacon) -> None:
    """Replace the file in one step: a reader sees the old beacon or the new one, whole."""
    text = to_json(beacon)
    written = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        written.write_text(text + "\n")
        os.replace(written, path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def read_beacon(path: Path) -> Beacon:
    try:
        return parse_beacon(path.read_text(), where=str(path))
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: expected a readable beacon: {said}") from None
