"""A dead rank's ring, folded into its log as if the rank had closed it.

    log │ chunks │   +   ring │ e e e e │ open spans │   →   log │ chunks │ last chunk │

What cannot be folded for sure (a damaged log, entries that are missing) is not touched: the ring's
file is moved beside the log, and readers take it from there. So no ring stays in shared memory.
"""

import fcntl
import json
import os
import shutil
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchett.record.clock import Anchor, now_ns
from torchett.record.flight import fold
from torchett.record.flight.format import (
    ACCOUNT_SHIFT,
    BACKGROUND,
    FRAME,
    FRAMES,
    NOTE,
    SPAN,
    STEP,
    Chunk,
    attempt_folder,
    chunk,
    chunks,
    read_header,
)
from torchett.record.flight.log_writer import LogWriter
from torchett.record.flight.ring import (
    Ring,
    all_rings,
    open_begins,
    owner,
    parse,
    ring_path,
    rings,
    unfinished,
)
from torchett.record.flight.writer import DETAIL

_OLD_NS = 86_400 * 10**9
_PATIENCE_S = 2.0  # for ranks of an attempt that is over: the kernel may still be ending one
_NO_RECORD = (OSError, ValueError, KeyError, TypeError, ArithmeticError, struct.error)


class _NotForSureError(Exception):
    """Log and ring do not fit together without a gap."""


def seal(log: Path, ended: Anchor, ended_ns: int) -> None:
    """Seal the ring of this log, if it is one of this host that has no writer any more.

    Spans that were open end at `ended_ns`, or where the next process that was this rank began, on
    the clock of `ended`: a rank of another host may be alive.
    """
    try:
        facts = _header(log)
        if Anchor.from_json(facts.get("anchor")).clock == ended.clock:
            _seal(ring_path(log, facts), log, ended_ns)
    except _NO_RECORD:
        pass


def seal_attempt(run: Path, attempt: int, ended_ns: int) -> None:
    """Seal the rings of an attempt that is over, on this host."""
    deadline = time.monotonic() + _PATIENCE_S
    for path in rings(run, f"{attempt}."):
        while not _try_to_seal(path, ended_ns) and time.monotonic() < deadline:
            time.sleep(0.05)


def seal_left_behind(run: Path | None = None) -> None:
    """Seal rings that have no launcher: those of `run`, and all old ones."""
    here = set() if run is None else set(rings(run))
    for path in all_rings():
        _try_to_seal(path, None, any_age=path in here)
    for made in unfinished():  # its process was killed while it made the ring
        try:
            if time.time() - made.stat().st_mtime > _OLD_NS / 1e9:
                made.unlink()
        except OSError:
            continue


def seal_if_left_behind(log: Path, facts: dict[str, Any]) -> None:
    """Seal the ring of this log if it has no writer and no launcher will do it."""
    path = ring_path(log, facts)
    if path.suffix == ".ring":
        _try_to_seal(path, None, any_age=True, log=log)


def _try_to_seal(
    path: Path, ended_ns: int | None, any_age: bool = False, log: Path | None = None
) -> bool:
    """Whether the ring is settled; False if it still has a writer.

    Without `ended_ns` open spans end at the last sign of life, and a ring that a launcher may
    come to seal is left alone for a day.
    """
    try:
        with _held(path) as ring:
            if ring is None:
                return not path.exists()
            facts = owner(ring)
            if facts is None:
                return True
            old = now_ns() - _last_life_ns(ring) > _OLD_NS
            if ended_ns is None and not old and (facts.get("launched") or not any_age):
                return True
            if old and not Path(_run_of(ring)).is_dir():
                path.unlink()
                return True
        _seal(path, log, _last_life_ns(ring) if ended_ns is None else ended_ns)
    except _NO_RECORD:
        pass
    return True


def _seal(path: Path, log: Path | None, ended_ns: int) -> None:
    with _held(path) as ring:
        if ring is None:
            return
        if log is None and _is_of_a_run_before(ring):
            path.unlink()
            return
        log = log or _log_of(path, ring)
        try:
            data = _last_chunks(log, ring, ended_ns)
        except _NotForSureError:
            _move_beside(path, log)
            return
        with log.open("ab") as file:
            file.write(data)
        path.unlink()


