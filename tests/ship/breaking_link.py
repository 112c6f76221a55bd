"""A link to a server that breaks: what is sent passes in part, then both ends are reset."""

import socket
import struct
import threading


class BreakingLink:
    """A port on loopback before `port`. The first `breaks` connections end after some bytes.

    Every other one breaks on the way back: the server has taken what the sender believes lost.
    """

    def __init__(self, port: int, breaks: int) -> None:
        self.broken = 0
        self._to, self._breaks = port, breaks
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sender, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            turn, self.broken = self.broken, min(self.broken + 1, self._breaks)
            there = back = 1 << 62
            if turn < self._breaks:
                there, back = (500 + 7_919 * turn, 1 << 62) if turn % 2 else (1 << 62, 40)
            for one, other, most in ((sender, server, there), (server, sender, back)):
                threading.Thread(target=_pass_on, args=(one, other, most), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket, most: int) -> None:
    """Copy up to `most` bytes, then reset both."""
    passed = 0
    try:
        while data := one.recv(min(65_536, most - passed)):
            other.sendall(data)
            passed += len(data)
            if passed >= most:
                break
    except OSError:
        pass
    for end in (one, other):
        try:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        end.close()
