"""A job that exits when Slurm takes its hardware away, and is requeued.

    USR1 (--signal=USR1@60, preempt_send_user_signal)      SIGTERM (grace, requeue, scancel)
      └─► ranks save ─► ranks end ─► scontrol requeue ─► exit, before the grace ends

A job that ends by itself within its grace is FAILED to Slurm: only `scontrol requeue` has it run
again. A cancelled job does not ask, nor does one that was submitted with --no-requeue: it saves at
the warning and trains on until it is killed. ETT_REQUEUE=0 has every job do so.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

ASK_S = 2.0
_FIELD = re.compile(r"(?:^|\s)(JobState|Requeue|PreemptTime|EndTime)=(\S+)")
_ABOUT_TO_END_S = 120.0  # a SIGTERM so long before the time limit is the limit's


@dataclass(slots=True)
class Leaving:
    """The signals of one launcher, and the requeue that they lead to; no-op without Slurm."""

    env: Mapping[str, str]
    node: int = 0
    received: set[signal.Signals] = field(default_factory=set)

    def hear(self, number: signal.Signals, by_agent: bool) -> None:
        """Handle a signal; a warning ends a job that Slurm will run again.

        torchrun's agent ends its ranks by SIGTERM only, so this process sends itself one.
        Other commands receive the warning unchanged, and exit or ignore it.
        """
        self.received.add(number)
        if number == signal.SIGUSR1 and by_agent and self._may_be_requeued():
            os.kill(os.getpid(), signal.SIGTERM)

    def ended(self, code: int) -> None:
        """The command exited with this code: requeue the job if a signal ended it."""
        if self.node or not self._was_told(code):
            return
        job = self._shown()
        preempted = job.get("PreemptTime", "None") not in ("None", "N/A", "Unknown")
        by_slurm = signal.SIGUSR1 in self.received or preempted or _ends_soon(job)
        if job.get("JobState") == "RUNNING" and job.get("Requeue") == "1" and by_slurm:
            self._requeue()

    # Behind it -------------------------------------------------------------------------------

    def _was_told(self, code: int) -> bool:
        return signal.SIGTERM in self.received or (signal.SIGUSR1 in self.received and code != 0)

    def _may_be_requeued(self) -> bool:
        return self._shown().get("Requeue") == "1"

    def _shown(self) -> dict[str, str]:
        """What `scontrol show job` says; nothing outside Slurm, or where it does not answer."""
        if "SLURM_JOB_ID" not in self.env or self.env.get("ETT_REQUEUE") == "0":
            return {}
        done = self._scontrol("show", "job", self.env["SLURM_JOB_ID"])
        return dict(_FIELD.findall(done.stdout)) if done is not None else {}

    def _requeue(self) -> None:
        job = self.env["SLURM_JOB_ID"]
        done = self._scontrol("requeue", job)
        if done is None or done.returncode:
            said = done.stderr.strip() if done is not None else f"no answer within {ASK_S:g} s"
            print(f"ett: job {job} is not requeued: {said}", file=sys.stderr, flush=True)
        else:
            print(f"ett: job {job} leaves early; Slurm requeues it", file=sys.stderr, flush=True)

    def _scontrol(self, *words: str) -> "subprocess.CompletedProcess[str] | None":
        try:
            return subprocess.run(
                ["scontrol", *words],
                env={**self.env, "SLURM_TIME_FORMAT": "%s"},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ASK_S,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None


def _ends_soon(job: Mapping[str, str]) -> bool:
    end = job.get("EndTime", "")
    return end.isdigit() and int(end) - time.time() < _ABOUT_TO_END_S
