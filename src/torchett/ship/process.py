"""A process beside the trainers that ships their run: of lowest priority, gone with its launcher.

    ett run ──► python -m torchett.ship RUN URL NODE      while an attempt runs
            └─► flush                                     in the launcher, once the job is over

It holds no state that matters: killed at any point, the next one asks the server where to go on.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from torchett.record.priority import lower_priority
from torchett.ship.backlog import Backlog
from torchett.ship.client import RefusedError, Server, Shipper

_LAST_S = 10.0  # for what is left when the launcher is gone


def start(run: Path, url: str, node: int, env: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """A process that ships the run while this one lives; None if it cannot be started."""
    command = [sys.executable, "-m", "torchett.ship", str(run), url, str(node)]
    try:
        return subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C at a terminal ends the job, which ends this
        )
    except OSError:
        return None


def follow(
    shipper: Shipper,
    over: Callable[[], bool],
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Ship until `over`, then what is left."""
    while not over():
        pause_s = shipper.send()
        waited = 0.0
        while waited < pause_s and not over():
            part = min(pause_s - waited, 0.5)
            sleep(part)
            waited += part
    shipper.flush(_LAST_S)


def main(run: str, url: str, node: str) -> int:
    """The process: ships until the process that started it is gone."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    lower_priority(19)
    parent = os.getppid()
    say = _say
    try:
        backlog = Backlog(Path(run), int(node))
        shipper = Shipper(backlog, Server.of(url, os.environ), say=say)
        follow(shipper, lambda: os.getppid() != parent)
    except RefusedError as error:
        say(f"not shipped: {error}")
        return 1
    return 0


def _say(text: str) -> None:
    try:
        print(f"ett: {text}", file=sys.stderr, flush=True)
    except OSError:
        pass
