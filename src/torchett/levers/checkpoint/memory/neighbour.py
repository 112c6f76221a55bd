"""A snapshot's copy on another node: how a keeper sends it, and how another one receives it.

    keeper of rank 0, node 0  ──── put: id, size, checksum, bytes ────►  keeper of rank 1, node 1
                              ◄──── "ok": every byte is as it was sent

Both show first that they know the job's secret. Bytes are sent no faster than allowed, and a
receiver holds two snapshots of each rank at most: one that is whole, one on its way.
"""

import contextlib
import logging
import socket
import threading
import time
import zlib
from collections.abc import Iterator

from torchett.levers.checkpoint.memory.frames import (
    PIECE,
    ask_who,
    read_into,
    receive,
    say_who,
    send,
)
from torchett.levers.checkpoint.memory.kept import Buffer, Sealed

log = logging.getLogger("torchett")

_PATIENCE_S = 10.0  # without a byte

Address = tuple[str, int]


@contextlib.contextmanager
def connected(
    address: Address, secret: bytes, timeout_s: float = _PATIENCE_S
) -> Iterator[socket.socket]:
    """A connection to another keeper; both sides know the secret."""
    with socket.create_connection(address, timeout_s) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        say_who(link, secret)
        yield link


def put(
    address: Address, secret: bytes, sealed: Sealed, data: memoryview, bytes_per_s: float
) -> None:
    """Send a snapshot to another keeper; OSError, EOFError or ValueError if it is not there."""
    with connected(address, secret) as link:
        send(link, {"op": "put", "sealed": sealed.to_json()}, sealed.head)
        answer, _, _ = receive(link)
        if answer.get("ok"):
            _send_slowly(link, data, bytes_per_s)
            answer, _, _ = receive(link)
        if not answer.get("ok"):
            raise ValueError(str(answer.get("error")))


def get(
    address: Address, secret: bytes, token: str, rank: int, timeout_s: float = _PATIENCE_S
) -> tuple[Sealed, Buffer]:
    """A rank's snapshot from another keeper, in memory of its own; not yet compared."""
    with connected(address, secret, timeout_s) as link:
        send(link, {"op": "get", "token": token, "rank": rank})
        answer, head, _ = receive(link)
        if not answer.get("ok"):
            raise ValueError(str(answer.get("error")))
        sealed = Sealed.from_json(answer["sealed"], head)
        buffer = Buffer.make(sealed.size)
        try:
            with buffer.viewed() as view:
                read_into(link, view[: sealed.size])
        except BaseException:
            buffer.close()
            raise
    return sealed, buffer


def _send_slowly(link: socket.socket, data: memoryview, bytes_per_s: float) -> None:
    began = time.monotonic()
    for at in range(0, len(data), PIECE):
        link.sendall(data[at : at + PIECE])
        ahead_s = (at + PIECE) / bytes_per_s - (time.monotonic() - began)
        if ahead_s > 0:
            time.sleep(ahead_s)


class Copies:
    """Snapshots of other nodes' ranks, received in turns into two buffers of each rank."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._buffers: dict[int, list[Buffer]] = {}
        self._busy: set[int] = set()  # ranks whose snapshot is on its way
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return sum(one.size for pair in self._buffers.values() for one in pair)

    def sealed(self) -> list[tuple[Sealed, Buffer]]:
        """The snapshots that are whole."""
        with self._lock:
            pairs = [one for pair in self._buffers.values() for one in pair]
            return [(one.sealed, one) for one in pairs if one.sealed is not None]

    def receive(self, link: socket.socket, sealed: Sealed) -> None:
        """Take a snapshot from the connection; ValueError if it cannot be taken, or is wrong."""
        rank = sealed.id.rank
        buffer = self._room_for(sealed)
        try:
            send(link, {"ok": True})
            with buffer.viewed() as view:
                crc = zlib.crc32(sealed.head)
                for at in range(0, sealed.size, PIECE):
                    piece = view[at : min(at + PIECE, sealed.size)]
                    read_into(link, piece)
                    crc = zlib.crc32(piece, crc)
                    piece.release()
            if crc != sealed.crc32:
                raise ValueError(f"the bytes have CRC {crc:08x}, {sealed.crc32:08x} was sent")
            buffer.sealed = sealed
        finally:
            with self._lock:
                self._busy.discard(rank)

    def _room_for(self, sealed: Sealed) -> Buffer:
        """A buffer that holds no snapshot, or the older one of two."""
        rank, size = sealed.id.rank, max(sealed.size, 1)
        with self._lock:
            if rank in self._busy:
                raise ValueError(f"a snapshot of rank {rank} is on its way already")
            pair = self._buffers.setdefault(rank, [])
            free = [one for one in pair if one.sealed is None]
            if not free and len(pair) == 2:
                free = [min(pair, key=lambda one: one.sealed.id.step if one.sealed else -1)]
            if free and free[0].size < size:
                pair.remove(free[0])
                free.pop().close()
            if not free:
                held = sum(one.size for two in self._buffers.values() for one in two)
                if held + size > self.most_bytes:
                    raise ValueError(
                        f"{held} bytes of copies are held here, {size} more would be over the "
                        f"{self.most_bytes} that are allowed"
                    )
                free = [Buffer.make(size)]
                pair.append(free[0])
            free[0].sealed = None
            self._busy.add(rank)
            return free[0]

    def forget(self, but: str | None) -> None:
        """Drop all snapshots but those of this token."""
        with self._lock:
            for rank, pair in list(self._buffers.items()):
                if rank in self._busy:
                    continue
                for one in list(pair):
                    if one.sealed is None or one.sealed.id.token != but:
                        pair.remove(one)
                        one.close()
                if not pair:
                    del self._buffers[rank]


def serve(
    link: socket.socket, secret: bytes, copies: Copies, found: "Iterator[tuple[Sealed, Buffer]]"
) -> None:
    """Answer one request of another keeper or trainer: to take a snapshot, or to give one."""
    link.settimeout(_PATIENCE_S)
    ask_who(link, secret)
    request, body, _ = receive(link)
    try:
        if request.get("op") == "put":
            copies.receive(link, Sealed.from_json(request["sealed"], body))
            send(link, {"ok": True})
            return
        for sealed, buffer in found:
            if sealed.id.token == request["token"] and sealed.id.rank == request["rank"]:
                send(link, {"ok": True, "sealed": sealed.to_json()}, sealed.head)
                with buffer.viewed() as view:
                    link.sendall(view[: sealed.size])
                return
        raise ValueError(f"no snapshot {request['token']} of rank {request['rank']} is here")
    except (ValueError, KeyError, TypeError) as error:
        send(link, {"ok": False, "error": str(error)})
