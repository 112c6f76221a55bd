"""A job's beacon: the figures a scheduler needs before it preempts the job.

    step 1200 durable          now            next save due
    ───────────┼────────────────┼──────────────────┼────►
               └── lost if killed now ──┘

One value in two forms: JSON (`beacon/1`, written to a file by the trainer), and a Slurm comment.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torchett.model.errors import InputError

FORMAT = "beacon/1"
_SLURM = "ett:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beacon:
    """How fresh a job's last durable checkpoint is. Times are seconds since the epoch.

    The trainer fills in the steps, times and costs of its saves; its launcher adds the rest.
    """

    job: str
    gpus: int
    durable_step: int  # -1: nothing is durable yet
    durable_s: float  # work up to this time is safe; without a checkpoint, the begin of training
    save_s: float  # from the begin of a save until it is durable
    due_s: float | None = None  # when the next save will be durable; None: unknown
    restart_s: float = 0.0  # from new GPUs until training continues
    preemptions: int = 0
    saves_on_signal: bool = False

    def cost_gpu_s(self, now_s: float) -> float:
        """GPU-seconds that a kill at `now_s` costs: the policy's own figure."""
        lost_s = max(0.0, now_s - self.durable_s)
        return self.gpus * (lost_s + self.restart_s * (1 + self.preemptions))


# JSON ------------------------------------------------------------------------------------------


def to_json(beacon: Beacon) -> str:
    return json.dumps({"format": FORMAT, **asdict(beacon)}, ensure_ascii=False)


def parse_beacon(text: str, *, where: str = "beacon") -> Beacon:
    """The beacon in a text; unknown keys are ignored."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{where}: expected a JSON object of format {FORMAT}")
    return _checked(where, found)


def _checked(where: str, found: Mapping[str, Any]) -> Beacon:
    def number(key: str, *, least: float = -math.inf) -> float:
        value: Any = found.get(key)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or value < least:
            raise InputError(f"{where}: {key}: expected a number, found {json.dumps(value)}")
        return float(value)

    job = found.get("job")
    if not isinstance(job, str) or not job:
        raise InputError(f"{where}: job: expected a name, found {json.dumps(job)}")
    return Beacon(
        job=job,
        gpus=int(number("gpus", least=1)),
        durable_step=int(number("durable_step", least=-1)),
        durable_s=number("durable_s"),
        save_s=number("save_s", least=0),
        due_s=None if found.get("due_s") is None else number("due_s"),
        restart_s=number("restart_s", least=0),
        preemptions=int(number("preemptions", least=0)),
        saves_on_signal=found.get("saves_on_signal") is True,
    )


# Slurm -----------------------------------------------------------------------------------------


def slurm_comment(beacon: Beacon) -> str:
    """For `scontrol update jobid=… comment=…`: short, one word, no quotes or commas.

    ett:step=1200;durable=1730000000;save=33;due=1730001800;restart=202;preempts=0;signal=1
    """
    parts = {
        "step": beacon.durable_step,
        "durable": math.floor(beacon.durable_s),
        "save": math.ceil(beacon.save_s),
        "due": "" if beacon.due_s is None else math.ceil(beacon.due_s),
        "restart": math.ceil(beacon.restart_s),
        "preempts": beacon.preemptions,
        "signal": int(beacon.saves_on_signal),
    }
    return _SLURM + ";".join(f"{key}={value}" for key, value in parts.items())


def from_slurm_comment(job: str, gpus: int, comment: str) -> Beacon | None:
    """The beacon in a job's comment; None if there is no readable one."""
    if not comment.startswith(_SLURM):
        return None
    parts = dict(part.partition("=")[::2] for part in comment[len(_SLURM) :].split(";"))
    try:
        found = {
            "job": job,
            "gpus": gpus,
            "durable_step": int(parts["step"]),
            "durable_s": float(parts["durable"]),
            "save_s": float(parts["save"]),
            "due_s": float(parts["due"]) if parts["due"] else None,
            "restart_s": float(parts["restart"]),
            "preemptions": int(parts["preempts"]),
            "saves_on_signal": parts["signal"] == "1",
        }
        return _checked("comment", found)
    except (KeyError, ValueError, InputError):
        return None