@contextmanager
def _held(path: Path) -> Iterator[Ring | None]:
    """The ring, while no other process writes or seals it; None if one does, or it is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    with open(fd, "rb") as file:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield parse(file.read()) if os.fstat(fd).st_nlink else None


def _last_chunks(log: Path, ring: Ring, ended_ns: int) -> bytes:
    """What is to be added to the log; _NotForSureError if that cannot be known."""
    data = log.read_bytes()
    head = data.index(b"\n") + 1
    facts = read_header(data[:head])
    lane = {"attempt": int(facts["attempt"]), "rank": int(facts["rank"])}
    pieces = list(chunks(memoryview(data)[head:]))
    logged = [piece for piece in pieces if isinstance(piece, Chunk)]
    reach = max((piece.reach for piece in logged), default=0)
    entries = ring.since(reach)
    newest = entries[-1][5] if entries else reach
    if len(logged) < len(pieces) or ring.dropped or len(entries) != newest - reach:
        raise _NotForSureError
    older = max(len(entries) - DETAIL, 0)
    before = [
        frame
        for piece in logged
        if piece.kind == FRAMES
        for frame in FRAME.iter_unpack(piece.payload)
    ]
    first = not any(frame[0] == STEP for frame in before)
    behind = max((frame[5] for frame in before), default=0)
    frames = fold.fold(entries[:older], entries[older:], open_begins(ring.data), first, behind)
    frames += fold.plain(entries[older:])
    over = {(e[4] >> ACCOUNT_SHIFT & 0xFFFF, e[1]) for e in entries}
    ended_ns = min([ended_ns, *_later_begins(log, facts)])
    for account, t0, background in ring.open_spans:
        if (account, t0) not in over:  # else: killed just after it had ended
            kind = BACKGROUND if background else SPAN
            frames += fold.span_frame(kind, account, t0, max(t0, ended_ns))
    notes = [bytes(piece.payload) for piece in logged if piece.kind == NOTE]
    unsaid = [json.dumps(fact).encode() for fact in ring.notes() if "run" not in fact]
    said = [text for text in unsaid if text not in notes]
    said.append(json.dumps({"sealed": newest, "beat_ns": ring.beat_ns}).encode())
    last = [chunk(FRAMES, frames, **lane, reach=newest)] if frames else []
    return b"".join([*(chunk(NOTE, text, **lane, reach=0) for text in said), *last])


def _last_life_ns(ring: Ring) -> int:
    """The latest time in the ring."""
    entries = ring.since(0)
    begins = (t0 for _, t0, _ in ring.open_spans)
    return max([ring.beat_ns, *(entry[2] for entry in entries), *begins])


def _later_begins(log: Path, facts: dict[str, Any]) -> Iterator[int]:
    """When other processes began that were the same rank, on the same clock, after this one."""
    for other in log.parent.glob(f"rank-{facts['rank']}~*.ett"):
        try:
            theirs = _header(other)
        except ValueError:
            continue
        same = theirs["anchor"]["clock"] == facts["anchor"]["clock"]
        if same and theirs["began_ns"] > facts["began_ns"]:
            yield theirs["began_ns"]


def _header(log: Path) -> dict[str, Any]:
    with log.open("rb") as file:
        return read_header(file.readline())


def _run_of(ring: Ring) -> str:
    return str(next(fact["run"] for fact in ring.notes() if "run" in fact))


def _is_of_a_run_before(ring: Ring) -> bool:
    """Whether the run's folder was deleted since, and made again at the same path.

    Then all of its launchers on this clock began after the ring did.
    """
    facts = read_header(next(ring.texts()))
    begins = []
    for path in Path(_run_of(ring)).glob("attempts-*.jsonl"):
        try:
            lines = [json.loads(line) for line in path.read_bytes().splitlines()]
            if lines[0]["anchor"]["clock"] == facts["anchor"]["clock"]:
                begins += [int(line["t_ns"]) for line in lines if line.get("event") == "start"]
        except (ValueError, KeyError, TypeError, IndexError):
            return False  # a line that was cut off
    return bool(begins) and facts["began_ns"] < min(begins)


def _log_of(path: Path, ring: Ring) -> Path:
    """The log that belongs to this ring; a new one if its first line was never written."""
    header = next(ring.texts())
    facts = read_header(header)
    folder = attempt_folder(Path(_run_of(ring)), int(facts["attempt"]), int(facts["restart"]))
    rank = int(facts["rank"])
    for log in sorted([*folder.glob(f"rank-{rank}.ett"), *folder.glob(f"rank-{rank}~*.ett")]):
        try:
            if _header(log).get("ring") == str(path):
                return log
        except ValueError:
            continue
    writer = LogWriter(folder, rank, header)
    writer.open()
    writer.finish(0.0, threaded=False)
    return writer.path


def _move_beside(path: Path, log: Path) -> None:
    """Move a ring's file to where records of flight/1 have theirs."""
    beside = log.with_suffix(".live")
    if path != beside:
        made = log.with_suffix(".making")
        shutil.copyfile(path, made)
        os.replace(made, beside)
        path.unlink()
