"""The offset of this host's clock to the head node's, from a few pings: the quickest counts.

here   t0 ────────╮              ╭──────── t1       round trip t1 − t0
head              ╰── t ─────────╯                  offset = t − (t0 + t1) / 2, ± half of it
"""

import signal
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

from torchett.model.errors import InputError

PORT = 29517
_PING = struct.Struct("<8sq")
_PONG = struct.Struct("<8sqq")
_MAGIC = b"ettclock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """What to add to the local clock to read the head's, and how sure that is."""

    offset_ns: int
    error_ns: int


def parse_address(text: str) -> tuple[str, int]:
    """HOST or HOST:PORT."""
    host, _, port = text.rpartition(":") if text.count(":") == 1 else (text, "", "")
    if not host or (port and not port.isdigit()):
        raise InputError(f"--head: expected HOST or HOST:PORT, found '{text}'")
    return host, int(port) if port else PORT


class ClockServer:
    """Answers pings with the head's time, in a thread, until closed."""

    def __init__(self, clock_ns: Callable[[], int], port: int = PORT, host: str = "") -> None:
        self._clock_ns = clock_ns
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, port))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, name="ett-clock", daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the launcher's
        while True:
            try:
                data, sender = self._socket.recvfrom(64)
                magic, ticket = _PING.unpack(data)
                if magic == _MAGIC:
                    self._socket.sendto(_PONG.pack(_MAGIC, ticket, self._clock_ns()), sender)
            except struct.error:
                continue  # not a ping
            except OSError:
                return


def measure(
    address: tuple[str, int], clock_ns: Callable[[], int], pings: int = 8, timeout_s: float = 0.5
) -> Offset | None:
    """The offset to the head's clock; None if it does not answer."""
    best: Offset | None = None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(timeout_s)
        for ticket in range(pings):
            try:
                before = clock_ns()
                sock.sendto(_PING.pack(_MAGIC, ticket), address)
                magic, answered, there = _PONG.unpack(sock.recv(64))
                after = clock_ns()
            except (OSError, struct.error):
                continue
            if magic != _MAGIC or answered != ticket:
                continue
            error = (after - before + 1) // 2
            if best is None or error < best.error_ns:
                best = Offset(offset_ns=there - (before + after) // 2, error_ns=error)
    return best
