"""The keepers of this job on this node, and the snapshots that they hold.

A keeper listens at a name that is not in any file system: it is seen by the processes of the same
network namespace, so of the same node or container, and is gone with the keeper.
"""

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchett.levers.checkpoint.memory.frames import receive, send
from torchett.levers.checkpoint.memory.kept import Buffer, Sealed

_PATIENCE_S = 10.0
_LEAVES_S = 5.0  # how long a trainer that was killed may take to be gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A snapshot that a keeper holds: of its own trainer's rank, or a copy of another node's."""

    sealed: Sealed  # without its head
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperHere:
    """A keeper of this node, and what it says it holds."""

    name: str
    job: str
    secret: bytes
    port: int
    trainer_lives: bool
    held_bytes: int
    snapshots: tuple[Held, ...]


def name_of(where: str) -> str:
    """What the names of the keepers of a job begin with: the one that saves to this place."""
    return f"ett-snapshots-{os.getuid()}-{hashlib.sha256(where.encode()).hexdigest()[:16]}"


def keepers_here(where: str) -> list[KeeperHere]:
    """The keepers of this job on this node whose trainers are dead, or which say who lives."""
    found = []
    for name in _names(name_of(where)):
        with contextlib.suppress(OSError, EOFError, ValueError, KeyError, TypeError):
            found.append(_listing(name))
    return found


def any_here(where: str) -> bool:
    """Whether there is a keeper of this job on this node."""
    return bool(_names(name_of(where)))


def left_here(where: str) -> list[KeeperHere]:
    """The keepers whose trainers are dead; one that is being killed is given a moment."""
    until = time.monotonic() + _LEAVES_S
    found = keepers_here(where)
    while any(one.trainer_lives for one in found) and time.monotonic() < until:
        time.sleep(0.05)
        found = keepers_here(where)
    return [one for one in found if not one.trainer_lives]


def mapped(name: str, token: str, rank: int) -> tuple[Sealed, Buffer]:
    """A rank's snapshot in the memory that its keeper holds; not yet compared."""
    with reached(name) as link:
        send(link, {"op": "map", "token": token, "rank": rank})
        answer, head, fds = receive(link)
        if not answer.get("ok"):
            raise ValueError(f"no snapshot {token} of rank {rank} is there any more")
        return Sealed.from_json(answer["sealed"], head), Buffer(fds[0], int(answer["bytes"]))


def forget(name: str, but: str | None) -> None:
    """Have a keeper drop its snapshots but those of this token."""
    with reached(name) as link:
        send(link, {"op": "forget", "but": but})
        receive(link)


def end(name: str) -> None:
    """Have a keeper end, if its trainer is dead."""
    with reached(name) as link:
        send(link, {"op": "end"})
        receive(link)


@contextlib.contextmanager
def reached(name: str) -> Iterator[socket.socket]:
    """A connection to a keeper of this node."""
    link = connect(name)
    try:
        yield link
    finally:
        link.close()


def connect(name: str) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(_PATIENCE_S)
        link.connect(f"\0{name}")
    except OSError:
        link.close()
        raise
    return link


def _names(begin: str) -> list[str]:
    """The names of all keepers that begin so, by the kernel's table of sockets."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
            last = {line.split()[-1] for line in table}
    except OSError:  # not Linux
        return []
    return sorted(word[1:] for word in last if word.startswith(f"@{begin}-"))


def _listing(name: str) -> KeeperHere:
    with reached(name) as link:
        send(link, {"op": "list"})
        told, secret, _ = receive(link)
    return KeeperHere(
        name=name,
        job=str(told["job"]),
        secret=secret,
        port=int(told["port"]),
        trainer_lives=bool(told["trainer_lives"]),
        held_bytes=int(told["held_bytes"]),
        snapshots=tuple(_held(one) for one in told["snapshots"]),
    )


def _held(told: dict[str, Any]) -> Held:
    return Held(sealed=Sealed.from_json(told, b""), own=bool(told["own"]))
