"""How many GPUs VCs will claim within their quota: what the lending reserve is sized by."""

import math
from dataclasses import dataclass

from torchett.schedule.values import Pressure


@dataclass(slots=True)
class ClaimForecast:
    """Claims minus releases in windows of `horizon_s`, with exponentially fading weights.

    GPUs that jobs give back by themselves in the same window serve a claim without a reserve, so
    only what claims exceed releases by counts.
    """

    gpus: int
    horizon_s: float = 300.0
    half_life_s: float = 6 * 3600.0
    _window: int = 0
    _net: int = 0
    _mean: float = 0.0
    _square: float = 0.0

    def observe(self, now_s: float, claimed: int, released: int) -> None:
        """GPUs that were claimed within quota, and that jobs gave back, at a time."""
        self._close(now_s)
        self._net += claimed - released

    def pressure(self, now_s: float) -> Pressure:
        self._close(now_s)
        spread = math.sqrt(max(0.0, self._square - self._mean * self._mean))
        return Pressure(gpus=self.gpus, claims_gpus=self._mean, spread_gpus=spread)

    def _close(self, now_s: float) -> None:
        window = math.floor(now_s / self.horizon_s)
        passed = window - self._window
        if passed <= 0:
            return
        keep = 0.5 ** (self.horizon_s / self.half_life_s)
        excess = max(0, self._net)
        self._mean += (1 - keep) * (excess - self._mean)
        self._square += (1 - keep) * (excess * excess - self._square)
        fade = keep ** (passed - 1)  # windows in which nothing happened
        self._mean *= fade
        self._square *= fade
        self._window, self._net = window, 0
