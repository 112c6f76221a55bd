"""Messages of an agent to a standby: the rank to run, as JSON over a socket pair.

agent     send({"argv": …, "env": …, "cwd": …, "stdout": …, "stderr": …}) ──► standby
standby   one byte, ENDED_WELL, when its script has ended with status 0    ──► agent
"""

import json
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

# What differs between ranks and attempts: a standby receives it with its job.
PER_RANK = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        *("ETT_ATTEMPT", "ETT_RESTART", "ETT_ATTEMPT_BEGAN", "ETT_RECORDER", "ETT_BEGAN"),
    )
)
ENDED_WELL = b"."
_LENGTH = struct.Struct("<I")


def job(
    argv: list[str], env: Mapping[str, str], stdout: str | None = None, stderr: str | None = None
) -> dict[str, Any]:
    """A rank that runs `python argv…` here, with this environment and these log files."""
    return {
        "argv": argv,
        "env": dict(env),
        "cwd": os.getcwd(),
        "stdout": stdout,
        "stderr": stderr,
    }


def common(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that all ranks of all attempts share."""
    return {
        key: value
        for key, value in env.items()
        if key not in PER_RANK and not key.startswith("TORCHELASTIC_")
    }


def send(control: socket.socket, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode()
    control.sendall(_LENGTH.pack(len(data)) + data)


def receive(control: socket.socket) -> dict[str, Any]:
    """The next message; EOFError if the other side is gone."""
    (length,) = _LENGTH.unpack(_exactly(control, _LENGTH.size))
    message: dict[str, Any] = json.loads(_exactly(control, length))
    return message


def _exactly(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = control.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
