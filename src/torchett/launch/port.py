"""The port that rank 0 will listen on, kept for it until it does.

    torch   agent ─ 36157 is free ─┬─ rank 0: imports … device … ─ listens ✗ taken meanwhile
    here    agent ─ holds 36157 ───┼─ rank 0: imports … device … ─ listens, beside who holds it
                                   └─ any other program that asks for a port is given another

A socket that is bound and does not listen gives way to one that says SO_REUSEADDR, as torch's store
does, and to no other.
"""

import socket
from typing import Any

_held: socket.socket | None = None


def keep_ports(rendezvous: Any) -> None:
    """Have torch's rendezvous (`torch.distributed.elastic.rendezvous.api`) choose such a port."""
    theirs = rendezvous.get_free_port

    def free_port() -> int:
        try:
            return kept_port()
        except OSError:
            return int(theirs())

    rendezvous.get_free_port = free_port


def kept_port() -> int:
    """A port that nobody else is given; the one before it is let go."""
    global _held
    if _held is not None:
        _held.close()
        _held = None
    both = socket.has_dualstack_ipv6()
    held = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind(("", 0))
    except OSError:
        held.close()
        raise
    _held = held
    port: int = held.getsockname()[1]
    return port
