"""A node's number, the number of nodes and the head, from torchrun's own rendezvous options.

    torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint gpu-1:29400 --rdzv-id gpt train.py
                     │                                      │                     │
                     nodes of the job      node 0 where it is this host     job train-gpt

The other nodes take the next free number, by exclusive creation of a file:

    ett-runs/.nodes/train-gpt/0    gpu-1
    ett-runs/.nodes/train-gpt/1    gpu-7      the same host gets the same number again

Numbers that a scheduler or the user gives count for more.
"""

import fcntl
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from torchett.launch.command import script_of, torchrun_words
from torchett.launch.scheduler.placement import Placement
from torchett.record.identity import safe_name

_KNOWN_BY = ("ETT_NODE", "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "SLURM_JOB_ID", "GROUP_RANK")
_held: list[int] = []  # locks of this process's claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where torchrun's nodes meet."""

    series: str  # what the job is called on every node
    host: str
    most_nodes: int


def rendezvous_of(command: Sequence[str], env: Mapping[str, str]) -> Rendezvous | None:
    """The rendezvous of this command; None for one node, or without its options."""
    words = torchrun_words(command)
    if words is None or any(env.get(name) for name in _KNOWN_BY):
        return None
    if _option(words, env, "rdzv-backend") != "c10d":
        return None
    endpoint, name = _option(words, env, "rdzv-endpoint"), _option(words, env, "rdzv-id")
    most = (_option(words, env, "nnodes") or "1").rpartition(":")[2]
    if not endpoint or not name or not most.isdecimal() or int(most) < 2:
        return None
    host = endpoint.rpartition(":")[0] if endpoint.count(":") == 1 else endpoint
    series = safe_name(f"{script_of(command)}-{name}")
    return Rendezvous(series=series, host=host, most_nodes=int(most))


def placed_by(rendezvous: Rendezvous, place: Placement, runs: Path, spares: int) -> Placement:
    """The placement with this node's number, which stays taken until this process ends."""
    first = 0 if _is_here(rendezvous.host) else 1
    node = _claim(runs / ".nodes" / rendezvous.series, first)
    return replace(
        place,
        node=node,
        nodes=max(rendezvous.most_nodes + spares, node + 1),
        head=place.head or rendezvous.host,
    )


def _claim(folder: Path, first: int) -> int:
    """The first free number; the first one if claims cannot be written."""
    host = socket.gethostname()
    for number in count(first):
        path = folder / str(number)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(fd, host.encode())
        except FileExistsError:
            if path.read_text() != host:
                continue
            fd = os.open(path, os.O_RDWR)
        except OSError:
            return first  # nothing can be kept: each node has a folder of its own
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue  # another launcher on this host
        except OSError:
            pass  # a file system without locks
        _held.append(fd)
        return number
    raise AssertionError


def _is_here(host: str) -> bool:
    """Whether this name is an address of this host: only such can be bound."""
    try:
        known = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in known:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind((address[0], 0))
                return True
        except OSError:
            continue
    return False


def _option(words: Sequence[str], env: Mapping[str, str], name: str) -> str | None:
    """An option of torchrun's, by its words or its environment."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        given, equals, value = word.partition("=")
        if given.replace("_", "-") == f"--{name}":
            return value if equals else following
        if word in ("-m", "--module") or (word.endswith(".py") and not word.startswith("-")):
            break
    return env.get(f"PET_{name.upper().replace('-', '_')}")
