"""What a checkpointer does about a notice that the hardware will be taken away.

The notice is heard by `notice.py`, and the ranks agree there on the step after which they save.
"""

import importlib
import logging
from collections.abc import Callable
from typing import Any

from torchett.levers.checkpoint.store_coordinator import Ranks
from torchett.record.api import last_step

log = logging.getLogger("torchett")


def prepare() -> None:
    """Have children that are forked from now on stay while this process saves."""
    try:
        importlib.import_module("torchett.levers.checkpoint.preemption.notice").prepare()
    except Exception as error:
        log.debug("torchett: no notice of a preemption is heard: %s", error)


class Preemption:
    """Asked after each step; silent where this installation receives no notices."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._module: Any = None
        self._notice: Any = None
        try:
            self._module = importlib.import_module("torchett.levers.checkpoint.preemption.notice")
            self._notice = self._module.install()
        except Exception as error:
            log.debug("torchett: no notice of a preemption is heard: %s", error)

    def due(self, step: int) -> bool:
        """Whether all ranks save after this step, because they will be ended."""
        if self._notice is None:
            return False
        at = self._module.agree(
            self._ranks.store, self._ranks.rank, self._ranks.size, step, self._notice.received()
        )
        return bool(at == step)

    def when_told(self, then: Callable[[], None]) -> None:
        """Call `then` from a thread once notice is given."""
        if self._notice is not None:
            self._notice.when_received(then)

    def left_s(self) -> float:
        """Seconds that are left to save in."""
        return float(self._notice.left_s())

    @property
    def reason(self) -> str:
        return self._notice.reason or "another rank was"

    def leave(self, step: int | None = None) -> None:
        """The state is safe, or time is up: end as the notice would have it, maybe in `step`."""
        self._notice.leave(lambda: None if step is None else last_step(step))

    def close(self) -> None:
        """There is nothing left to save."""
        if self._notice is not None:
            self._module.release()
