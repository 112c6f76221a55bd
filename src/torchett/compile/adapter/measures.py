"""What torch measures of a compile only to write it down, left out where nobody reads it.

    guards        of every graph are timed once, after the CPU's caches were flushed: 20 ms, and
                  whatever comes next finds them empty
    cache keys    each part of a key is hashed once more by itself (torch 2.11; later torch asks
                  first): 20 ms for a model of 26 tables

With TORCH_TRACE or these logs switched on, everything is measured as ever.
"""

import logging
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchett.compile.adapter.wrapping import wrap

GUARDS, KEYS = "torch._dynamo.guards", "torch._inductor.codecache"


def spare_guards(guards: ModuleType) -> None:
    """Do not time guards; the module is `GUARDS`."""

    def latency_us(measure: Callable[..., float], *args: Any, **kwargs: Any) -> float:
        log = getattr(guards, "guards_log", None)
        return measure(*args, **kwargs) if _is_read(log) else 0.0

    wrap(guards, "profile_guard_manager", latency_us)


def spare_keys(codecache: ModuleType) -> None:
    """Do not take keys apart; the module is `KEYS`."""

    def lines(describe: Callable[..., list[str]], *args: Any, **kwargs: Any) -> list[str]:
        log = getattr(codecache, "log", None)
        return describe(*args, **kwargs) if _is_read(log) else []

    wrap(codecache.FxGraphCachePickler, "debug_lines", lines)


def _is_read(log: logging.Logger | None) -> bool:
    return bool(os.environ.get("TORCH_TRACE")) or log is None or log.isEnabledFor(logging.DEBUG)
