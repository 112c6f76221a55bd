"""The launcher's own record: when attempts began and ended, as JSON lines.

    attempts-0.jsonl    {"format":"attempts/1","job":"gpt","node":0,"anchor":{…}}
                        {"event":"start","attempt":0,"t_ns":…,"submitted_ns":…,"allocated_ns":…}
                        {"event":"end","attempt":0,"t_ns":…,"outcome":"failed","cause":"SIGKILL"}
    attempts-0.beat     the launcher's last sign of life

Where the elastic agent restarts its workers inside an attempt, its events carry "restart":N.
Times are monotonic; the anchor of the line above places them (a resubmitted job writes a new one).
Each node's launcher writes its own file; node 0's says what the attempts were.
"""

import fcntl
import json
import os
import struct
import threading
from pathlib import Path
from typing import Any

from torchett.record.clock import Anchor, now_ns

FORMAT = "attempts/1"
_PATIENCE_S = 2.0  # for a disk that hangs
_BEAT = struct.Struct("<qq")  # pid, monotonic ns


def attempts_path(run: Path, node: int = 0) -> Path:
    return run / f"attempts-{node}.jsonl"


class AttemptLog:
    """One launcher's log of attempts. On a full disk lines are lost, the job continues.

    Lines are written, in order, by threads that are waited for a moment: a disk may hang, and the
    launcher has signals to pass on meanwhile.
    """

    def __init__(self, run: Path, *, job: str, node: int, anchor: Anchor, **facts: Any) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self._path = attempts_path(run, node)
        self._fd = -1
        self._appending: threading.Thread | None = None
        self._beating: threading.Thread | None = None
        head = {"format": FORMAT, "job": job, "node": node, "anchor": anchor.to_json(), **facts}
        append_fact(self._path, head)  # where nothing can be written, nothing has been run yet
        try:
            # Kept open: the lock on it goes with this process, however that ends.
            self._fd = os.open(self._path.with_suffix(".beat"), os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass  # without a beat, a live job seems to end at its newest record
        self.beat()

    def append(self, fact: dict[str, Any]) -> None:
        before = self._appending

        def work() -> None:
            if before is not None:
                before.join()
            try:
                append_fact(self._path, fact)
            except OSError:
                pass

        self._appending = threading.Thread(target=work, name="ett-append", daemon=True)
        self._appending.start()
        self._appending.join(_PATIENCE_S)

    def beat(self) -> None:
        """Record that the launcher, and so the attempt, is alive."""
        if self._beating is not None and self._beating.is_alive():
            return  # the disk hangs
        self._beating = threading.Thread(target=self._write_beat, name="ett-beat", daemon=True)
        self._beating.start()
        self._beating.join(_PATIENCE_S)

    def _write_beat(self) -> None:
        # No mmap: if a disk hangs, a store to a mapped page blocks, with the GIL held.
        try:
            os.pwrite(self._fd, _BEAT.pack(os.getpid(), now_ns()), 0)
        except OSError:
            pass


def append_fact(path: Path, fact: dict[str, Any]) -> None:
    """Add a line; keys without a value are left out."""
    line = json.dumps({k: v for k, v in fact.items() if v is not None}) + "\n"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def last_attempt(run: Path, node: int) -> int:
    """The number of the last attempt that this node's launcher began; −1 if there is none."""
    last = -1
    try:
        lines = attempts_path(run, node).read_bytes().splitlines()
    except OSError:
        return last
    for line in lines:
        try:
            fact = json.loads(line)
            if fact["event"] == "start":
                last = max(last, int(fact["attempt"]))
        except (ValueError, KeyError, TypeError):
            continue  # the head, or a line that was cut off
    return last


def in_use(run: Path, node: int = 0) -> bool:
    """Whether a running launcher writes this log."""
    try:
        fd = os.open(attempts_path(run, node).with_suffix(".beat"), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(fd)
    return False


def last_beat(run: Path, node: int = 0) -> tuple[int, int] | None:
    """The launcher's pid and its last sign of life (monotonic), if it left one."""
    try:
        data = attempts_path(run, node).with_suffix(".beat").read_bytes()
        pid, t_ns = _BEAT.unpack(data)
    except (OSError, struct.error):
        return None
    return pid, t_ns
