"""The job of a bench: a reference workload of examples/, at a size that fits the machine."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from torchett.model.errors import InputError

_EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A job: which example, how large, how long, and the costs of its stock script.

    `blocking_s` is how long one `dcp.async_save` blocks the loop; `step_s` is the time of a step.
    They give the best checkpoint interval for the stock script.
    """

    name: str
    preset: str
    ranks: int
    steps: int
    step_s: float
    blocking_s: float
    on_gpu: bool = False
    options: tuple[str, ...] = ()  # of the script, on both sides

    def save_every(self, failures: int) -> int:
        """Steps between the stock script's checkpoints: √(2·blocking·MTBF), in steps."""
        between_s = self.mtbf_s(failures)
        return max(1, round(math.sqrt(2 * self.blocking_s * between_s) / self.step_s))

    def mtbf_s(self, failures: int) -> float:
        """Seconds of training between failures, passed to both sides."""
        return self.steps * self.step_s / max(failures, 1)

    def script(self, name: str) -> Path:
        path = _EXAMPLES / self.name / name
        if not path.is_file():
            raise InputError(
                f"ett bench: expected the reference workloads at {_EXAMPLES}, found none: they are"
                " in the project's checkout, not in the installed package"
            )
        return path


# `step_s` and `blocking_s` were measured in stock sides of benches: checkpoint_blocked ÷ saves.
# Steps that a save slows down are left out: the ledger counts them as effective.
_QUICK = Workload(name="gpt", preset="tiny", ranks=2, steps=3000, step_s=0.020, blocking_s=0.0088)
WORKLOADS = {
    "quick": _QUICK,
    "short": replace(_QUICK, steps=400),
    "h200": Workload(
        name="dlrm",
        preset="26-small-tables",
        ranks=1,
        steps=21_500,
        step_s=0.0145,
        blocking_s=0.14,
        on_gpu=True,
        options=("--num-workers", "6"),  # with one worker, half of the time is data_wait
    ),
}
