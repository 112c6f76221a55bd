"""Failures on demand, to show what they cost.

    kill:1@690      rank 1 is killed (SIGKILL) at the beginning of step 690
    node@900        the whole node dies at step 900: rank 0 says so and waits for whoever does it
    preempt@1200    the job is told to leave at step 1200: rank 0 says so and trains on
    error#2         the second start of the job fails before its first step, on rank 0
    slow:6#3        in the third start the data service takes 6 s to answer

Each happens once per job: markers in the checkpoint folder remember what has happened.
"""

import os
import re
import signal
import time
from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from common.world import World

_FORM = re.compile(r"(kill|node|preempt|error|slow)(?::(\d+))?(?:@(\d+)|#(\d+))")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is to go wrong, at a step or in the n-th start; `number` is a rank or seconds."""

    kind: str
    number: int
    step: int | None
    start: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The fault that a word such as `kill:1@690` describes."""
        found = _FORM.fullmatch(text)
        at_start = found is not None and found[1] in ("error", "slow")
        if found is None or at_start == (found[4] is None):
            raise ArgumentTypeError(f"expected a fault such as kill:1@30 or slow:6#2, got {text!r}")
        step, start = (None if word is None else int(word) for word in found.groups()[2:])
        return cls(found[1], int(found[2] or 0), step, start)

    @classmethod
    def parse_kill(cls, text: str) -> Self:
        """The kill that `RANK:STEP` describes."""
        rank, _, step = text.partition(":")
        if not (rank.isdecimal() and step.isdecimal()):
            raise ArgumentTypeError(f"expected RANK:STEP such as 1:30, got {text!r}")
        return cls("kill", int(rank), int(step), None)


class Faults:
    """What is still to go wrong for this rank; making one counts as a start of the job."""

    def __init__(self, faults: list[Fault], world: World, folder: Path) -> None:
        self.rank, self.folder = world.rank, folder
        self.steps = {fault.step: fault for fault in faults if fault.step is not None}
        starts = len(list(folder.glob(f"start-{world.rank}-*"))) + 1 if faults else 0
        self.now = [fault for fault in faults if fault.start == starts]
        if faults:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"start-{world.rank}-{starts}").touch()

    @property
    def data_delay_s(self) -> float:
        """How much longer the data service takes in this start."""
        return float(sum(fault.number for fault in self.now if fault.kind == "slow"))

    def in_start_up(self) -> None:
        """Raises if this start is to fail."""
        if self.rank == 0 and any(fault.kind == "error" for fault in self.now):
            raise ConnectionError("the feature store did not answer (as --fault asked)")

    def at_step(self, step: int) -> None:
        """Returns unless this rank is to die at this step and has not done so earlier."""
        fault = self.steps.get(step)
        if fault is None or self.rank != (fault.number if fault.kind == "kill" else 0):
            return
        marker = self.folder / f"{fault.kind}-{self.rank}-{step}"
        if marker.exists():
            return
        marker.touch()
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"fault {fault.kind} at step {step}", flush=True)
        if fault.kind == "node":
            time.sleep(60)
