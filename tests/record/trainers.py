"""Trainers in processes of their own, whose records are read back afterwards."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from player import steps_in

from torchett.ledger import Rows
from torchett.runs.reader import RunReader

_OURS = ("ETT_", "SLURM_", "TORCHELASTIC_", "JOB_")
_ALSO = {"RANK", "WORLD_SIZE", "LOCAL_RANK"}


def environment(runs: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a trainer that nothing launched, recording to `runs`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS) and k not in _ALSO}
    return {**kept, "ETT_RUNS": str(runs), **(extra or {})}


def train(
    script: str, runs: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, whatever that is."""
    return subprocess.run(
        [sys.executable, "-c", "import torchett as ett\n" + script],
        env=environment(runs, env),
        capture_output=True,
        text=True,
        timeout=120,
    )


def records(runs: Path) -> list[Path]:
    """Every log below `runs`."""
    return sorted(runs.glob("*/attempt-*/rank-*.ett"))


def read(runs: Path) -> RunReader:
    """The only run in `runs`."""
    (run,) = runs.iterdir()
    return RunReader(run).poll()


def steps_of(runs: Path) -> list[int]:
    """The indices of the steps of the only run in `runs`, in the order they were recorded."""
    rows = read(runs).history().rows
    rows = rows.take(rows.is_step)
    pairs = zip(rows.index.tolist(), rows.count.tolist(), strict=True)
    return [index + k for index, count in pairs for k in range(count)]


def spans_of(reader: RunReader) -> list[str]:
    """The accounts of the spans of a run, in the order they were recorded."""
    history = reader.history()
    spans: Rows = history.rows.take(~history.rows.is_step)
    return [history.accounts.names[number] for number in spans.account.tolist()]


__all__ = ["environment", "read", "records", "spans_of", "steps_in", "steps_of", "train"]
