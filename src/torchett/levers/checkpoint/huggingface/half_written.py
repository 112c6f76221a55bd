"""Which `checkpoint-N` of a Hugging Face Trainer are whole, by their files alone.

A Trainer that is killed while it saves leaves a folder that looks like a checkpoint. The next start
takes the one with the highest number, fails on a file that is missing or cut short, and so does
every start after it.

    checkpoint-100/  whole                            resumed from
    checkpoint-200/  model.safetensors is cut short   renamed: half-written-checkpoint-200
"""

import json
import logging
import re
import struct
import time
import zipfile
from pathlib import Path

log = logging.getLogger("torchett")

_NAME = re.compile(r"checkpoint-(\d+)")
_STATE = "trainer_state.json"
_ZIPPED = (".pt", ".pth", ".bin")
_RANDOM = re.compile(r"rng_state_(\d+)\.pth")


def put_aside(output_dir: Path) -> list[str]:
    """Rename what is no whole checkpoint; what was wrong with each, in a line."""
    said = []
    for folder in sorted(output_dir.glob("checkpoint-*")):
        if not _NAME.fullmatch(folder.name) or not folder.is_dir():
            continue
        problem = problem_of(folder)
        if problem is None:
            continue
        aside = folder.with_name(f"half-written-{folder.name}")
        if aside.exists():
            aside = folder.with_name(f"{aside.name}-{time.time_ns():x}")
        try:
            folder.rename(aside)
            said.append(f"{folder} is not whole ({problem}): it is now {aside.name}")
        except OSError as error:
            said.append(f"{folder} is not whole ({problem}) and stays: {error}")
    return said


def problem_of(folder: Path) -> str | None:
    """What is missing or cut short; None if nothing is. No data is read."""
    try:
        told = json.loads((folder / _STATE).read_bytes())
    except FileNotFoundError:
        return f"{_STATE} is missing"
    except ValueError:
        return f"{_STATE} is cut short"
    if not isinstance(told, dict) or "global_step" not in told:
        return f"{_STATE} has no global_step"
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (problem := _problem_of_file(path)) is not None:
            return f"{path.relative_to(folder)} {problem}"
    ranks = {int(found[1]) for path in folder.iterdir() if (found := _RANDOM.fullmatch(path.name))}
    lost = set(range(max(ranks, default=-1) + 1)) - ranks
    if lost:
        return f"rng_state_{min(lost)}.pth is missing"
    return None


def _problem_of_file(path: Path) -> str | None:
    if path.suffix == ".safetensors":
        return _safetensors(path)
    if path.name.endswith(".index.json"):
        try:
            shards = set(json.loads(path.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            return "is cut short"
        lost = sorted(shard for shard in shards if not (path.parent / shard).is_file())
        return f"names {lost[0]}, which is missing" if lost else None
    if path.suffix in _ZIPPED and path.name != "training_args.bin":
        return None if zipfile.is_zipfile(path) or _is_pickle(path) else "is cut short"
    return None


def _safetensors(path: Path) -> str | None:
    """The header says where the last tensor ends."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            return "is cut short"
        (length,) = struct.unpack("<Q", start)
        if 8 + length > size:
            return "is cut short"
        try:
            header = json.loads(file.read(length))
            ends = [one["data_offsets"][1] for k, one in header.items() if k != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return "has no header that can be read"
    wanted = 8 + length + max(ends, default=0)
    return None if size == wanted else f"has {size} bytes, its header says {wanted}"


def _is_pickle(path: Path) -> bool:
    """Whether it is of torch's old format, which says nothing about its length."""
    with path.open("rb") as file:
        return file.read(1) == b"\x80"
