"""Short turns: threads that work side by side hand the interpreter over ten times as often.

5 ms      compile ████████████████████████████████████████ (in Python, never lets go)
          restore ▌         ▌         ▌         ▌          each call of torch lets go, and
0.5 ms    compile ███ ███ ███ ███ ███ ███ ███ ███ ███ ███  waits for its next turn
          restore ▌ ▌▌ ▌ ▌▌ ▌▌ ▌ ▌▌ ▌▌ ▌ ▌▌ ▌ ▌ ▌▌ ▌
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_TURN_S = 0.0005
_lock = threading.Lock()
_users = 0
_usual_s = 0.0


@contextmanager
def short_turns() -> Iterator[None]:
    """While anybody is inside, turns are short; afterwards they are as they were."""
    global _users, _usual_s
    with _lock:
        _users += 1
        if _users == 1:
            _usual_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual_s, _TURN_S))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                sys.setswitchinterval(_usual_s)
