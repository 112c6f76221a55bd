"""What an agent records: its restarts, their causes and their numbers.

    node 0   ── life 0 ───────────────┐ rendezvous ┌── life 1 ──
    node 1   ── life 0 ── ✗ SIGKILL ──┘            └── life 1 ──
                          └ cause, told to all by the store of life 0

Agents count their restarts apart (a change of members is none), so the one that leads a rendezvous
decides which attempt and restart this is, and the others use that: records of one restart lie in
one folder on every node.
"""

import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from torchett.launch.elastic.hang import HangWatch, Life, look
from torchett.model.first_failure import RankEnd, first_failure
from torchett.model.restarts import LifeEnd
from torchett.record.attempt_log import append_fact, attempts_path
from torchett.record.clock import anchor, now_ns
from torchett.record.flight.progress import rank_progress

_LOOK_NS = 500_000_000
_LANE, _CAUSE, _DECIDED = "ett/lane", "ett/cause", "ett/decided"
_PATIENCE = timedelta(seconds=10)


class Journal:
    """Watches the ranks, numbers their restarts and records them (if this agent is node 0's)."""

    def __init__(self, env: Mapping[str, str]) -> None:
        run = env.get("ETT_RUN")
        self._run = Path(run or ".")
        node = int(env.get("ETT_NODE", "0"))
        self._log = attempts_path(self._run, node) if run else None
        self._leads_run = node == 0
        self._node = node
        timeout_s = float(env.get("ETT_HANG_TIMEOUT", "0"))
        self._watch = HangWatch(timeout_s) if timeout_s > 0 else None
        self._looked_ns = 0
        self._clock = anchor().clock
        self._attempt, self._restart = int(env.get("ETT_ATTEMPT", "0")), -1
        self._began = env.get("ETT_ATTEMPT_BEGAN", "")
        self._store: Any = None  # of this life's rendezvous, with our rank and the number of agents
        self._rank, self._size = 0, 1
        self._cause: str | None = None
        self._hung: set[int] = set()
        self._outlived: set[int] = set()  # pids that hung after their last step, and were ended
        self._failed_ns = self._stopped_ns = 0
        self._members_change = False

    def environment(self) -> dict[str, str]:
        """What a rank must know of its life."""
        return {
            "ETT_ATTEMPT": str(self._attempt),
            "ETT_RESTART": str(max(self._restart, 0)),
            "ETT_ATTEMPT_BEGAN": self._began,
        }

    def end_hung_ranks(self, pids: Mapping[int, int]) -> None:
        """Kill the hung ranks: the agent then handles them as failed."""
        now = now_ns()
        if self._watch is None or now - self._looked_ns < _LOOK_NS or not pids:
            return
        self._looked_ns = now
        lives = self._look(pids)
        hung = self._watch.hung(lives, now, peer_left=len(lives) < len(pids))
        if not hung:
            return
        left = [rank for rank, pid in pids.items() if pid not in lives]
        ranks = {rank: pid for rank, pid in pids.items() if pid in hung}
        if left and all(self._is_done(rank, left) for rank in ranks):
            if len(hung) < len(lives):
                return  # another rank still works: these do no harm until it has ended
            self._outlived |= set(hung)
        for rank, pid in ranks.items():
            done = pid in self._outlived
            when = " after its last step, and its peers have exited" if done else ""
            said = f"ett: rank {rank} (pid {pid}) shows no sign of life{when}: ended"
            print(said, file=sys.stderr, flush=True)
            if not done:
                self._hung.add(rank)
            os.kill(pid, signal.SIGKILL)

    def _is_done(self, rank: int, left: Sequence[int]) -> bool:
        """Whether this rank has done all the steps that its peers did before they exited."""
        mine, *theirs = (rank_progress(self._run, *self._life, one) for one in (rank, *left))
        return (
            mine is not None
            and not mine.in_span
            and mine.last_step >= 0
            and all(one and one.ended_well and one.last_step == mine.last_step for one in theirs)
        )

    def all_done(self, pids: Iterable[int]) -> bool:
        """Whether these processes were only ended because they hung after the job's last step."""
        return {*pids} <= self._outlived

    @property
    def _life(self) -> tuple[int, int]:
        return self._attempt, max(self._restart, 0)

    def _look(self, pids: Mapping[int, int]) -> dict[int, Life]:
        return look(pids, self._run, *self._life)

    def training(self, pids: Mapping[int, int]) -> bool:
        """Whether all of these ranks have done a step, as far as they are recorded."""
        lives = self._look(pids)
        return bool(lives) and all(life.stepped for life in lives.values())

    def ranks_failed(self, exit_codes: Mapping[int, int]) -> None:
        """These ranks of this node (by global rank) were found failed; their peers are stopped."""
        seen = now_ns()
        ends = [
            RankEnd(rank=rank, cause=word, t_ns=seen)
            for rank, word in self._words(exit_codes).items()
        ]
        for end in ends:
            life = {"attempt": self._attempt, "restart": max(self._restart, 0)}
            fact = {"event": "failure", **life, "rank": end.rank, "cause": end.cause}
            self._append(fact | {"t_ns": seen})
        first = first_failure(ends)
        self._cause = first.cause if first else None
        self._failed_ns = now_ns()
        try:
            self._store.set(self._key(_CAUSE, self._rank), self._cause)
        except Exception:
            pass  # the store's host is gone: we know our own cause

    def node_lost(self) -> None:
        """Record that a lost node is the cause of this restart."""
        self._cause, self._failed_ns = "node_failure", now_ns()
        try:
            self._store.set(self._key(_CAUSE, self._rank), self._cause)
        except Exception:
            pass  # the store's host is gone: we know our own cause

    def life_end(self, exit_codes: Mapping[int, int], limit: int) -> LifeEnd:
        """This life and how ranks of this node left it, for the restart policy."""
        return LifeEnd(
            attempt=self._attempt,
            restart=max(self._restart, 0),
            limit=limit,
            exits=self._words(exit_codes),
            node=self._node,
            nodes=self._size,
            by="agent",
        )

    def decided(self, facts: Sequence[dict[str, Any]]) -> None:
        """Send the decision of this node's policy to the other agents."""
        try:
            self._store.set(self._key(_DECIDED, self._rank), json.dumps(facts))
        except Exception:
            pass  # the store's host is gone: they decide without us

    def heard(self) -> list[dict[str, Any]]:
        """What the policies of other agents decided about the life that is over."""
        facts: list[dict[str, Any]] = []
        try:
            for rank in range(self._size):
                key = self._key(_DECIDED, rank)
                if rank != self._rank and self._store.check([key]):
                    facts += json.loads(self._store.get(key))
        except Exception:
            pass  # the store's host is gone
        return facts

    def stopping(self) -> None:
        """Ranks are about to be stopped, but the job goes on: write that where they can read it.

        For a change of members they may save first: none of them has failed.
        """
        why = "leaves" if self._members_change else "stopped"
        try:
            if notice := os.environ.get("ETT_NOTICE"):
                Path(f"{notice}-{why}-{max(self._restart, 0)}").touch()
        except OSError:
            pass  # those that would save wait a moment for a notice

    def members_change(self) -> None:
        """A node has come and the ranks are stopped for that, unless one has failed elsewhere."""
        self._members_change, self._failed_ns = self._deepest_cause() is None, now_ns()

    def stopped(self) -> None:
        """The workers are stopped, or not yet started, and a rendezvous begins."""
        self._stopped_ns = now_ns()

    def met(self, store: Any, *, rank: int, size: int, elastic: bool) -> None:
        """The rendezvous is over: the agents agree on the number of the restart."""
        first, self._hung = self._restart < 0, set()
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
        self._cause, self._failed_ns, self._members_change = None, 0, False

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
        """The likeliest root cause of what the agents saw since the last restart.

        A rank that was killed or hung outranks one that raised: that may be for a peer it lost.
        """
        causes = [self._cause] if self._cause else []
        try:
            for rank in range(self._size):
                key = self._key(_CAUSE, rank)
                causes += [self._store.get(key).decode()] if self._store.check([key]) else []
        except Exception:
            pass  # the store's host is gone: only what this agent saw is known
        return min(causes, key=lambda cause: cause.startswith("exit_"), default=None)

    def _words(self, exit_codes: Mapping[int, int]) -> dict[int, str]:
        """How ranks ended, each in a word: SIGKILL, exit_1, hang."""
        return {
            rank: "hang" if rank in self._hung else _word(code) for rank, code in exit_codes.items()
        }

    def _key(self, kind: str, rank: int) -> str:
        return f"{kind}/{self._attempt}.{self._restart}/{rank}"

    def _write(self, life: tuple[int, int], ended: int, cause: str | None, began: int) -> None:
        if not self._leads_run:
            return
        attempt, restart = life
        end = {"event": "end", "attempt": attempt, "restart": restart, "t_ns": ended}
        start = {"event": "start", "attempt": self._attempt, "restart": self._restart}
        self._append(end | self._outcome(cause))
        self._append(start | {"t_ns": began})

    def _outcome(self, cause: str | None) -> dict[str, str | None]:
        """How the life that is over ended: some agent may have seen a failure all the same."""
        if cause is None and self._members_change:
            return {"outcome": "preempted", "cause": "a node joined", "domain": "scheduler"}
        return {"outcome": "failed", "cause": cause}

    def _append(self, fact: dict[str, Any]) -> None:
        try:
            if self._log is not None:
                append_fact(self._log, fact)
        except OSError:
            pass


def _word(exit_code: int) -> str:
    return signal.Signals(-exit_code).name if exit_code < 0 else f"exit_{exit_code}"
