"""The exception that ended a process of a job, whether the process had a record or not.

    attempt-0/crash-1-4711.json   {"attempt":0,"rank":1,"error":"ImportError: …","t_ns":…, …}

A script that fails at an import never gets to its first step, and nothing else would say why. Only
the first process of a rank counts: its helpers inherit ETT_RANK_PROCESS.
"""

import atexit
import json
import os
import sys
from pathlib import Path

_LONGEST = 500
_NOT_A_RANKS = ("ChildFailedError",)  # of torchrun: its ranks have raised


def install_plugin() -> None:
    """At exit, write the exception that ended this process, if it is a rank's first process."""
    env = os.environ
    run = env.get("ETT_RUN")
    mine = f"{run}:{env.get('ETT_ATTEMPT')}.{env.get('ETT_RESTART')}:{env.get('RANK')}"
    if run and env.get("ETT_RANK_PROCESS") != mine:
        env["ETT_RANK_PROCESS"] = mine
        atexit.register(_write, os.getpid(), Path(run))


def _write(pid: int, run: Path) -> None:
    error = getattr(sys, "last_value", None)
    if error is None or os.getpid() != pid or type(error).__name__ in _NOT_A_RANKS:
        return
    from torchett.record.clock import anchor, now_ns
    from torchett.record.flight.format import attempt_folder

    lane = [os.environ.get(key, "") for key in ("ETT_ATTEMPT", "ETT_RESTART", "RANK")]
    attempt, restart, rank = (int(text) if text.isdecimal() else 0 for text in lane)
    fact = {
        "attempt": attempt,
        "restart": restart,
        "rank": rank,
        "error": f"{type(error).__name__}: {error}"[:_LONGEST],
        "at": _place(error),
        "t_ns": now_ns(),
        "anchor": anchor().to_json(),
    }
    try:
        folder = attempt_folder(run, attempt, restart)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"crash-{rank}-{pid}.json").write_text(json.dumps(fact))
    except OSError:
        pass  # a full disk: only the exit status is left


def _place(error: BaseException) -> str | None:
    """The file and line that raised: the innermost one that is no installed package's."""
    found, trace = None, error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if found is None or not ("site-packages" in name or name.startswith((sys.prefix, "<"))):
            found = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
