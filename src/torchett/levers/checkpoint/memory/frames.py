"""Messages of the keeper: a JSON object, some bytes, and on a socket of this node open files.

    length of the object, length of the bytes │ object │ bytes

Nothing that comes over a socket is unpickled here.
"""

import hashlib
import hmac
import json
import os
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct("<IQ")
_MOST_HEAD = 1 << 20
_MOST_BODY = 1 << 30
_MOST_FDS = 16
_NONCE = 16
PIECE = 4 << 20


def send(
    link: socket.socket, head: dict[str, Any], body: bytes = b"", fds: tuple[int, ...] = ()
) -> None:
    """Send a message; open files travel with its lengths."""
    told = json.dumps(head).encode()
    lengths = _LENGTHS.pack(len(told), len(body))
    if fds:
        socket.send_fds(link, [lengths], fds)
    else:
        link.sendall(lengths)
    link.sendall(told)
    link.sendall(body)


def receive(link: socket.socket) -> tuple[dict[str, Any], bytes, list[int]]:
    """The next message; EOFError if the other side is gone, ValueError if it is none."""
    lengths, fds, _, _ = socket.recv_fds(link, _LENGTHS.size, _MOST_FDS)
    try:
        if not lengths:
            raise EOFError
        lengths += read(link, _LENGTHS.size - len(lengths))
        head_size, body_size = _LENGTHS.unpack(lengths)
        if head_size > _MOST_HEAD or body_size > _MOST_BODY:
            raise ValueError(f"a message of {head_size} and {body_size} bytes")
        head = json.loads(read(link, head_size))
        if not isinstance(head, dict):
            raise ValueError("expected an object")
        return head, read(link, body_size), list(fds)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def read(link: socket.socket, size: int) -> bytes:
    """Exactly so many bytes."""
    data = bytearray(size)
    read_into(link, memoryview(data))
    return bytes(data)


def read_into(link: socket.socket, view: memoryview) -> None:
    """Fill the view; EOFError if the other side ends before."""
    at = 0
    while at < len(view):
        took = link.recv_into(view[at : at + PIECE])
        if not took:
            raise EOFError
        at += took


def ask_who(link: socket.socket, secret: bytes) -> None:
    """Make sure that the other side knows the job's secret; PermissionError if it does not."""
    nonce = os.urandom(_NONCE)
    link.sendall(nonce)
    if not hmac.compare_digest(read(link, 32), _answer(secret, nonce, b"asks")):
        raise PermissionError("the other side does not know this job's secret")
    link.sendall(_answer(secret, nonce, b"serves"))


def say_who(link: socket.socket, secret: bytes) -> None:
    """Show that this side knows the job's secret, and make sure that the other one does."""
    nonce = read(link, _NONCE)
    link.sendall(_answer(secret, nonce, b"asks"))
    if not hmac.compare_digest(read(link, 32), _answer(secret, nonce, b"serves")):
        raise PermissionError("the other side does not know this job's secret")


def _answer(secret: bytes, nonce: bytes, side: bytes) -> bytes:
    return hmac.digest(secret, nonce + side, hashlib.sha256)
