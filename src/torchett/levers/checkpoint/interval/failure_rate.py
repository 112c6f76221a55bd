"""How often a job fails: a belief that begins with a prior and follows what is seen.

    prior     Gamma(α₀, α₀ × MTBF)                 worth α₀ failures, one unless said otherwise
    seen      n failures in t seconds, both fading   half of it is forgotten every half-life
    rate      (α₀ + n) / (α₀ × MTBF + t)           the posterior's mean: works from zero failures

Only failures without notice count: a preemption that gave time to save costs no work.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

HALF_LIFE_S = 7 * 86400.0  # long enough to know a rate of 3 a day to a fifth
_MOST_A_FLEET_IS_WORTH = (
    4.0  # jobs differ: a fleet's rate never outweighs a few failures of one's own
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """What is believed of a job's failures after some time under observation."""

    prior_mtbf_s: float
    prior_weight: float = 1.0
    failures: float = 0.0
    exposure_s: float = 0.0
    half_life_s: float = HALF_LIFE_S

    @property
    def per_s(self) -> float:
        """Expected failures in a second."""
        return 1.0 / self.mtbf_s

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures, in seconds."""
        prior_s = self.prior_weight * self.prior_mtbf_s
        return (prior_s + self.exposure_s) / (self.prior_weight + self.failures)

    def after(self, exposure_s: float, failures: float = 0) -> "FailureRate":
        """The belief after `exposure_s` more seconds with `failures` at their end.

        What was seen fades evenly, so that many short looks amount to one long one.
        """
        kept = 0.5 ** (exposure_s / self.half_life_s)
        seen_s = -math.expm1(-exposure_s / self.half_life_s * math.log(2)) / math.log(2)
        return replace(
            self,
            failures=self.failures * kept + failures,
            exposure_s=self.exposure_s * kept + seen_s * self.half_life_s,
        )

    def to_json(self) -> dict[str, float]:
        """What was seen; the prior is given anew to each attempt."""
        return {"failures": self.failures, "exposure_s": self.exposure_s}

    def recalling(self, state: Any) -> "FailureRate":
        """This belief with what `to_json` kept; ValueError if that is something else."""
        try:
            failures, exposure_s = float(state["failures"]), float(state["exposure_s"])
        except (TypeError, KeyError) as error:
            raise ValueError(f"expected failures and exposure_s, found {state!r}") from error
        if not (0 <= failures < math.inf and 0 <= exposure_s < math.inf):
            raise ValueError(f"expected failures and exposure_s from 0 on, found {state!r}")
        return replace(self, failures=failures, exposure_s=exposure_s)


def scaled_by_nodes(mtbf_s: float, *, nodes: int, seen_on: int = 1) -> float:
    """The MTBF to expect on `nodes` nodes where it was `mtbf_s` on `seen_on`: any node may fail."""
    return mtbf_s * seen_on / nodes


def rate_of_fleet(*, failures: float, node_s: float, nodes: int = 1) -> FailureRate:
    """A prior for a job on `nodes` nodes from a fleet's failures in `node_s` node-seconds.

    A fleet with few failures yet is worth no more than those.
    """
    mtbf_s = scaled_by_nodes(node_s / max(failures, 1.0), nodes=nodes)
    weight = min(max(failures, 1.0), _MOST_A_FLEET_IS_WORTH)
    return FailureRate(prior_mtbf_s=mtbf_s, prior_weight=weight)
