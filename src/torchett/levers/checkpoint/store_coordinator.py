"""How ranks agree: through a store of our own, without a collective in the training loop.

Rank 0 decides whether and when to save, and the others read what it decided. Errors of the
background and notices of a preemption are posted there and read by a thread of every rank.
"""

import datetime
import json
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from torchett.levers.checkpoint.torch_names import broadcast
from torchett.record.process.joined_threads import begin_beside

log = logging.getLogger("torchett")

POLL_S = 0.5
_made = 0


class Ranks(Protocol):
    """What a checkpointer needs of the other ranks."""

    rank: int
    size: int
    group: Any  # gloo, for restoring; None alone
    address: tuple[str, int] | None  # of the store
    store: Any  # None alone

    def decide(self, key: str, choose: Callable[[], str]) -> str:
        """What rank 0 chose; the others wait until it has."""

    def tell(self, key: str, value: str) -> None:
        """Let all ranks know a value."""

    def told(self, key: str) -> str | None:
        """A value if it has been told."""

    def awaited(self, key: str) -> str:
        """A value, once it has been told."""

    def told_all(self, keys: list[str]) -> list[str | None]:
        """The values of many keys, by as few requests as can be."""

    def count(self, key: str, add: int = 0) -> int:
        """A counter that all ranks share."""

    def decided(self) -> list[str]:
        """On rank 0: the keys decided since this was last asked."""

    def forget(self, keys: Iterable[str]) -> None:
        """Delete keys that no rank will read any more; soon, from a thread."""

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on all; a collective, for start-up only."""

    def every_poll(self, look: Callable[[], None]) -> None:
        """Call `look` twice a second from a thread of its own."""

    def close(self) -> None: ...


def meet() -> Ranks:
    """The ranks of this job: all of torch.distributed's, or this process alone."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return StoreCoordinator()
    return Alone()


class Alone:
    """One process: what it decides is decided."""

    rank, size = 0, 1
    group: Any = None
    address: tuple[str, int] | None = None
    store: Any = None

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._watch: _Watch | None = None

    def decide(self, key: str, choose: Callable[[], str]) -> str:
        return choose()

    def tell(self, key: str, value: str) -> None:
        self._values[key] = value

    def told(self, key: str) -> str | None:
        return self._values.get(key)

    def awaited(self, key: str) -> str:
        return self._values[key]

    def told_all(self, keys: list[str]) -> list[str | None]:
        return [self.told(key) for key in keys]

    def decided(self) -> list[str]:
        return []

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._values.pop(key, None)
            self._counts.pop(key, None)

    def count(self, key: str, add: int = 0) -> int:
        self._counts[key] = self._counts.get(key, 0) + add
        return self._counts[key]

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def every_poll(self, look: Callable[[], None]) -> None:
        self._watch = _Watch(look)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()


class StoreCoordinator:
    """The ranks of a process group, met in a store that rank 0 serves."""

    def __init__(self) -> None:
        import torch.distributed as dist

        global _made
        _made += 1
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        key = f"torchett/checkpoint/{restart}/{_made}"
        patience = datetime.timedelta(minutes=30)
        self._server: Any = None

        def serve() -> str:
            host = os.environ.get("MASTER_ADDR") or socket.gethostname()
            self._server = dist.TCPStore(
                "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=patience
            )
            return json.dumps([host, self._server.port])

        host, port = json.loads(broadcast(key, serve))
        if self.rank == 0:
            host = "127.0.0.1"
        self.address: tuple[str, int] | None = (host, int(port))
        # A client serves one call at a time: one for the loop, one for the background.
        self._loop = dist.TCPStore(host, port, is_master=False, timeout=patience)
        self._back = dist.TCPStore(host, port, is_master=False, timeout=patience)
        self.store = self._loop
        # A rank that dies is noticed at once; one that is late may be late by any time.
        self.group = dist.new_group(backend="gloo", timeout=datetime.timedelta(days=7))
        self._main = threading.get_ident()
        self._decided: list[str] = []
        self._gone: deque[str] = deque()
        self._watch: _Watch | None = None

    @property
    def _store(self) -> Any:
        return self._loop if threading.get_ident() == self._main else self._back

    def decide(self, key: str, choose: Callable[[], str]) -> str:
        if self.rank == 0:
            value = choose()
            self._store.set(key, value)
            self._decided.append(key)
            return value
        return str(self._store.get(key).decode())

    def tell(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def told(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None

    def awaited(self, key: str) -> str:
        return str(self._store.get(key).decode())

    def told_all(self, keys: list[str]) -> list[str | None]:
        if self._store.check(keys):
            return [value.decode() for value in self._store.multi_get(keys)]
        return [self.told(key) for key in keys]

    def decided(self) -> list[str]:
        keys, self._decided = self._decided, []
        return keys

    def forget(self, keys: Iterable[str]) -> None:
        self._gone.extend(keys)

    def _delete(self) -> None:
        while self._gone:
            self._store.delete_key(self._gone.popleft())

    def count(self, key: str, add: int = 0) -> int:
        return int(self._store.add(key, add))

    def gather(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def every_poll(self, look: Callable[[], None]) -> None:
        def both() -> None:
            look()
            self._delete()

        self._watch = _Watch(both)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()


class _Watch:
    """A thread that looks twice a second, until it is stopped or cannot look any more."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._stop = threading.Event()
        begin_beside(self._work, name="ett-watch", wake=self.stop)

    def _work(self) -> None:
        failures = 0
        while not self._stop.wait(POLL_S):
            try:
                self._look()
                failures = 0
            except Exception as error:
                failures += 1
                if failures == 20:
                    log.debug("torchett: other ranks are not heard any more: %s", error)
                    return
                time.sleep(POLL_S)

    def stop(self) -> None:
        self._stop.set()
