"""What a bench trains: a reference workload of examples/, at a size that fits the machine."""

import math
from dataclasses import dataclass
from pathlib import Path

from torchett.model.errors import InputError

_EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A job: which example, how large, how long; and what its stock script costs.

    `blocking_s` is what one `dcp.async_save` holds the loop up, `step_s` what a step takes: from
    these the stock script gets the interval that is best for it.
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
        """Seconds of training between failures: both sides are told."""
        return self.steps * self.step_s / max(failures, 1)

    def script(self, name: str) -> Path:
        path = _EXAMPLES / self.name / name
        if not path.is_file():
            raise InputError(
                f"ett bench: expected the reference workloads at {_EXAMPLES}, found none: they are"
                " in the project's checkout, not in the installed package"
            )
        return path


# Step and blocking, of stock sides of benches: seconds of checkpoint_blocked over saves. That saves
# slow steps down is not in it: the ledger calls those effective, and more saves leave less unsaved.
WORKLOADS = {
    "quick": Workload(
        name="gpt", preset="tiny", ranks=2, steps=3000, step_s=0.020, blocking_s=0.0088
    ),
    "h200": Workload(
        name="dlrm",
        preset="26-small-tables",
        ranks=1,
        steps=21_500,
        step_s=0.0145,
        blocking_s=0.14,
        on_gpu=True,
        options=("--num-workers", "6"),  # with one, half of the time would be waits for data
    ),
}
