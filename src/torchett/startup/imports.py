"""Imports on the side: a module that is needed later is loaded while the script waits.

    script       │ process group ┄┄ waits ┄┄ │ model │ AdamW(…) needs torch._dynamo: there already
    on the side  │ torch._dynamo ───── │ torch._inductor ─── │

Hides behind waiting and reading, hardly behind Python: there is one interpreter.
"""

import importlib
import logging
import os
import threading

from torchett.record.clock import now_ns
from torchett.record.threads import begin_beside
from torchett.startup.plan_run import to_flight_record

log = logging.getLogger("torchett")


def background_imports(*modules: str) -> threading.Thread:
    """Import the modules, in order, on a thread that is returned already started.

    A script that needs one before it is there waits for it at its own `import`, as Python's lock
    on each module has it; no error comes back from here, for that `import` will tell. Call it
    below the script's own `import torch`: two threads that import modules of one package which
    need each other may see one of them half done.
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
