"""What an agent writes down: its restarts, why they came, and which number each life has.

    node 0   ── life 0 ───────────────┐ rendezvous ┌── life 1 ──
    node 1   ── life 0 ── ✗ SIGKILL ──┘            └── life 1 ──
                          └ cause, told to all by the store of life 0

Agents count their restarts apart (a change of members is none), so the one that leads a rendezvous
says which attempt and restart this is, and the others take its word: records of one life lie in
one folder on every node.
"""

import os
import signal
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from torchett.launch.watch import Watch, look
from torchett.record.attempts import append_fact, attempts_path
from torchett.record.clock import anchor, now_ns
from torchett.record.layout import attempt_folder

_LOOK_NS = 500_000_000
_LANE, _CAUSE = "ett/lane", "ett/cause"
_PATIENCE = timedelta(seconds=10)


class Journal:
    """Watches the ranks, numbers their lives and writes them down (if this agent is node 0's)."""

    def __init__(self, env: Mapping[str, str]) -> None:
        run = env.get("ETT_RUN")
        self._run = Path(run or ".")
        node = int(env.get("ETT_NODE", "0"))
        self._log = attempts_path(self._run, node) if run else None
        self._leads_run = node == 0
        timeout_s = float(env.get("ETT_HANG_TIMEOUT", "0"))
        self._watch = Watch(timeout_s) if timeout_s > 0 else None
        self._looked_ns = 0
        self._clock = anchor().clock
        self._attempt, self._restart = int(env.get("ETT_ATTEMPT", "0")), -1
        self._began = env.get("ETT_ATTEMPT_BEGAN", "")
        self._store: Any = None  # of this life's rendezvous, with our rank and the number of agents
        self._rank, self._size = 0, 1
        self._cause: str | None = None
        self._hung = False
        self._failed_ns = self._stopped_ns = 0

    def environment(self) -> dict[str, str]:
        """What a rank must know of its life."""
        return {
            "ETT_ATTEMPT": str(self._attempt),
            "ETT_RESTART": str(max(self._restart, 0)),
            "ETT_ATTEMPT_BEGAN": self._began,
        }

    def end_hung_ranks(self, pids: Mapping[int, int]) -> None:
        """Kill those of these ranks that show no life: the agent then does as if they had died."""
        now = now_ns()
        if self._watch is None or now - self._looked_ns < _LOOK_NS or not pids:
            return
        self._looked_ns = now
        folder = attempt_folder(self._run, self._attempt, self._restart)
        for pid in self._watch.hung(look(pids, folder), now):
            rank = next(rank for rank, known in pids.items() if known == pid)
            print(
                f"ett: rank {rank} (pid {pid}) shows no sign of life: ended",
                file=sys.stderr,
                flush=True,
            )
            self._hung = True
            os.kill(pid, signal.SIGKILL)

    def training(self, pids: Mapping[int, int]) -> bool:
        """Whether all of these ranks have done a step, as far as they are recorded."""
        folder = attempt_folder(self._run, self._attempt, self._restart)
        lives = look(pids, folder)
        return bool(lives) and all(life.stepped for life in lives.values())

    def failed(self, exit_code: int) -> None:
        """A rank of this node has failed, and its peers are stopped."""
        self._cause = "hang" if self._hung else _word(exit_code)
        self._hung, self._failed_ns = False, now_ns()
        try:
            self._store.set(self._cause_key(self._rank), self._cause)
        except Exception:
            pass  # the store's host is gone: we know our own cause

    def stopping(self) -> None:
        """Ranks are about to be stopped, and nobody has told the job to end: they may know it."""
        try:
            if notice := os.environ.get("ETT_NOTICE"):
                Path(f"{notice}-stopped-{max(self._restart, 0)}").touch()
        except OSError:
            pass  # those that would save wait a moment for a notice

    def stopped(self) -> None:
        """The workers are stopped, or not yet started, and a rendezvous begins."""
        self._stopped_ns = now_ns()

    def met(self, store: Any, *, rank: int, size: int, elastic: bool) -> None:
        """The rendezvous is over: a life begins, and its number is agreed."""
        first = self._restart < 0
        cause = None if first else self._deepest_cause()
        before = (self._attempt, self._restart)
        self._attempt, self._restart = self._agree(store, rank == 0, elastic)
        self._store, self._rank, self._size = store, rank, size
        if first and self._restart == 0:
            return  # the launcher has written down when it began
        began = self._stopped_ns
        self._began = f"{began}@{self._clock}@{self._restart}"
        if before != (self._attempt, self._restart):
            self._write(before, self._failed_ns or began, cause, began)
        self._cause, self._failed_ns = None, 0

    def standbys(self, memory_bytes: int) -> None:
        """The most memory that standbys held beside the ranks."""
        if memory_bytes:
            self._append({"event": "standbys", "t_ns": now_ns(), "bytes": memory_bytes})

    def _agree(self, store: Any, leads: bool, elastic: bool) -> tuple[int, int]:
        """Attempt and restart of this life: ours, if we lead or cannot be heard."""
        mine = self._attempt, self._restart + 1
        if not elastic:  # one store for all lives: there is no place for one life's number
            return mine
        try:
            if leads:
                store.set(_LANE, f"{mine[0]}.{mine[1]}")
                return mine
            store.wait([_LANE], _PATIENCE)
            attempt, _, restart = store.get(_LANE).decode().partition(".")
            return int(attempt), int(restart)
        except Exception:
            return mine

    def _deepest_cause(self) -> str | None:
        """The likeliest root of what the agents saw in this life.

        A rank that was killed or hung outranks one that raised: that may be for a peer it lost.
        """
        causes = [self._cause] if self._cause else []
        try:
            for rank in range(self._size):
                key = self._cause_key(rank)
                causes += [self._store.get(key).decode()] if self._store.check([key]) else []
        except Exception:
            pass  # the store's host is gone: what we saw ourselves has to do
        return min(causes, key=lambda cause: cause.startswith("exit_"), default=None)

    def _cause_key(self, rank: int) -> str:
        return f"{_CAUSE}/{self._attempt}.{self._restart}/{rank}"

    def _write(self, life: tuple[int, int], ended: int, cause: str | None, began: int) -> None:
        if not self._leads_run:
            return
        attempt, restart = life
        end = {"event": "end", "attempt": attempt, "restart": restart, "t_ns": ended}
        start = {"event": "start", "attempt": self._attempt, "restart": self._restart}
        self._append(end | {"outcome": "failed", "cause": cause})
        self._append(start | {"t_ns": began})

    def _append(self, fact: dict[str, Any]) -> None:
        try:
            if self._log is not None:
                append_fact(self._log, fact)
        except OSError:
            pass


def _word(exit_code: int) -> str:
    return signal.Signals(-exit_code).name if exit_code < 0 else f"exit_{exit_code}"
