"""The tier in memory while training goes on: which buffer is next, and what is whole on all ranks.

    buffers   0 │ newest, whole on all ranks     kept until the next one is
              1 │ on its way: copied, checksum, neighbour's copy
              2 │ read by an upload

The next snapshot begins only when the one before is whole everywhere, or has failed. So all ranks
always hold one in common, whenever they are killed.
"""

import json
import logging
import pickle
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

from torchett.levers.checkpoint.memory.keeper_link import KeeperLink, Settings
from torchett.levers.checkpoint.memory.kept import SnapshotId
from torchett.levers.checkpoint.memory.plan import MemoryPlan
from torchett.levers.checkpoint.staging.arena import Arena
from torchett.levers.checkpoint.staging.snapshots import Snapshot
from torchett.levers.checkpoint.store_coordinator import Ranks
from torchett.record.api import note

log = logging.getLogger("torchett")

_ASK_S = 0.2
_PARTNER_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A snapshot that was begun, and the buffer that it is copied into."""

    number: int
    index: int
    id: SnapshotId
    snapshot: Snapshot


class MemoryTier:
    """This rank's snapshots; the same number is the same step on all ranks."""

    def __init__(self, ranks: Ranks, plan: MemoryPlan, settings: Settings) -> None:
        self._ranks, self.plan = ranks, plan
        self.job = settings.job
        self._link = KeeperLink(settings, self._hear)
        self._sent: dict[int, Arena] = {}  # arenas that the keeper has
        self._number = 0
        self._taken: dict[int, Taken] = {}  # what lies in each buffer
        self._newest: int | None = None  # buffer
        self._on_its_way: int | None = None
        self._settled = True  # on this rank
        self.step: int | None = None  # of the newest that is whole on all ranks
        self._step_on_its_way: int | None = None
        self.seconds = 0.0  # that the last one took until it was whole here
        self.cpu_s = 0.0  # of its copy, and of the keeper since the one before
        self._keeper_cpu_s = 0.0
        self._told = threading.Condition()
        self._answers: dict[str, dict[str, Any]] = {}
        self._head: tuple[str, bytes] = ("", b"")
        self._warned: set[str] = set()
        self._queue: queue.SimpleQueue[Taken] = queue.SimpleQueue()

    def begin(self, restored: str | None) -> list[Arena]:
        """Have a keeper; the memory that it held for the trainer before, which is used again.

        What this attempt was restored from stays until there is something newer.
        """
        arenas: list[Arena] = []
        try:
            for index, found in enumerate(self._link.begin(self._ranks.rank)):
                arena = Arena(found.size, found.fd)
                arenas.append(arena)
                self._sent[index] = arena
                if restored is not None and found.token == restored:
                    self._newest = index
        except OSError as error:
            self._warn(f"no keeper of snapshots could be begun: {error}")
        threading.Thread(target=self._work, name="ett-snapshots", daemon=True).start()
        return arenas

    @property
    def is_settled_here(self) -> bool:
        """Whether no snapshot of this rank is on its way."""
        return self._settled

    def has_room(self, uploading: int | None) -> bool:
        """Whether a buffer would be free if the snapshot before is whole."""
        taken = {self._on_its_way if self._on_its_way is not None else self._newest, uploading}
        return any(index not in taken for index in range(self.plan.buffers))

    # In the loop -----------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """On rank 0: whether the snapshot before is whole, or has failed, on every rank."""
        if not self._settled:
            return False
        if self._on_its_way is None:
            return True
        return self._counted("whole") + self._counted("failed") >= self._ranks.size

    def wait(self, timeout_s: float) -> None:
        """On rank 0: return when it is settled, or the time is over."""
        until = time.monotonic() + timeout_s
        while not self.is_settled() and time.monotonic() < until:
            time.sleep(0.01)

    def is_whole(self) -> bool:
        """On rank 0: whether the one before is whole on every rank."""
        return self._on_its_way is not None and self._counted("whole") >= self._ranks.size

    def _counted(self, what: str) -> int:
        return self._ranks.count(f"snapshot/{self._number}/{what}")

    def next_buffer(self, before_is_whole: bool, uploading: int | None) -> int | None:
        """The buffer to copy into; None as long as an upload reads the last one that is free."""
        if self._on_its_way is not None:
            if before_is_whole:
                self._newest, self.step = self._on_its_way, self._step_on_its_way
            if self._ranks.rank == 0:
                keys = (f"snapshot/{self._number}/{what}" for what in ("whole", "failed"))
                self._ranks.forget(keys)
            self._on_its_way = None
        for index in range(self.plan.buffers):
            if index not in (self._newest, uploading):
                return index
        return None

    def copies_into(self, index: int) -> None:
        """The bytes of this buffer are about to change."""
        self._number += 1
        self._taken.pop(index, None)
        self._on_its_way, self._settled = index, False
        try:
            if index in self._sent:
                self._link.begins(index)
        except OSError as error:
            self._warn(f"the keeper of snapshots is gone: {error}")

    def taken(self, index: int, id: SnapshotId, snapshot: Snapshot) -> None:
        """A copy is under way; what follows is done beside training."""
        self._step_on_its_way = id.step
        taken = Taken(number=self._number, index=index, id=id, snapshot=snapshot)
        self._taken[index] = taken
        self._queue.put(taken)

    def newest(self) -> str | None:
        """On rank 0: the token of the newest snapshot of this attempt that all ranks have."""
        index = self._on_its_way if self.is_whole() else self._newest
        found = None if index is None else self._taken.get(index)
        return None if found is None else found.id.token

    def taken_as(self, token: str) -> Taken | None:
        """The snapshot of this token, as long as it is kept."""
        return next((one for one in self._taken.values() if one.id.token == token), None)

    # Beside it -------------------------------------------------------------------------------

    def _work(self) -> None:
        self._find_partner()
        while True:
            taken = self._queue.get()
            began = time.monotonic()
            try:
                why = self._keep(taken)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            if why is not None:
                self._warn(f"the snapshot of step {taken.id.step} is not kept in memory: {why}")
            self.seconds = time.monotonic() - began
            keeper_cpu_s = max(0.0, self._link.cpu_s - self._keeper_cpu_s)
            self._keeper_cpu_s = self._link.cpu_s
            self.cpu_s = taken.snapshot.copy.cpu_s + keeper_cpu_s
            try:
                what = "whole" if why is None else "failed"
                self._ranks.count(f"snapshot/{taken.number}/{what}", 1)
            except Exception as error:  # the store has gone with rank 0: the job is ending
                log.debug("torchett: a snapshot could not be counted: %s", error)
            self._settled = True

    def _keep(self, taken: Taken) -> str | None:
        """Why the keeper has no such snapshot; None if it has."""
        snapshot = taken.snapshot
        if snapshot.problem is not None:
            return snapshot.problem
        snapshot.copy.wait()
        if not self._link.lives:
            self._sent.clear()
            self._link.begin(self._ranks.rank)
            self._find_partner()
        if self._sent.get(taken.index) is not snapshot.arena:
            self._link.buffer(taken.index, snapshot.arena.fd, snapshot.arena.size)
            self._sent[taken.index] = snapshot.arena
        self._link.whole(taken.index, taken.id, snapshot.size, self._head_of(snapshot))
        error = self._answer("sealed", taken.id.token)
        if error is not None:
            return error
        if self.plan.partner is not None:
            error = self._answer("copied", taken.id.token)
            if error is not None:
                self._find_partner(patience_s=0.0)
                self._warn(f"a snapshot has no copy on another node: {error}")
                note("snapshot_not_copied", {"step": taken.id.step, "error": error[:300]})
        return None

    def _answer(self, what: str, token: str) -> str | None:
        """What went wrong, as the keeper says; None if nothing did."""
        key = f"{what} {token}"
        with self._told:
            self._told.wait_for(lambda: key in self._answers or not self._link.lives)
            answer = self._answers.pop(key, {"error": "the keeper of snapshots has ended"})
            if what == "sealed" and len(self._answers) > 8:
                self._answers.clear()
        error = answer["error"]
        return None if error is None else str(error)

    def _hear(self, said: dict[str, Any]) -> None:
        with self._told:
            if said["said"] in ("sealed", "copied"):
                self._answers[f"{said['said']} {said['token']}"] = said
            self._told.notify_all()

    def _head_of(self, snapshot: Snapshot) -> bytes:
        """What is needed beside the bytes to load them: the plan, the slots, the small values."""
        if self._head[0] != snapshot.plan_id:
            self._head = snapshot.plan_id, pickle.dumps((snapshot.plan, snapshot.slots))
        return pickle.dumps((self._head[1], snapshot.blobs, snapshot.per_rank))

    def _find_partner(self, patience_s: float = _PARTNER_S) -> None:
        """Tell the others where this rank's keeper is, and the keeper where the neighbour's is."""
        if self.plan.partner is None:
            return
        try:
            port = self._link.listen_at(self.plan.host)
            address = json.dumps([self.plan.host, port])
            self._ranks.tell(f"keeper/{self._ranks.rank}", address)
            until = time.monotonic() + patience_s
            while (told := self._ranks.told(f"keeper/{self.plan.partner}")) is None:
                if time.monotonic() > until:
                    raise OSError(f"rank {self.plan.partner} has told no address")
                time.sleep(_ASK_S)
            there, at = json.loads(told)
            self._link.partner((str(there), int(at)))
        except Exception as error:
            self._warn(f"no other node holds copies of snapshots: {error}")

    def _warn(self, said: str) -> None:
        if said not in self._warned and len(self._warned) < 20:
            self._warned.add(said)
            log.warning("torchett: %s; training goes on", said)

    def close(self, *, ended_well: bool) -> None:
        """Give the memory back, if nothing has to outlive this process."""
        if ended_well:
            self._link.done()
        else:
            self._link.leaves()
