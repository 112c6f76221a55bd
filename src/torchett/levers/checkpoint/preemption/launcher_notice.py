"""The file by which `ett run` says that a SIGTERM ends the job, not this rank alone."""

import os
import time

from torchett.record.clock import now_ns

_LAUNCHER_S = 0.5  # how long a rank waits for the file of a launcher that was told as well


def is_announced(notice: str) -> bool:
    """Whether the launcher's file is there, or about to be.

    A scheduler that signals every process of a job may come to this one first; our own agent
    says before it stops a rank for a peer's sake.
    """
    until_ns = now_ns() + int(_LAUNCHER_S * 1e9)
    stopped = f"{notice}-stopped-{os.environ.get('ETT_RESTART')}"
    leaves = f"{notice}-leaves-{os.environ.get('ETT_RESTART')}"  # for a change of members
    while not (os.path.exists(notice) or os.path.exists(leaves)):
        if os.path.exists(stopped) or now_ns() >= until_ns:
            return False
        time.sleep(0.005)
    return True
