"""The measured effect of each lever, as data: priors.toml. Each row has a date and a source."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

SHIPPED: Final = Path(__file__).with_name("priors.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The 10th, 50th and 90th percentile of a quantity."""

    low: float
    mid: float
    high: float

    def scaled(self, by: float) -> "Range":
        return Range(low=self.low * by, mid=self.mid * by, high=self.high * by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """One row: what remains of a loss (a share, or seconds of a rank), and its source."""

    name: str
    is_: str  # the quantity that the figures describe
    range: Range
    date: str
    source: str


@cache
def priors() -> Mapping[str, Prior]:
    """All rows by name."""
    found = {}
    for row in tomllib.loads(SHIPPED.read_text(encoding="utf-8"))["prior"]:
        low, mid, high = row["range"]
        found[row["name"]] = Prior(
            name=row["name"],
            is_=row["is"],
            range=Range(low=low, mid=mid, high=high),
            date=row["date"],
            source=row["source"],
        )
    return found


def prior(name: str) -> Range:
    """The percentiles of one row."""
    return priors()[name].range
