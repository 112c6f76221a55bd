"""Snapshots: the state at one moment, on its way into memory that is kept for it.

Of what the ranks of a node hold alike, each copies a part (`state/division.py`).

The first state says how much memory that is; it is made ready in the background. Where there is
no room for it, a snapshot is the state itself, held still until it is written.
"""

import logging
import os
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchett.levers.checkpoint.memory import plan as memory
from torchett.levers.checkpoint.memory.plan import MemoryPlan
from torchett.levers.checkpoint.staging.arena import Arena, Slot, lay_out
from torchett.levers.checkpoint.staging.blocking_copy import Held
from torchett.levers.checkpoint.staging.staging import Copier, stage
from torchett.levers.checkpoint.state.division import (
    Division,
    divide,
    form_of,
    own_part,
    replicated,
)
from torchett.levers.checkpoint.state.pieces import Collector, Pieces
from torchett.levers.checkpoint.store_coordinator import Ranks
from torchett.levers.checkpoint.upload.saves import Copy
from torchett.record.api import note
from torchett.record.process.joined_threads import begin_beside
from torchett.record.process.memory import available_bytes

log = logging.getLogger("torchett")


_SPARE = 1 << 20
_WANTED = "division/wanted"


class _Nothing:
    """A copy that was not made."""

    cpu_s = 0.0
    sums: Mapping[Any, int] = {}

    def wait(self) -> None:
        pass

    def waited_s(self) -> float:
        return 0.0

    def release(self) -> None:
        pass


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """A state being copied; `tensors` are where it will lie."""

    arena: Arena
    copy: Copy = field(default_factory=_Nothing)
    plan: Any = None
    plan_id: str = ""
    slots: list[Slot] = field(default_factory=list)
    size: int = 0  # bytes of the arena that it takes
    tensors: list[Any] = field(default_factory=list)
    blobs: list[bytes] = field(default_factory=list)
    per_rank: tuple[str, ...] = ()
    is_summed: bool = True  # what other ranks copy has checksums, to compare it by
    is_held: bool = False  # not in the arena: only this process can read it
    problem: str | None = None  # why there is none


