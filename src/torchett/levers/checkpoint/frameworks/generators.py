"""Random generators that are set later than the rest of a state.

A trainer that resumes draws random numbers itself (it makes loaders, it skips batches) between the
restore and the first step. What the generators were is set after that.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torchett.levers.checkpoint.state.per_rank import RandomState


class LateGenerators:
    """As `RandomState`, but a restore has no effect before `set_now` is called."""

    def __init__(self) -> None:
        self._state = RandomState()
        self._set: Callable[[], None] | None = None

    def state_dict(self) -> dict[str, Any]:
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._set = partial(self._state.load_state_dict, state)

    def load_state_dicts(self, states: list[dict[str, Any]], rank: int) -> None:
        """Of another number of ranks."""
        self._set = partial(self._state.load_state_dicts, states, rank)

    def set_now(self) -> bool:
        """Set the generators as they were saved; whether there was anything to set."""
        then, self._set = self._set, None
        if then is not None:
            then()
        return then is not None
