"""Lost nodes: each agent writes a heartbeat to the rendezvous store, and two others watch it.

    agent 0 ─ beat 17 ─ beat 18 ─ beat 19 ─ …        watched by agents 2 and 1
    agent 1 ─ beat 17 ─ ✗                            watched by agents 0 and 2: gone after 4 s
    agent 2 ─ beat 17 ─ beat 18 ─ beat 19 ─ …

A node that misses another says so in the store and takes it out of torch's rendezvous, which else
waits for it. All agents then end their ranks, which may hang in a collective with it, and meet
again.

An agent that does not reach the store for as long is cut off, or the node that serves the store is
gone: it ends its ranks, and itself if that lasts. So of a partition only the side with the store
goes on, and that only if it has the nodes that torchrun's --nnodes asks for.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torchett.launch.elastic.membership import Membership, Ring

GONE_S = 4.0  # without a beat; ETT_NODE_TIMEOUT sets another time
CUT_S = 30.0  # without the store, after which a node gives up
_EVERY_S = 0.5
_PATIENCE = timedelta(seconds=2)
_LEFT = b"left"


class Beats:
    """Writes this agent's heartbeat from a thread of its own, and watches the others."""

    def __init__(
        self,
        handler: Any,
        host: str,
        port: int,
        end_ranks: Callable[[], None],
        gone_s: float = GONE_S,
    ) -> None:
        """`end_ranks` is called from the thread as soon as a collective can no longer complete."""
        self._membership = Membership(handler)
        self._host, self._port, self._end_ranks = host, port, end_ranks
        self._gone_s = gone_s
        self._base = f"ett/beats/{handler.get_run_id()}"
        self._me = str(self._membership.me)
        self._ring = Ring(self._me)
        self._lock = threading.Lock()
        self._round, self._meeting = -1, False
        self._beat, self._store = 0, None
        self._gone: dict[str, str] = {}  # node → why
        self._said: set[str] = set()
        self._last_ok = time.monotonic()
        self._cut = False
        self._over = threading.Event()
        self._error = "no answer"
        self._thread = threading.Thread(target=self._run, name="ett-beats", daemon=True)
        self._guard = threading.Thread(target=self._watch_self, name="ett-beats-cut", daemon=True)

    def met(self) -> None:
        """A rendezvous is over: watch its members."""
        members, round_number = self._membership.now()
        with self._lock:
            self._ring.members(members, time.monotonic())
            self._round, self._meeting = round_number, False
            self._gone, self._said = {}, set()

    def meeting(self) -> None:
        """A rendezvous begins; it does not wait for lost nodes."""
        with self._lock:
            self._meeting = True
        if not self._thread.is_alive() and not self._over.is_set():
            self._last_ok = time.monotonic()
            self._thread.start()
            self._guard.start()

    def gone(self) -> list[str]:
        """The lost nodes of this restart, and why; each is returned once."""
        with self._lock:
            found = [f"{node} {why}" for node, why in self._gone.items() if node not in self._said]
            self._said |= set(self._gone)
        return found

    def close(self, *, leaves: bool = False) -> None:
        """Record that this agent exits as planned, or leaves while the others continue."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(1)  # longer only where the store does not answer
        if self._thread.is_alive() or self._cut:
            return
        try:
            store = self._store or self._connected()
            store.set(f"{self._base}/{self._me}", _LEFT if leaves else b"ended")
        except Exception:
            pass  # the store is gone, so all other agents have exited

    # On the threads --------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                self._tick()
                self._last_ok, self._cut = time.monotonic(), False
            except Exception as error:  # a client is unusable after a time-out
                self._store = None
                self._error = (str(error).splitlines() or [type(error).__name__])[0][:100]

    def _watch_self(self) -> None:
        """Detect an unreachable store: its client may wait for an answer without a time-out."""
        where = f"the rendezvous at {self._host}:{self._port} is not reached"
        while not self._over.wait(_EVERY_S):
            silent_s = time.monotonic() - self._last_ok
            if silent_s > self._gone_s and not self._cut:
                self._cut = True
                _say(
                    f"{where} for {silent_s:.0f} s ({self._error}): the node that serves it is"
                    f" gone, or this one is cut off: its ranks end, and it stops after {CUT_S:g} s"
                )
                self._end_ranks()
            if silent_s > max(CUT_S, self._gone_s):
                _say(f"{where} for {silent_s:.0f} s: this node stops")
                os._exit(1)

    def _tick(self) -> None:
        self._store = store = self._store or self._connected()
        self._beat += 1
        store.set(f"{self._base}/{self._me}", str(self._beat))
        now = time.monotonic()
        for node in self._ring.watched():
            key = f"{self._base}/{node}"
            said = store.get(key) if store.check([key]) else b""
            if said == _LEFT:
                self._announce(store, node, "has left")
            elif said != b"ended" and self._ring.silent_s(node, said, now) > self._gone_s:
                self._announce(store, node, f"has not been heard of for {self._gone_s:g} s")
        self._hear(store)
        if self._meeting and self._gone and self._ring.leads(set(self._gone)):
            self._membership.hurry(store, self._ring.alive(set(self._gone)))

    def _announce(self, store: Any, node: str, why: str) -> None:
        store.set(f"{self._base}/gone/{self._round}/{node}", why)
        store.add(f"{self._base}/gone/{self._round}", 1)
        self._membership.remove(store, node)

    def _hear(self, store: Any) -> None:
        """Read which nodes of this round are lost, whichever agent detected it."""
        count = f"{self._base}/gone/{self._round}"
        if not store.check([count]):
            return
        fresh = False
        for node in self._ring.all():
            key = f"{self._base}/gone/{self._round}/{node}"
            if node not in self._gone and store.check([key]):
                why = store.get(key).decode()
                with self._lock:
                    self._gone[node] = why
                self._ring.forget(node)
                fresh = True
        if fresh:
            self._end_ranks()

    def _connected(self) -> Any:
        from torch.distributed import TCPStore

        return TCPStore(
            self._host, self._port, is_master=False, timeout=_PATIENCE, wait_for_workers=False
        )


def _say(text: str) -> None:
    print(f"ett: {text}", file=sys.stderr, flush=True)