class Snapshots:
    """Takes snapshots, one after the other, into as many arenas as the plan says."""

    def __init__(self, memory: int | None) -> None:
        self._memory = memory
        self._copier = Copier()
        self._arenas: dict[int, Arena] = {}
        self._empty: Arena | None = None
        self._layout: tuple[str, list[Slot], int] | None = None
        self._views: dict[int, tuple[str, list[Any]]] = {}
        self._bound = 0  # bytes; more than 0: there is no room for a copy
        self._ready: threading.Thread | None = None
        self._first: Pieces | None = None
        self._buffers = 1
        self._here: list[int] = []  # the ranks of this node
        self._divides = False  # whether any node has several ranks
        self._division = Division()
        self._noticed = ""  # the last plan that was compared with the division
        self._differed = 0  # how often another division was wanted

    @property
    def prepared(self) -> bool:
        return self._ready is not None

    def prepare(
        self,
        state: Mapping[str, Any],
        ranks: Ranks,
        *,
        outlives: bool,
        held: int,
    ) -> MemoryPlan:
        """Plan the memory with the other ranks; `held` bytes are there from the attempt before.

        What is wrong with a state on this rank alone is for `take` to say: the others are waiting.
        """
        self._collector, self._ranks = Collector(ranks.rank), ranks
        nodes = ranks.gather(memory.node())
        self._here = [rank for rank, node in enumerate(nodes) if node == nodes[ranks.rank]]
        self._divides = len(set(nodes)) < len(nodes)
        size, bound = 0, self._bound_of(held)
        whole = self.divide(state, 0)
        try:
            if whole is not None:
                self._first = own_part(whole, self._division, ranks.rank)
                _, size = self._laid_out(self._first)
        except Exception as error:
            log.debug("torchett: no memory is made ready for checkpoints: %r", error)
        excess = max(bound, 1) if size > bound else 0
        told = ranks.gather((excess, memory.here(size, bound)))
        # One rank without room for a copy, and all of them hold still: they upload together.
        self._bound = max(excess for excess, _ in told)
        rooms = [room for _, room in told]
        plan = memory.memory_plan(rooms, ranks.rank, outlives=outlives and not self._bound)
        if outlives and ranks.rank == 0 and (said := memory.said(plan, rooms)) is not None:
            log.warning("torchett: %s", said)
        note("checkpoint_memory", memory.to_note(plan))
        self._buffers = plan.buffers
        return plan

    @property
    def division(self) -> int:
        """The number of the division that this rank keeps to."""
        return self._division.number

    def wanted(self) -> str:
        """On rank 0: another text whenever a rank has asked to divide the state anew."""
        return (self._ranks.told(_WANTED) or "") if self._divides else ""

    def divide(self, state: Mapping[str, Any], number: int) -> Pieces | None:
        """Agree with this node's ranks who copies what; on every rank, with the same number."""
        pieces = None
        try:
            pieces = self._collector.collect(state)
        except Exception as error:
            log.debug("torchett: no state to divide between ranks: %r", error)
        self._division = divide(pieces, self._ranks, self._here, number)
        return pieces

    def make_ready(self, adopt: Callable[[], Sequence[Arena]]) -> None:
        """Make the memory ready in the background, where `adopt` may return some that is there."""
        self._ready = begin_beside(self._make_ready, adopt, name="ett-arena")

    def _bound_of(self, held: int) -> int:
        """How many bytes this rank may hold: as told, else most of what memory is left to it."""
        if self._memory is not None:
            return self._memory
        ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        return int(0.8 * (available_bytes() + held) / ranks)

    def _make_ready(self, adopt: Callable[[], Sequence[Arena]]) -> None:
        pieces, self._first = self._first, None
        try:
            self._arenas.update(enumerate(adopt()))
            if pieces is None or self._bound:
                return
            _, size = self._laid_out(pieces)
            devices = {tensor.device for tensor in pieces.tensors if tensor.is_cuda}
            for device in devices:
                self._copier.stream(device)
            for index in range(self._buffers):
                arena = self._arenas.get(index)
                if arena is None or not _fits(arena, size):
                    arena = self._arenas[index] = Arena(size)
                arena.make_ready(bool(devices))
        except Exception as error:
            log.debug("torchett: memory for checkpoints is not ready: %r", error)

    @property
    def ready(self) -> bool:
        """Whether a snapshot would not have to wait for memory."""
        return self._ready is not None and not self._ready.is_alive()

    def wait(self) -> None:
        """Return when the arenas are ready."""
        assert self._ready is not None
        self._ready.join()

    def take(
        self,
        state: Mapping[str, Any],
        index: int = 0,
        compares: Callable[[str], bool] = lambda plan_id: False,
    ) -> Snapshot:
        """Begin to copy `state` into an arena; it does not raise: other ranks count on this one.

        `compares` says of a plan whether its tensors are to be compared with other ranks'.
        """
        try:
            whole = self._collector.collect(state)
            pieces = whole
            if not self._bound:
                self._notice(whole)
                pieces = own_part(whole, self._division, self._ranks.rank)
            told = {
                "plan": pieces.plan,
                "plan_id": pieces.plan_id,
                "blobs": pieces.blobs,
                "per_rank": pieces.per_rank,
            }
            if self._bound:
                held = Held(pieces.tensors, pieces.size, self._bound)
                return Snapshot(
                    arena=self._nowhere(), copy=held, tensors=held.tensors, is_held=True, **told
                )
            arena, slots, size, views = self._fit(pieces, index)
            summed = self._divides and compares(pieces.plan_id)
            copy = stage(
                pieces.tensors, views, self._copier, self._to_sum(whole) if summed else None
            )
            return Snapshot(
                arena=arena,
                copy=copy,
                slots=slots,
                size=size,
                tensors=views,
                is_summed=summed or not self._divides,
                **told,
            )
        except Exception as error:
            arena = self._arenas.get(index) or self._nowhere()
            return Snapshot(arena=arena, problem=f"{type(error).__name__}: {error}")

    def _notice(self, pieces: Pieces) -> None:
        """Ask for another division if this rank's large tensors are not those it is made for."""
        if len(self._here) < 2 or pieces.plan_id == self._noticed:
            return
        self._noticed = pieces.plan_id
        form = form_of(replicated(pieces))
        if form == self._division.tried:
            return
        self._differed += 1
        if self._differed & (self._differed - 1) == 0:  # ever more rarely: some grow at each save
            said = sorted(str(one) for one in form)
            self._ranks.tell(_WANTED, f"{zlib.crc32(repr(said).encode()):08x}")

    def _to_sum(self, pieces: Pieces) -> dict[Any, Any]:
        """What is compared where it is: on a GPU all large ones, as nodes differ in divisions."""
        owners = self._division.owners
        found = replicated(pieces)
        return {i: tensor for i, tensor in found.items() if i in owners or tensor.is_cuda}

    def _nowhere(self) -> Arena:
        """An arena for what is in none."""
        if self._empty is None:
            self._empty = Arena(1)
        return self._empty

    def _laid_out(self, pieces: Pieces) -> tuple[list[Slot], int]:
        """A slot for each tensor, and the bytes of all."""
        if self._layout is None or self._layout[0] != pieces.plan_id:
            self._layout = (pieces.plan_id, *lay_out(pieces.tensors))
        return self._layout[1], self._layout[2]

    def _fit(self, pieces: Pieces, index: int) -> tuple[Arena, list[Slot], int, list[Any]]:
        """The arena with a slot for each tensor; a new one if the state has outgrown it."""
        slots, size = self._laid_out(pieces)
        arena = self._arenas.get(index)
        if arena is None or not _fits(arena, size):
            self._views.pop(index, None)
            old, arena = arena, Arena(size)
            self._arenas[index] = arena
            if old is not None:
                arena.make_ready(old.pinned)
                old.close()
        if index not in self._views or self._views[index][0] != pieces.plan_id:
            views = [slot.view(arena.memory) for slot in slots]
            self._views[index] = (pieces.plan_id, views)
        return arena, slots, size, self._views[index][1]


def _fits(arena: Arena, size: int) -> bool:
    """Whether it is large enough, and not much too large: the state was divided since."""
    return size <= arena.size <= 2 * size + _SPARE
