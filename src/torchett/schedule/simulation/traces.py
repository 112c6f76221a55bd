"""Traces of real clusters, read from CSV files.

One reader for all: columns are found by their names.

    when      submit, submit_s, submit_time, Submit   seconds, or a date and time
    who       vc, Account; else user, User            users are spread over VCs by a stable hash
    how many  gpus, AllocTRES, ReqTRES                a number, or …gres/gpu=8…
    how long  run_s, ElapsedRaw                       seconds

So Philly's and Helios's files, a plain `submit,vc,gpus,run_s`, and what
`sacct -X -P -o Submit,Account,AllocTRES,ElapsedRaw` prints can all be read. Fields are separated by
commas, or by `|` where the header has one. A name that ends in .gz is unpacked.
"""

import csv
import gzip
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TextIO

import numpy as np

from torchett.model.errors import InputError
from torchett.schedule.simulation.workload import FailureRates, Trace

_SUBMIT = ("submit", "submit_s", "submit_time", "Submit")
_VC = ("vc", "Account")
_USER = ("user", "User")
_GPUS = ("gpus", "AllocTRES", "ReqTRES")
_RUN = ("run_s", "ElapsedRaw")
_TRES = re.compile(r"gres/gpu=(\d+)")
SIZE_CLASSES = (1, 4, 8, 32)  # GPUs: failure rates are counted by these


def read_trace(
    path: Path,
    *,
    sizes: Mapping[str, float] | None = None,
    user_vcs: int = 10,
    most_gpus: int | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Trace:
    """The jobs of a file that used GPUs and ran, in the order of submission.

    `since` and `until` are written like the file's times; jobs are in by their submission.
    """
    first = -math.inf if since is None else _time("--since", since)
    last = math.inf if until is None else _time("--until", until)
    rows = []
    for line, row in _rows(path):
        where = f"{path}:{line}"
        gpus = _gpus(where, _field(where, row, _GPUS))
        run_s = _number(where, _RUN[0], _field(where, row, _RUN))
        if gpus <= 0 or run_s <= 0 or (most_gpus is not None and gpus > most_gpus):
            continue
        submit_s = _time(where, _field(where, row, _SUBMIT))
        if not first <= submit_s < last:
            continue
        rows.append((submit_s, _owner(where, row, user_vcs), gpus, run_s))
    if len(rows) < 2:
        raise InputError(f"{path}: expected two jobs with GPUs or more, found {len(rows)}")
    rows.sort(key=lambda row: row[0])
    vcs = tuple(sorted({row[1] for row in rows}))
    index = {vc: number for number, vc in enumerate(vcs)}
    if sizes is not None and not any(sizes.get(vc, 0) > 0 for vc in vcs):
        raise InputError(f"{path}: none of its VCs has a size: {', '.join(vcs[:5])}, …")
    return Trace(
        name=path.name.removesuffix(".gz").removesuffix(".csv"),
        submit_s=np.array([row[0] for row in rows]) - rows[0][0],
        vc=np.array([index[row[1]] for row in rows], dtype=np.int64),
        gpus=np.array([row[2] for row in rows], dtype=np.int64),
        run_s=np.array([row[3] for row in rows]),
        vcs=vcs,
        weights=dict(sizes or {}),
    )


def read_sizes(path: Path) -> dict[str, float]:
    """The sizes of VCs: a file with the columns `vc` and one number."""
    sizes = {}
    for line, row in _rows(path):
        values = [value for name, value in row.items() if name not in _VC]
        where = f"{path}:{line}"
        if len(values) != 1 or not any(name in row for name in _VC):
            raise InputError(f"{where}: expected the columns vc and size, found {', '.join(row)}")
        sizes[_field(where, row, _VC)] = _number(where, "size", values[0])
    return sizes


def read_failures(path: Path) -> FailureRates:
    """Failures per second of running, by size of job: of a file with `status` beside the rest."""
    seconds, failed = np.zeros(len(SIZE_CLASSES)), np.zeros(len(SIZE_CLASSES))
    for line, row in _rows(path):
        where = f"{path}:{line}"
        if "status" not in row:
            raise InputError(f"{where}: expected a column status, found {', '.join(row)}")
        gpus = _gpus(where, _field(where, row, _GPUS))
        if gpus <= 0:
            continue
        at = min(int(np.searchsorted(SIZE_CLASSES, gpus)), len(SIZE_CLASSES) - 1)
        seconds[at] += _number(where, _RUN[0], _field(where, row, _RUN))
        failed[at] += row["status"].upper() in ("FAILED", "NODE_FAIL")
    if not seconds.any():
        raise InputError(f"{path}: expected jobs with GPUs and a run time, found none")
    overall = failed.sum() / seconds.sum()
    rates = [f / s if s else overall for f, s in zip(failed, seconds, strict=True)]
    return FailureRates(up_to_gpus=SIZE_CLASSES, per_s=tuple(float(rate) for rate in rates))


Row = Mapping[str, str]


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Each row with its line number."""
    try:
        with _open(path) as file:
            header = file.readline()
            separator = "|" if "|" in header else ","
            names = [name.strip() for name in header.strip().split(separator)]
            reader = csv.reader(file, delimiter=separator)
            for values in reader:
                if not values:
                    continue
                line = reader.line_num + 1
                if len(values) != len(names):
                    raise InputError(
                        f"{path}:{line}: expected {len(names)} fields, found {len(values)}"
                    )
                yield line, dict(zip(names, values, strict=True))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: expected a readable CSV file: {said}") from None


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", newline="")
    return path.open(newline="")


def _field(where: str, row: Row, names: Sequence[str]) -> str:
    for name in names:
        if name in row:
            return row[name].strip()
    raise InputError(f"{where}: expected a column {' or '.join(names)}, found {', '.join(row)}")


def _number(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{where}: {name}: expected a number from 0 on, found '{text}'")
    return value


def _gpus(where: str, text: str) -> int:
    if "=" in text or not text:  # Slurm's cpu=8,gres/gpu=4,mem=…; none: no GPUs
        found = _TRES.search(text)
        return int(found[1]) if found else 0
    value = _number(where, "gpus", text)
    if value != int(value):
        raise InputError(f"{where}: gpus: expected a whole number, found '{text}'")
    return int(value)


def _time(where: str, text: str) -> float:
    try:
        return float(text) if text.replace(".", "", 1).isdigit() else _date(text)
    except ValueError:
        raise InputError(
            f"{where}: expected a time such as 3600 or 2017-10-03 08:07:01, found '{text}'"
        ) from None


def _date(text: str) -> float:
    """Seconds; a date without a zone is taken as UTC, so that no day is 23 hours long."""
    date = datetime.fromisoformat(text)
    return (date - datetime(1970, 1, 1, tzinfo=date.tzinfo)).total_seconds()


def _owner(where: str, row: Row, user_vcs: int) -> str:
    if any(name in row for name in _VC):
        return _field(where, row, _VC) or "none"
    user = _field(where, row, (*_VC, *_USER))
    return f"users-{zlib.crc32(user.encode()) % user_vcs:02}"
