"""torchft: a committed step is a step, a refused one is lost, quorum and healing are recovery.

    start_quorum ─── forward, backward ─── should_commit ─── optimizer.step
    ├──────────────┤ waits for a quorum ├──────────────────── committed ────┤   step, regroup
    ├──────────────┤                    ├──────── refused ──┤                   refused
    ├── the state comes from a peer ───────────────────────────────────────┤    regroup
    ├── a spare: computes, and is not part of the quorum ──────────────────┤    other_in_loop

Installed by itself. Steps have the manager's numbers, so a group that comes back goes on where its
peers are. LocalSGD and DiLoCo commit many steps at once and are not recorded. A script that
records its steps itself keeps them, and is told what that costs.
"""

import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torchett.record import api
from torchett.record.clock import now_ns
from torchett.record.patches import calling, install
from torchett.record.recorder import StepTimer

log = logging.getLogger("torchett")
_MANAGER = "torchft.manager:Manager"
_OWN_STEPS = (
    "the script records its steps itself, so a step that torchft refuses counts as trained, and a"
    " group that comes back needs torchft's numbers: leave ett.steps and ett.step out"
)
_SHORT_NS = 1_000_000  # a wait for a quorum that is shorter stays in the step
_states: "WeakKeyDictionary[Any, _Replica]" = WeakKeyDictionary()
_off = False
_steps = False  # whether steps were recorded here


def install_manager() -> bool:
    """Record what managers of this process do; False where that cannot be done."""
    hooks = {
        "start_quorum": _start_quorum,
        "wait_quorum": _wait_quorum,
        "should_commit": _should_commit,
    }
    done = [install(f"{_MANAGER}.{name}", calling(hook)) for name, hook in hooks.items()]
    return None not in done


def install_optimizer() -> None:
    """A step ends where its optimizer's update ends."""
    install("torchft.optim:OptimizerWrapper.step", calling(_optimizer_step))


def install_local_sgd() -> None:
    """Say in the report that these are not recorded."""
    for name in ("LocalSGD", "DiLoCo"):
        install(f"torchft.local_sgd:{name}.__enter__", calling(_local_sgd))


class _Replica:
    """The state of one manager: at most one step that is not decided yet."""

    def __init__(self) -> None:
        self.begun_ns = 0
        self.step = -1  # the manager's number when the step began
        self.timer: StepTimer | None = None
        self.committed = -1  # a step whose update is the only part missing
        self.in_update = False
        self.resumed = False  # whether the source of the first step's state is recorded
        recorder = api.recorder()
        self.aside = recorder is not None and recorder.script_calls.steps and not _steps
        if self.aside:
            log.warning("torchett: %s", _OWN_STEPS)
            api.note("hint", {"says": _OWN_STEPS})

    def begins(self, step: int) -> None:
        """A step begins. A previous step that was never decided is discarded."""
        self.forget()
        if self.aside:
            return
        global _steps
        _steps = True
        self.begun_ns, self.step = now_ns(), step
        self.timer = api.step(step)
        self.timer.__enter__()

    def forget(self) -> None:
        if self.timer is not None:
            self.timer.void()
        self.timer, self.committed = None, -1

    def decided(self, step: int, committed: bool, healed: bool, takes_part: bool) -> None:
        """The groups have voted on the step that the manager calls `step`."""
        if self.timer is None:
            return
        if not self.resumed and committed:
            self.resumed = True
            from_peer = healed or step != self.step
            api.resumed(step, ("peer" if from_peer else "checkpoint") if step else "nothing")
        if committed and takes_part and not healed:
            self.committed = step
            if not self.in_update:
                self.ends()
            return
        account = "regroup" if healed else "refused" if not committed else "other_in_loop"
        self.forget()
        api.past_span(account, self.begun_ns, now_ns())

    def ends(self) -> None:
        """The committed step is over."""
        if self.committed < 0 or self.timer is None:
            return
        if self.committed == self.step:
            self.timer.over(1)
            self.timer, self.committed = None, -1
        else:  # the quorum changed its number since it began
            step, recorder = self.committed, api.recorder()
            self.forget()
            if recorder is not None:
                recorder.past_step(self.begun_ns, self.begun_ns, now_ns(), step)


def _replica(manager: Any) -> _Replica:
    found = _states.get(manager)
    if found is None:
        found = _states[manager] = _Replica()
    return found


def _safely(act: Callable[..., None], *args: Any) -> None:
    """Do this, unless an earlier one failed; never raise into training."""
    global _off
    if _off:
        return
    try:
        act(*args)
    except Exception as error:
        _off = True
        log.warning("torchett: torchft is off: %s: %s", type(error).__name__, error)


def _start_quorum(plain: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    _safely(lambda: _replica(manager).begins(manager.current_step()))
    return _waiting(plain, manager, *args, **kwargs)  # waits where the quorum is not asynchronous


def _wait_quorum(plain: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    return _waiting(plain, manager, *args, **kwargs)


def _waiting(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    began = now_ns()
    try:
        return plain(*args, **kwargs)
    finally:
        ended = now_ns()
        if ended - began > _SHORT_NS:
            _safely(api.past_span, "regroup", began, ended)


def _should_commit(plain: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    healed = bool(getattr(manager, "_healing", False))
    committed = plain(manager, *args, **kwargs)

    def decided() -> None:
        step = manager.current_step() - bool(committed)
        takes_part = bool(manager.is_participating())
        _replica(manager).decided(step, bool(committed), healed, takes_part)

    _safely(decided)
    return committed


def _optimizer_step(plain: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    replica = _replica(wrapper.manager)
    replica.in_update = True
    try:
        return plain(wrapper, *args, **kwargs)
    finally:
        replica.in_update = False
        _safely(replica.ends)


def _local_sgd(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    from torchett.record.adapters.healthy_ranks import not_recorded

    global _off
    if not _off:
        _off = True
        not_recorded("torchft's LocalSGD and DiLoCo")
    return plain(*args, **kwargs)
