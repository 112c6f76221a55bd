"""Garbage, left lying while a process starts and while a compile is under way.

    imports, a compile     ▓▓▓▓▓▒▓▓▓▓▓▓▒▓▓▓▓▓▓▓▒▓▓▓▓    ▒ collections: every object is looked at
    without them           ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓       a tenth less, a sixth of imports

By the threshold, not by `gc.disable()`: a script that switches collections off meanwhile, as many
do, finds them off; and a threshold that it sets stays.
"""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_RARELY = 2_000_000  # objects
_START_S = 20.0
_lock = threading.Lock()
_users = 0
_usual = (0, 0, 0)


@contextmanager
def rarely_collected() -> Iterator[None]:
    """While anybody is inside, collections are rare; afterwards they are as they were."""
    _enter()
    try:
        yield
    finally:
        _leave()


def rarely_at_first() -> None:
    """From now on until a process has usually started: most of what it makes is there to stay."""
    _enter()
    usual_again = threading.Timer(_START_S, _leave)
    usual_again.daemon = True
    usual_again.start()


def _enter() -> None:
    global _users, _usual
    with _lock:
        _users += 1
        if _users == 1:
            _usual = gc.get_threshold()
            if _usual[0]:  # 0: they are off
                gc.set_threshold(_RARELY, *_usual[1:])


def _leave() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _put_back()


def _put_back() -> None:
    if _usual[0] and gc.get_threshold() == (_RARELY, *_usual[1:]):
        gc.set_threshold(*_usual)


def _forget() -> None:
    """In a forked process nobody is inside: a loader's worker, most of all."""
    global _lock, _users
    _lock = threading.Lock()
    if _users:
        _users = 0
        _put_back()


os.register_at_fork(after_in_child=_forget)
