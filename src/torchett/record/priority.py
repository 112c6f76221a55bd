"""A process beside training takes what cores the trainers leave.

Where the kernel groups processes by session (`sched_autogroup_enabled`), a nice value counts only
within the session, and each session has a share of its own. A helper that begins a session, so that
signals of the trainer's group do not reach it, has to lower the priority of its group, too.
"""

import contextlib
import os


def lower_priority(nice: int) -> None:
    """Let this process, and its session where it leads one, give way to others."""
    with contextlib.suppress(OSError):
        os.nice(nice)
    if os.getsid(0) != os.getpid():
        return  # the group is not this process's alone
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as group:
        group.write(str(nice))
