"""Failures on demand, to show what a restart costs."""

import os
import signal
from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Kill:
    """A SIGKILL of `rank` at the beginning of `step`."""

    rank: int
    step: int

    @classmethod
    def parse(cls, text: str) -> "Kill":
        """The kill that `RANK:STEP` describes."""
        rank, _, step = text.partition(":")
        if not (rank.isdecimal() and step.isdecimal()):
            raise ArgumentTypeError(f"expected RANK:STEP such as 1:30, got {text!r}")
        return cls(int(rank), int(step))


def kill_if_asked(kills: list[Kill], *, rank: int, step: int, folder: Path) -> None:
    """Returns unless this rank is to die at this step and has not done so earlier in the job.

    A marker file in `folder` remembers the death, so that the restarted job gets past this step.
    """
    marker = folder / f"killed-{rank}-{step}"
    if Kill(rank, step) in kills and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
