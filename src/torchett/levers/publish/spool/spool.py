"""The spool: publish jobs in a folder or behind a URL, and what became of them.

SPOOL/jobs/JOB.json        what to publish; created once
SPOOL/claims/JOB/…         who works on it
SPOOL/failures/JOB/…       tries that failed, each with its reason
SPOOL/done/JOB.json        the version it became
SPOOL/parked/JOB.json      given up, with the reason; `ett publish retry` brings it back
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torchett.levers.publish.errors import PublishError
from torchett.levers.publish.registry.numbered_log import NumberedLog
from torchett.levers.publish.spool.claims import LEASE_S, Claim, Claims
from torchett.levers.publish.spool.job import PublishJob
from torchett.store import Store, StoreError, open_store

_LIMIT = 4 << 20
_MOST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a job stands."""

    id: str
    state: Literal["waiting", "claimed", "done", "parked"]
    failures: int
    told: Mapping[str, Any]  # of a done job its version, of a parked one its reason


class Spool:
    """The jobs of one spool."""

    def __init__(self, url: str, *, lease_s: float = LEASE_S) -> None:
        try:
            self.store: Store = open_store(url)
        except StoreError as error:
            raise PublishError(f"spool {error}") from None
        self.url = url
        self.claims = Claims(self.store, lease_s=lease_s)
        self._dropped: dict[str, float] = {}

    def add(self, job: PublishJob) -> bool:
        """Whether the job is new: the same one is dropped once only."""
        return self.store.create(f"jobs/{job.id}.json", job.to_bytes())

    def job(self, job_id: str) -> PublishJob:
        name = f"jobs/{job_id}.json"
        try:
            return PublishJob.from_bytes(self.store.read(name, limit=_LIMIT), f"{self.url}/{name}")
        except FileNotFoundError:
            raise PublishError(f"{self.url} has no job {job_id!r}") from None

    def jobs(self) -> list[str]:
        """The ids of all jobs."""
        return self._ids("jobs")

    def open_jobs(self) -> list[str]:
        """The ids of jobs that are neither done nor parked, the one dropped first first."""
        over = {*self._ids("done"), *self._ids("parked")}
        return sorted((job for job in self.jobs() if job not in over), key=self._dropped_s)

    def _dropped_s(self, job_id: str) -> float:
        if job_id not in self._dropped:
            try:
                self._dropped[job_id] = self.job(job_id).dropped_s
            except PublishError:
                self._dropped[job_id] = 0.0  # unreadable: said when it is taken
        return self._dropped[job_id]

    def take(self, job_id: str) -> Claim | None:
        """A claim on a job; None if it is claimed, over, or failed a moment ago."""
        if self._fact("done", job_id) or self._fact("parked", job_id):
            return None
        log = self._failures(job_id)
        failures = log.last()
        if failures:
            since = time.time() - float(log.read(failures).get("at_s", 0.0))
            if 0 <= since < min(_MOST_WAIT_S, 0.5 * 2**failures):
                return None
        return self.claims.take(job_id)

    def finish(self, job_id: str, told: Mapping[str, Any]) -> None:
        """Say what a job became; the first to say so is believed."""
        self.store.create(f"done/{job_id}.json", _bytes(told))

    def fail(self, job_id: str, reason: str, *, tries: int) -> int:
        """Note a try that failed; how many there were. After `tries` of them the job is parked."""
        log = self._failures(job_id)
        number = log.last() + 1
        while not log.create(number, {"reason": reason, "at_s": time.time()}):
            number += 1
        if number >= tries:
            self.park(job_id, reason)
        return number

    def park(self, job_id: str, reason: str) -> None:
        told = {"reason": reason, "at_s": time.time()}
        self.store.create(f"parked/{job_id}.json", _bytes(told))

    def retry(self, job_id: str) -> None:
        """Let workers take a parked job again, or one that is done: its recipe may have changed."""
        self.job(job_id)
        for number in self._failures(job_id).numbers():
            self.store.delete(self._failures(job_id).name(number))
        self.store.write(f"forgiven/{job_id}.json", _bytes({"claims": self.claims.count(job_id)}))
        self.store.delete(f"parked/{job_id}.json")
        self.store.delete(f"done/{job_id}.json")

    def deaths(self, job_id: str) -> int:
        """How many workers began the job and ended without a word, at most."""
        forgiven = self._fact("forgiven", job_id) or {}
        begun = self.claims.count(job_id) - int(forgiven.get("claims", 0))
        return begun - self._failures(job_id).last()

    def standing(self, job_id: str) -> Standing:
        failures = self._failures(job_id).last()
        done, parked = self._fact("done", job_id), self._fact("parked", job_id)
        if done is not None:
            return Standing(id=job_id, state="done", failures=failures, told=done)
        if parked is not None:
            return Standing(id=job_id, state="parked", failures=failures, told=parked)
        told = self._failures(job_id).read(failures) if failures else {}
        claimed = self.claims.is_held(job_id)
        state: Literal["claimed", "waiting"] = "claimed" if claimed else "waiting"
        return Standing(id=job_id, state=state, failures=failures, told=told)

    def _failures(self, job_id: str) -> NumberedLog:
        return NumberedLog(self.store, f"failures/{job_id}")

    def _fact(self, kind: str, job_id: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self.store.read(f"{kind}/{job_id}.json", limit=_LIMIT))
        except FileNotFoundError:
            return None
        except ValueError:
            found = {}
        return found if isinstance(found, dict) else {}

    def _ids(self, kind: str) -> list[str]:
        names = (name.rsplit("/", 1)[-1] for name in self.store.names(kind))
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]


def _bytes(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, indent=1, sort_keys=True).encode()
