"""Snapshots: the state at one moment, on its way into memory that is kept for it.

The first state says how much memory that is; it is made ready in the background. Where there is
no room for it, a snapshot is the state itself, held still until it is written.
"""

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchett.checkpoint.arena import Arena, Slot, lay_out
from torchett.checkpoint.held import Held
from torchett.checkpoint.pieces import Collector, Pieces
from torchett.checkpoint.ranks import Ranks
from torchett.checkpoint.saves import Copy
from torchett.checkpoint.staging import Copier, stage
from torchett.record.memory import available_bytes
from torchett.record.threads import begin_beside

log = logging.getLogger("torchett")


class _Nothing:
    """A copy that was not made."""

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
    tensors: list[Any] = field(default_factory=list)
    blobs: list[bytes] = field(default_factory=list)
    per_rank: tuple[str, ...] = ()
    is_held: bool = False  # not in the arena: only this process can read it
    problem: str | None = None  # why there is none


class Snapshots:
    """Takes snapshots, one after the other."""

    def __init__(self, memory: int | None) -> None:
        self._memory = memory
        self._copier = Copier()
        self._arena: Arena | None = None
        self._empty: Arena | None = None
        self._layout: tuple[str, list[Slot], list[Any]] | None = None
        self._bound = 0  # bytes; more than 0: there is no room for a copy
        self._ready: threading.Thread | None = None

    @property
    def prepared(self) -> bool:
        return self._ready is not None

    def prepare(self, state: Mapping[str, Any], ranks: Ranks) -> None:
        """Make the arena ready in the background: the size is known now.

        What is wrong with a state on this rank alone is for `take` to say: the others are waiting.
        """
        self._collector = Collector(ranks.rank)
        try:
            pieces = self._collector.collect(state)
            excess = _excess(pieces.size, self._memory)
        except Exception as error:
            log.debug("torchett: no memory is made ready for checkpoints: %r", error)
            pieces, excess = None, 0
        # One rank without room for a copy, and all of them hold still: they upload together.
        self._bound = max(ranks.gather(excess))
        self._ready = begin_beside(self._make_ready, pieces, name="ett-arena")

    def _make_ready(self, pieces: Pieces | None) -> None:
        if pieces is None or self._bound:
            return
        try:
            arena, _, _ = self._fit(pieces)
            devices = {tensor.device for tensor in pieces.tensors if tensor.is_cuda}
            for device in devices:
                self._copier.stream(device)
            arena.make_ready(bool(devices))
        except Exception as error:
            log.debug("torchett: memory for checkpoints is not ready: %r", error)

    @property
    def ready(self) -> bool:
        """Whether a snapshot would not have to wait for memory."""
        return self._ready is not None and not self._ready.is_alive()

    def wait(self) -> None:
        """Return when the arena is ready."""
        assert self._ready is not None
        self._ready.join()

    def take(self, state: Mapping[str, Any]) -> Snapshot:
        """Begin to copy `state`; it does not raise: other ranks count on this one."""
        try:
            pieces = self._collector.collect(state)
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
            arena, slots, views = self._fit(pieces)
            copy = stage(pieces.tensors, views, self._copier)
            return Snapshot(arena=arena, copy=copy, slots=slots, tensors=views, **told)
        except Exception as error:
            arena = self._arena or self._nowhere()
            return Snapshot(arena=arena, problem=f"{type(error).__name__}: {error}")

    def _nowhere(self) -> Arena:
        """An arena for what is in none."""
        if self._empty is None:
            self._empty = Arena(1)
        return self._empty

    def _fit(self, pieces: Pieces) -> tuple[Arena, list[Slot], list[Any]]:
        """The arena with a slot for each tensor; a new one if the state has outgrown it."""
        if self._layout is None or self._layout[0] != pieces.plan_id:
            slots, size = lay_out(pieces.tensors)
            self._layout = None
            if self._arena is None or self._arena.size < size:
                old, self._arena = self._arena, Arena(size)
                if old is not None:
                    self._arena.make_ready(old.pinned)
                    old.close()
            views = [slot.view(self._arena.memory) for slot in slots]
            self._layout = (pieces.plan_id, slots, views)
        assert self._arena is not None
        return self._arena, self._layout[1], self._layout[2]


def _excess(size: int, bound: int | None) -> int:
    """The bound if the state is larger; without one, most of what memory is left to this rank."""
    if bound is None:
        ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        bound = int(0.8 * available_bytes() / ranks)
    return max(bound, 1) if size > bound else 0
