"""A template: a process that has imported torch once, and is forked for every rank.

    agent      spawns ─────────────── job ─────────── pid: adopts it, waits as for its own child
    template      imports, rehearses ──┬─ …  ready for the next
    rank                               └─ runs the script as __main__, 0.02 s later

It is forked twice: the process in between leaves at once, and the agent adopts the rank. A fork
copies one thread only, so a template that has more than one says so and is not forked.
"""

import os
import random
import socket
import sys
from typing import Any, NoReturn

from torchett.launch.standby import NO_JOB, be, prepare, told
from torchett.launch.standbys import receive, send


def main() -> NoReturn:
    """Prepare, and become what the agent asks for, time and again.

    What stands before `--` is done before anything is forked: every rank would have to do it.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    cut = sys.argv.index("--")
    first, later = sys.argv[2:cut], sys.argv[cut + 1 :]
    for name in first:
        prepare(name)
    while True:
        if later and not told(control):
            prepare(later.pop(0))
            continue
        try:
            job = receive(control)
            threads = len(os.listdir("/proc/self/task"))
            send(control, {"pid": _fork(control, job)} if threads == 1 else {"threads": threads})
        except (OSError, EOFError, ValueError):
            os._exit(NO_JOB)  # the agent is gone


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


if __name__ == "__main__":
    main()
