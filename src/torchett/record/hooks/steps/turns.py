"""Which optimizer's update ends a step, from the order in which several optimizers update.

one optimizer                    each of its updates
several, in turn (D G D G)       the last of the turn; the first turn is recognised when it repeats
one more often (D D D G D D D)   each update of that one
one inside another (i o i o)     the outer one's: it ends last
"""


class Turns:
    """Receives updates in order; returns where steps ended."""

    def __init__(self) -> None:
        self.leader = 0  # the optimizer whose updates end steps; 0: not known yet
        self._turn: dict[int, int] = {}  # updates since the last step: optimizer → when

    def ends(self, optimizer: int, t: int, optimizers: int) -> tuple[int, ...]:
        """Where steps ended: now, or earlier if the order of updates was not known then."""
        turn = self._turn
        if optimizer == self.leader:
            if turn:
                turn.clear()
            return (t,)
        if optimizer in turn:
            last, end = next(reversed(turn.items()))
            turn.clear()
            self.leader = last
            if optimizer == last:
                return end, t
            turn[optimizer] = t
            return (end,)
        if optimizers < 2 and not self.leader:
            self.leader = optimizer
            return (t,)
        turn[optimizer] = t
        return ()

    def left(self) -> int:
        """Where the only round of updates ended; 0 if the order is known."""
        return 0 if self.leader or not self._turn else next(reversed(self._turn.values()))
