"""Background imports: a module that is needed later is imported while the script waits.

    script      │ process group ┄┄ waits ┄┄ │ model │ AdamW(…) needs torch._dynamo: imported by now
    background  │ torch._dynamo ───── │ torch._inductor ─── │

This hides imports behind waits and reads, not behind Python code: both need the GIL.
"""

import importlib
import logging
import os
import threading

from torchett.levers.startup.plan.plan_run import to_flight_record
from torchett.record.clock import now_ns
from torchett.record.process.joined_threads import begin_beside

log = logging.getLogger("torchett")


def background_imports(*modules: str) -> threading.Thread:
    """Import the modules, in order, on a thread; returns the started thread.

    A script that needs such a module earlier waits at its own `import`, by Python's module lock.
    Errors are only logged here: the script's `import` will raise them. Call this below the script's
    own `import torch`: if two threads import modules of one package that import each other, one
    thread may see a half-initialized module.
    """

    def load() -> None:
        t0 = now_ns()
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:
                log.debug("torchett: %s was not imported in the background: %r", name, error)
        try:
            to_flight_record("imports", t0, now_ns(), True)
        except Exception as error:
            log.debug("torchett: background imports were not recorded: %r", error)

    if os.environ.get("ETT_DISABLE") == "1":
        modules = ()
    return begin_beside(load, name="ett-imports")
