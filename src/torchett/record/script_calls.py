"""What the script records by its own calls, so that hooks do not record it twice.

steps      not by the hooks once the script has called `ett.step` or `ett.steps`
accounts   not by the hooks once the script has named them in `ett.stage` or `ett.blocked`,
           nor any of the time that the same thread has been inside such a span
durable    not by the hooks once the script has called `ett.checkpoint_durable`
"""

from threading import get_ident


class ScriptCalls:
    """What the script has recorded itself so far."""

    __slots__ = ("_inside", "_left", "accounts", "durable", "loops", "steps")

    def __init__(self) -> None:
        self.steps = self.durable = False
        self.loops = False  # steps by ett.steps: what they are is known while they run
        self.accounts: set[str] = set()
        self._inside: dict[int, list[int]] = {}  # thread → when the spans it is in began
        self._left: dict[int, tuple[int, int]] = {}  # thread → the last that it was in

    def enter(self, t: int) -> None:
        """This thread enters a span of the script."""
        self._inside.setdefault(get_ident(), []).append(t)

    def leave(self, t: int) -> None:
        """This thread leaves the span that it entered last."""
        me = get_ident()
        began = self._inside.pop(me, [])
        if len(began) > 1:
            self._inside[me] = began[:-1]
        elif began:
            self._left[me] = began[0], t

    def covers(self, account: str, until_ns: int | None = None) -> bool:
        """Whether the script itself records this time: from now on, or up to `until_ns`."""
        if account in self.accounts:
            return True
        inside = self._inside.get(get_ident())
        return bool(inside and (until_ns is None or until_ns > inside[0]))

    def clipped(self, t0_ns: int) -> int:
        """The begin of a span, after the part that the script's own span already covers."""
        began, ended = self._left.get(get_ident(), (0, 0))
        return ended if began <= t0_ns < ended else t0_ns
