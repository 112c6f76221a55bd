"""How often to save: a plain stand-in by the optimum √(2·B·M) − 2B/3."""

import math
from typing import Any


class AutoInterval:
    """Seconds between saves, from what blocking, uploads and failures are observed."""

    def __init__(
        self,
        *,
        prior_mtbf_s: float = 8 * 3600,
        max_loss_s: float | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._failures, self._exposure_s = 1.0, prior_mtbf_s
        self._max_loss_s = max_loss_s
        self._blocking_s, self._upload_s = 0.01, 0.0
        if state:
            self._failures, self._exposure_s = state["failures"], state["exposure_s"]
            self._blocking_s, self._upload_s = state["blocking_s"], state["upload_s"]

    def observe_blocking(self, seconds: float) -> None:
        self._blocking_s = seconds

    def observe_upload(self, seconds: float) -> None:
        self._upload_s = max(seconds, 0.9 * self._upload_s)

    def observe_failure(self, exposure_s: float, failures: int) -> None:
        self._exposure_s += exposure_s
        self._failures += failures

    def observe_exposure(self, seconds: float) -> None:
        self._exposure_s += seconds

    def interval_s(self) -> float:
        mtbf = self._exposure_s / self._failures
        best = math.sqrt(2 * self._blocking_s * mtbf) - 2 * self._blocking_s / 3
        low = max(1.1 * self._upload_s, self._blocking_s / 0.035 - self._blocking_s)
        return min(max(best, low), self._max_loss_s or math.inf)

    def to_json(self) -> dict[str, Any]:
        return {
            "failures": self._failures,
            "exposure_s": self._exposure_s,
            "blocking_s": self._blocking_s,
            "upload_s": self._upload_s,
        }
