"""Claims: which worker has a job. A claim holds for as long as its holder shows life.

    claims/JOB/00000001.json    worker a ── beats ── killed
    claims/JOB/00000002.json                             └─ worker b ── beats ── done

A claim is created under the next number, so of two workers one gets it; the highest number has the
job. A holder on this host is alive if its process is. Another host's is alive while its beat
changes, timed by the clock of the one that looks: no two clocks are compared. A holder that comes
back late finds a higher number and stops; what it would have published is the same version anyway.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchett.levers.publish.errors import LostClaim, RegistryError
from torchett.levers.publish.registry.numbered_log import NumberedLog
from torchett.record.clock import process_start_ticks
from torchett.store import Store

LEASE_S = 60.0
BEAT_S = 5.0
RELEASED = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """This process has a job, under a number."""

    store: Store
    job: str
    number: int

    def still_ours(self) -> None:
        """LostClaim if another worker took over."""
        if _log(self.store, self.job).last() != self.number:
            raise LostClaim(f"{self.job}: another worker took over, which publishes it")

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Show life while the body runs; afterwards the job is free for any worker."""
        over = threading.Event()

        def beat() -> None:
            count = 0
            while True:
                count += 1
                self._beat(str(count))
                if over.wait(BEAT_S):
                    return

        beating = threading.Thread(target=beat, name="ett-claim", daemon=True)
        beating.start()
        try:
            yield
        finally:
            over.set()
            beating.join()
            self._beat(RELEASED)

    def _beat(self, text: str) -> None:
        try:
            self.store.write(_beat_name(self.job, self.number), text.encode())
        except Exception:
            pass  # shown again at the next beat; without any the claim lapses


class Claims:
    """Claims as one worker sees them over time."""

    def __init__(self, store: Store, *, lease_s: float = LEASE_S) -> None:
        self._store = store
        self._lease_s = lease_s
        self._me = {"host": _host(), "pid": os.getpid(), "ticks": process_start_ticks(os.getpid())}
        self._seen: dict[tuple[str, int], tuple[str, float]] = {}  # the beat, and since when

    def take(self, job: str) -> Claim | None:
        """A claim on the job; None while another has it."""
        log = _log(self._store, job)
        last = log.last()
        if last and not self._is_free(job, last, log):
            return None
        mine = {**self._me, "token": uuid.uuid4().hex, "at_s": time.time()}
        if not log.create(last + 1, mine):
            return None  # another was faster
        return Claim(store=self._store, job=job, number=last + 1)

    def is_held(self, job: str) -> bool:
        """Whether a worker has the job, as far as can be told at once."""
        log = _log(self._store, job)
        last = log.last()
        return bool(last) and not self._is_free(job, last, log)

    def count(self, job: str) -> int:
        """How often the job was claimed."""
        return _log(self._store, job).last()

    def _is_free(self, job: str, number: int, log: NumberedLog) -> bool:
        beat = self._beat(job, number)
        if beat == RELEASED:
            return True
        try:
            holder = log.read(number)
        except RegistryError:
            holder = {}
        if holder.get("host") == self._me["host"] and "pid" in holder:
            if process_start_ticks(int(holder["pid"])) != holder.get("ticks"):
                return True  # its process is gone
            if holder["pid"] == self._me["pid"]:
                return True  # ours, and we work on nothing now
        before, since = self._seen.get((job, number), (None, 0.0))
        now = time.monotonic()
        if before != beat:
            self._seen[job, number] = beat, now
            return False
        return now - since > self._lease_s

    def _beat(self, job: str, number: int) -> str:
        try:
            return self._store.read(_beat_name(job, number), limit=4096).decode()
        except FileNotFoundError:
            return ""


def _log(store: Store, job: str) -> NumberedLog:
    return NumberedLog(store, f"claims/{job}")


def _beat_name(job: str, number: int) -> str:
    return f"beats/{job}/{number:08d}"


def _host() -> str:
    """This host since it was started: after a reboot no process of before is alive."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = space = ""
    return json.dumps([socket.gethostname(), boot, space])
