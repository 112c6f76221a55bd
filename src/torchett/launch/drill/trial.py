"""One drill: a job is started, signalled at a moment, given its grace, and its record is read.

start ─ … moment ─ signal ─── saves ── leaves ──┤ grace over: SIGKILL to all that is left
                     └── durable after ──┘
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchett.launch.drill.moments import Stopped, family, wait_for
from torchett.model.errors import EttError
from torchett.runs.reader import RunReader

_HOLD = 0.25  # of the grace: how long data stays away after the signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """How the site's scheduler preempts a job: signal, receiver, grace time."""

    number: signal.Signals = signal.SIGTERM
    to_all: bool = True  # Slurm signals every process of a step; Kubernetes the first one
    grace_s: float = 30.0
    within_s: float = 120.0  # for the moment to come


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of one drill."""

    moment: str
    seen: bool  # whether the moment came
    last_step: int | None = None  # the last that was finished
    durable_step: int | None = None
    lost_steps: int | None = None
    durable_after_s: float | None = None  # the last save, after the signal; None: before it
    left_after_s: float | None = None  # None: it was killed when the grace was over
    said: str = ""

    @property
    def passed(self) -> bool:
        return self.seen and self.lost_steps == 0 and self.left_after_s is not None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def drill(
    moment: str,
    command: Sequence[str],
    folder: Path,
    site: Site,
    env: Mapping[str, str],
    *,
    ett: Sequence[str],
) -> Found:
    """Run the command once by `ett run`, preempt it at that moment, and say what was lost."""
    run = folder / moment
    own = {
        **env, "ETT_RUNS": str(folder), "ETT_GRACE_S": f"{site.grace_s:g}", "ETT_REQUEUE": "0",
    }  # fmt: skip
    words = [*ett, "run", "--job", moment, "--progress", "0"]
    with open(folder / f"{moment}.log", "wb") as log:
        running = subprocess.Popen(
            [*words, "--", *command], env=own, stdout=log, stderr=log, start_new_session=True
        )
    stopped = Stopped()
    try:
        until = time.monotonic() + site.within_s
        seen = wait_for(moment, run, stopped, until=until, runs=lambda: running.poll() is None)
        if not seen:
            ended = running.poll()
            said = "not seen" if ended is None else f"the job ended with {ended} before it came"
            return Found(moment=moment, seen=False, said=said)
        sent_s, left_s = _preempt(running, site, stopped)
    finally:
        stopped.go_on()
        _kill(running)
    return _judged(moment, run, sent_s, left_s)


def _preempt(
    running: "subprocess.Popen[bytes]", site: Site, stopped: Stopped
) -> tuple[float, float | None]:
    """Signal, and wait for the grace: when it was sent, and after how long the job had left."""
    sent_s, began = time.time(), time.monotonic()
    everybody = family(running.pid)
    for pid in reversed(everybody) if site.to_all else [running.pid]:
        try:
            os.kill(pid, site.number)
        except ProcessLookupError:
            pass
    held, followed = bool(stopped.pids), site.number == signal.SIGTERM
    while (passed := time.monotonic() - began) < site.grace_s:
        if running.poll() is not None:
            return sent_s, passed
        if held and passed > _HOLD * site.grace_s:
            stopped.go_on()
            held = False
        if not followed and passed > site.grace_s / 2:  # after a warning comes the real thing
            followed = True
            running.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    return sent_s, None


def _kill(running: "subprocess.Popen[bytes]") -> None:
    for pid in reversed(family(running.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    running.wait()


def _judged(moment: str, run: Path, sent_s: float, left_s: float | None) -> Found:
    said = "" if left_s is not None else "did not leave: killed at the end of its grace"
    try:
        reader = RunReader(run).poll()
    except EttError as error:
        if moment == "start_up":  # it left before it had written anything
            return Found(moment=moment, seen=True, lost_steps=0, left_after_s=left_s, said=said)
        return Found(moment=moment, seen=True, left_after_s=left_s, said=str(error))
    rows = reader.history().rows
    steps = rows.take(rows.is_step)
    last = int((steps.index + steps.count - 1).max()) if len(steps) else None
    saved = sorted((one.step, one.durable_ns) for one in reader.checkpoints())
    durable = saved[-1][0] if saved else None
    lost = 0
    if last is not None:
        kept = int(steps.index.min()) - 1 if durable is None else durable
        lost = max(0, last - kept)
    after_s = saved[-1][1] / 1e9 - sent_s if saved else None
    if last is None and not said:
        said = "nothing to save yet"
    elif durable is None and last is not None:
        said = said or "no checkpoint became durable"
    return Found(
        moment=moment,
        seen=True,
        last_step=last,
        durable_step=durable,
        lost_steps=lost,
        durable_after_s=None if after_s is None or after_s < 0 else round(after_s, 3),
        left_after_s=None if left_s is None else round(left_s, 3),
        said=said,
    )
