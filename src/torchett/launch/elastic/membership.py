"""The members of torch's rendezvous, and how a lost node is removed from it.

torch finds a dead participant by itself 15 s after its last heartbeat, by comparing the clocks of
two hosts, and only when a node asks for the next rendezvous.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, dynamic_rendezvous

_TRIES = 20  # others write the state, too
_WATCHED = 2  # by each agent: the next ones in order of ranks


class Membership:
    """torch's state of one rendezvous, read and changed as torch itself does."""

    def __init__(self, handler: Any) -> None:
        """AttributeError if this torch stores its state differently."""
        self._handler, self._settings = handler, handler._settings
        self._kind = dynamic_rendezvous._BackendRendezvousStateHolder
        self._epilogue = dynamic_rendezvous._remove_participant_epilogue
        self.me = handler._this_node
        handler._state_holder.state.participants  # noqa: B018

    def now(self) -> tuple[dict[str, int], int]:
        """Node → rank of the rendezvous that this node has just been through, and its number."""
        state = self._handler._state_holder.state
        return {str(node): rank for node, rank in state.participants.items()}, state.round

    def remove(self, store: Any, node: str) -> None:
        """Remove a participant, as torch does when a heartbeat has expired."""

        def change(state: Any) -> bool:
            found = [known for known in state.participants if str(known) == node]
            for known in found:
                del state.participants[known]
                state.last_heartbeats.pop(known, None)
            if found:
                self._epilogue(state, self._settings)
            return bool(found)

        self._change(store, change)

    def hurry(self, store: Any, expected: Iterable[str]) -> None:
        """Complete a rendezvous that waits only for lost nodes."""
        wanted = set(expected)

        def change(state: Any) -> bool:
            present = {str(node) for node in state.participants}
            enough = len(present) >= self._settings.min_nodes and wanted <= present
            now = datetime.now(UTC)
            if state.complete or not enough or state.redundancy_list or state.deadline is None:
                return False
            if state.deadline <= now:
                return False
            state.deadline = now - timedelta(seconds=1)
            return True

        self._change(store, change)

    def _change(self, store: Any, change: Any) -> None:
        backend = c10d_rendezvous_backend.C10dRendezvousBackend(store, self._settings.run_id)
        holder = self._kind(backend, self._settings, cache_duration=0)
        for _ in range(_TRIES):
            holder.sync()
            if not change(holder.state):
                return
            holder.mark_dirty()
            if holder.sync():
                return


class Ring:
    """The members in order of ranks, and when each that this agent watches was heard last."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._order: list[str] = [me]
        self._heard: dict[str, tuple[bytes, float]] = {}

    def members(self, ranks: Mapping[str, int], now: float) -> None:
        self._order = sorted(ranks, key=lambda node: ranks[node])
        self._heard = dict.fromkeys(self._order, (b"", now))

    def all(self) -> list[str]:
        return list(self._order)

    def alive(self, gone: set[str]) -> list[str]:
        return [node for node in self._order if node not in gone]

    def leads(self, gone: set[str]) -> bool:
        """Whether this agent has the lowest rank of those that are left."""
        return self.alive(gone)[:1] == [self._me]

    def watched(self) -> list[str]:
        """The next members after this one, as many as are there."""
        if self._me not in self._order:
            return []
        at = self._order.index(self._me)
        others = self._order[at + 1 :] + self._order[:at]
        return others[:_WATCHED]

    def silent_s(self, node: str, said: bytes, now: float) -> float:
        """How long the node's heartbeat has not changed."""
        known = self._heard.get(node)
        if known is None or known[0] != said:
            self._heard[node] = said, now
            return 0.0
        return now - known[1]

    def forget(self, node: str) -> None:
        """Remove a lost member and watch the next one instead."""
        if node != self._me:
            self._order = [known for known in self._order if known != node]
