"""Meeting: a rank that comes to the store before rank 0 has opened it looks again at once.

    torch    rank 1 ─ refused ─ pauses for 0.25 to 0.75 s ────────── comes in
             rank 0 ─── opens ─┤ waits for all ─────────────────────┤
    here     rank 1 ─ refused ─┤ comes in
             rank 0 ─── opens ─┤

Rank 0 often has more to do before: of the demo's starts one in seven had an early rank.
"""

import functools
import logging
import socket
import time
from typing import Any

from torchett.record.boarding import when_imported

log = logging.getLogger("torchett")

_PAUSE_S = 0.005
_PATIENCE_S = 10.0  # then torch may pause as it likes: its time-out is minutes
_CONNECT_S = 1.0


def board() -> None:
    """Have it done wherever torch makes a store for a rank."""
    when_imported("torch.distributed.rendezvous", come_in_at_once)


def come_in_at_once(rendezvous: Any) -> None:
    """Let no rank but the one that opens the store ask for it before it is open."""
    create = rendezvous._create_c10d_store

    @functools.wraps(create)
    def created(hostname: str, port: int, rank: int, *args: Any, **kwargs: Any) -> Any:
        if rank != 0:
            wait_until_open(hostname, port)
        return create(hostname, port, rank, *args, **kwargs)

    rendezvous._create_c10d_store = created


def wait_until_open(hostname: str, port: int) -> None:
    """Return when somebody listens there, or when that is not to be found out."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        try:
            socket.create_connection((hostname, port), _CONNECT_S).close()
            return
        except ConnectionRefusedError:
            time.sleep(_PAUSE_S)
        except Exception as error:  # torch will say what it means
            log.debug("torchett: %s:%s is not asked: %r", hostname, port, error)
            return
