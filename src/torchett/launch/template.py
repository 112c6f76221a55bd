"""A template: a process that has imported torch once, and is forked for every rank.

    agent      imports ─┬───────────── job ──────────── pid: adopts it, waits as for its own child
    template            └─ waits ──────┬─ rehearses once the ranks train, waits
    rank                               └─ runs the script as __main__, 0.02 s later

A rank is forked twice: the process in between leaves at once, and the agent adopts the rank. A
fork copies one thread only, so a template that has more than one says so and is not forked. What it
has rehearsed, or compiled by a recipe, all later ranks have.
"""

import os
import random
import socket
import sys
from typing import Any, NoReturn

from torchett.launch.standby import (
    NO_JOB,
    be,
    cook_until_told,
    models_compiled,
    prepare,
    shorten_imports,
    told,
)
from torchett.launch.standbys import REHEARSAL, receive, send


def main() -> NoReturn:
    """Begin in an interpreter of its own: an agent that has threads cannot be forked."""
    shorten_imports()
    for name in sys.argv[2:]:
        prepare(name)
    serve(socket.socket(fileno=int(sys.argv[1])))


def serve(control: socket.socket) -> NoReturn:
    """Become what the agent asks for, time and again; rehearse when it has asked for that."""
    left: list[str] = []
    try:
        while True:
            if left and not told(control):
                prepare(left.pop(0))
                continue
            cook_until_told(control, _leave)
            asked = receive(control)
            if "argv" not in asked:
                left = [] if models_compiled() else [*REHEARSAL]  # that begins with no model
                continue
            left = []  # not while a rank starts up: it will be asked for again
            threads = len(os.listdir("/proc/self/task"))
            send(control, {"pid": _fork(control, asked)} if threads == 1 else {"threads": threads})
    except (OSError, EOFError, ValueError):
        _leave()  # the agent is gone


def _leave() -> NoReturn:
    os._exit(NO_JOB)


def _fork(control: socket.socket, job: dict[str, Any]) -> int:
    """The pid of a rank that runs the job, once it is an orphan."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            os.close(read)
            os.close(write)
            control.close()
            os.setsid()
            _reseed()
            be(job)
        os.write(write, str(pid).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(between, 0)
    with os.fdopen(read) as said:
        return int(said.read())


def _reseed() -> None:
    """Random numbers of its own, as every interpreter begins with."""
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


if __name__ == "__main__":
    main()
