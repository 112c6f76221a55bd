"""The last save before the hardware is taken away: as long as there is time for it.

    loop      ── 41 ── 42 ─┤ evaluation ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
    notice                      ▲ ┄┄ half of the grace ┄┄ ● the newest snapshot in memory is saved

A loop that comes to the end of a step saves the state after it. One that stands still on every rank
(it evaluates or compiles, maybe for longer than the grace) keeps what memory holds: that would be
gone with the hardware.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from torchett.levers.checkpoint.save_session import SaveSession
from torchett.levers.checkpoint.staging import fence
from torchett.record.api import blocked, note

log = logging.getLogger("torchett")

_ASK_S = 0.05


def save_just_in_time(
    session: SaveSession, saved_step: int, step: int, state: Any, metric: float | None
) -> None:
    """Save the state after `step`, unless it is saved already, and wait for it."""
    began = time.monotonic()
    if step > saved_step:
        session.save(step, state, metric, must=True)
    with blocked("checkpoint_blocked"):
        fence.run()
        _wait_and_say(session, step, began)


def when_standing(session: SaveSession, moves: Callable[[], bool], turn: Any) -> None:
    """On notice, begin to watch: if no step ends for half of the grace, save what memory holds."""

    def work() -> None:
        time.sleep(session.preemption.left_s() / 2)
        if moves() or not turn.acquire(blocking=False):
            return  # it saves by itself
        try:
            began = time.monotonic()
            if _all_stand(session, session.preemption.left_s() / 4):
                step = session.save_newest(session.preemption.left_s() / 4)
                if step is not None:
                    _wait_and_say(session, step, began)
                session.preemption.leave()
        except Exception as error:
            log.warning("torchett: nothing is saved while the loop stands: %r", error)
        finally:
            turn.release()

    threading.Thread(target=work, name="ett-standing", daemon=True).start()


def _all_stand(session: SaveSession, within_s: float) -> bool:
    """Whether every rank's loop stands, and says so in this time."""
    ranks, until = session.ranks, time.monotonic() + within_s
    ranks.count("standing", 1)
    while ranks.count("standing") < ranks.size:
        if time.monotonic() > until:
            return False
        time.sleep(_ASK_S)
    return True


def _wait_and_say(session: SaveSession, step: int, began: float) -> None:
    """Wait for the save of this step for as long as there is time, and say how it ended."""
    in_time = session.saves.wait(session.preemption.left_s())
    outcome = session.saves.current.outcome if session.saves.current is not None else None
    error = outcome.error if outcome is not None else None
    reason, is_safe = session.preemption.reason, in_time and not error
    seconds = time.monotonic() - began
    note("preemption", {"step": step, "reason": reason, "durable": is_safe, "seconds": seconds})
    log.warning(
        "torchett: told to end (%s): the state after step %d is %s",
        reason, step, "safe" if is_safe else "NOT safe",
    )  # fmt: skip
