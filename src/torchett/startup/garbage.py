"""Garbage, left lying while a compile is under way.

    compile, first time    ▓▓▓▓▓▒▓▓▓▓▓▓▒▓▓▓▓▓▓▓▒▓▓▓▓    ▒ collections: every object is looked at
    without them           ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓       a tenth less

By the threshold, not by `gc.disable()`: a script that switches collections off meanwhile, as many
do, finds them off.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_RARELY = 2_000_000  # objects


@contextmanager
def rarely_collected() -> Iterator[None]:
    """In the body collections are rare; a threshold that the script sets meanwhile stays."""
    before = gc.get_threshold()
    ours = (_RARELY, *before[1:])
    if before[0]:  # 0: they are off
        gc.set_threshold(*ours)
    try:
        yield
    finally:
        if before[0] and gc.get_threshold() == ours:
            gc.set_threshold(*before)
