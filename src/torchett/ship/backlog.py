"""What of a run folder a server does not have yet, as batches of pieces.

The run folder is its own spool: what the server has not acknowledged stays where the recorder put
it, bounded as records are, the oldest bytes first in line. Only offsets are kept in memory.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchett.record.clock import clock_id
from torchett.record.flight.format import read_header
from torchett.ship.files import kind_of
from torchett.ship.protocol import BATCH_BYTES, MOST_PIECES, Piece
from torchett.ship.ring_copy import Reach, ring_copy

_HEADER_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20
_UNKNOWN = b"?"  # of a small file that the server has: sent or removed at the next look


@dataclass(slots=True)
class _Log:
    """A flight record: where its ring is, and how far its log reaches into it."""

    ring: Path | None = None
    reach: Reach | None = None
    ring_sent: bytes = b""
    mine: bool = True


class Backlog:
    """The unsent part of one run. With a `node`, only of what this node's processes write."""

    def __init__(self, run: Path, node: int | None = None) -> None:
        self.run = run
        self._node = node
        self._clock = clock_id()
        self._acked: dict[str, int] = {}
        self._replaced: dict[str, bytes] = {}  # what the server has of small files
        self._logs: dict[str, _Log] = {}
        self.left_bytes = 0  # after the last batch
        self.rings_wait = False  # whether it was without rings, as much else had to go first

    def resume(self, sizes: Mapping[str, int]) -> None:
        """Go on from what a server says that it has."""
        for name, size in sizes.items():
            if kind_of(name) == "grows":
                self._acked[name] = size
            else:
                self._replaced[name] = _UNKNOWN
        # The launchers' logs say whose run it is: their beginnings are sent, and compared, again.
        for name in sizes:
            if name.endswith(".jsonl"):
                self._acked[name] = 0

    def acknowledge(self, pieces: list[Piece], sizes: Mapping[str, int]) -> None:
        """Note what the server has on disk now."""
        for piece in pieces:
            if piece.replaces:
                self._replaced[piece.name] = piece.data
            else:
                self._acked[piece.name] = sizes.get(piece.name, self._acked.get(piece.name, 0))

    def batch(self, most_bytes: int = BATCH_BYTES) -> list[Piece]:
        """The next pieces to send: growing files first, then what is replaced."""
        names = sorted(self._names())
        # Rings before logs, so that no entry is in neither; not while much else has to go first.
        self.rings_wait = self.left_bytes > 0
        rings = {
            name: self._ring(name)
            for name in names
            if name.endswith(".ett") and not self.rings_wait
        }
        pieces: list[Piece] = []
        room, self.left_bytes = most_bytes, 0
        behind: set[str] = set()
        for name in names:
            if kind_of(name) != "grows":
                continue
            found, left = self._grown(name, room if len(pieces) < MOST_PIECES // 2 else 0)
            pieces += found
            room -= sum(len(piece.data) for piece in found)
            if left:
                self.left_bytes += left
                behind.add(name)
        for name in names:
            if len(pieces) >= MOST_PIECES:
                break
            if name.endswith(".beat"):
                pieces += self._changed(name, _read(self.run / name))
            elif name in rings and name not in behind:
                pieces += self._changed(f"{name.removesuffix('.ett')}.live", rings[name])
        return pieces

    @property
    def more(self) -> bool:
        """Whether there was more to send than the last batch holds."""
        return self.left_bytes > 0 or self.rings_wait

    def _names(self) -> Iterator[str]:
        """The files of the run that are this node's to send."""
        try:
            top = list(os.scandir(self.run))
        except OSError:
            return
        for entry in top:
            if entry.name.startswith("attempt-") and entry.is_dir(follow_symlinks=False):
                try:
                    inside = os.listdir(entry.path)
                except OSError:
                    continue
                for name in inside:
                    path = f"{entry.name}/{name}"
                    if kind_of(path) is not None and self._is_mine(path):
                        yield path
            elif kind_of(entry.name) is not None and (
                self._node is None or entry.name.startswith(f"attempts-{self._node}.")
            ):
                yield entry.name

    def _is_mine(self, name: str) -> bool:
        if name.endswith(".ett"):
            return self._log(name).mine
        if self._node is None:
            return True
        if name.endswith(".json"):
            try:
                clock = json.loads(_read(self.run / name))["anchor"]["clock"]
            except (ValueError, KeyError, TypeError):
                return False
            return bool(clock == self._clock)
        return False  # a ring that was moved beside its log goes with the log

    def _log(self, name: str) -> _Log:
        """What the first line of a record says; looked at again until it is whole."""
        known = self._logs.get(name)
        if known is not None:
            return known
        line = _read(self.run / name, _HEADER_BYTES).split(b"\n", 1)[0] + b"\n"
        try:
            header = read_header(line)
            here = header["anchor"]["clock"] == self._clock
        except (ValueError, KeyError, TypeError):
            return _Log(mine=self._node is None)
        ring = header.get("ring")
        found = _Log(
            ring=Path(ring) if isinstance(ring, str) and here else None,
            reach=Reach(len(line)),
            mine=here or self._node is None,
        )
        self._logs[name] = found
        return found

    def _grown(self, name: str, room: int) -> tuple[list[Piece], int]:
        """Pieces of what a file has grown by, as far as there is room; bytes left after them."""
        at, path = self._acked.get(name, 0), self.run / name
        pieces: list[Piece] = []
        try:
            size = path.stat().st_size
            if at >= size or room <= 0:
                return [], max(size - at, 0)
            with open(path, "rb") as file:
                while at < size and room > 0:
                    data = os.pread(file.fileno(), min(size - at, room, _PIECE_BYTES), at)
                    if not data:
                        return pieces, 0
                    pieces.append(Piece(name=name, offset=at, data=data))
                    at, room = at + len(data), room - len(data)
        except OSError:
            return pieces, 0
        return pieces, size - at

    def _ring(self, name: str) -> bytes:
        """What the ring of a record holds beyond its log; nothing where it is sealed."""
        beside = self.run / f"{name.removesuffix('.ett')}.live"
        if beside.exists():
            return _read(beside)
        log = self._log(name)
        if log.ring is None or log.reach is None or log.ring.suffix != ".ring":
            return b""
        try:
            with open(self.run / name, "rb") as file:
                reach = log.reach.follow(file.fileno(), os.fstat(file.fileno()).st_size)
        except OSError:
            return b""
        return ring_copy(log.ring, reach) or b""

    def _changed(self, name: str, data: bytes) -> list[Piece]:
        if data == self._replaced.get(name, b""):
            return []
        return [Piece(name=name, offset=0, data=data, replaces=True)]


def _read(path: Path, most: int = 1 << 22) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:
        return b""
