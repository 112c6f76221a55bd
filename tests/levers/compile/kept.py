"""A record of the test process."""

from pathlib import Path
from typing import Any

from torchett.levers.compile.observe.facts import KIND, Compile
from torchett.levers.compile.observe.summary import compiles_in
from torchett.record.clock import anchor, now_ns
from torchett.record.flight.writer import FlightWriter
from torchett.record.recorder import Recorder
from torchett.runs.reader import RunReader


class Kept:
    """The record: `record.compiles()` reads it back."""

    def __init__(self, run: Path) -> None:
        self.run = run
        facts = {"job": "job", "attempt": 0, "restart": 0, "rank": 0, "ranks": 1, "pid": 1}
        facts |= {"began_ns": now_ns(), "anchor": anchor().to_json()}
        writer = FlightWriter(run, attempt=0, restart=0, rank=0, facts=facts)
        writer.open_here()
        self.recorder = Recorder(writer)

    def step(self, index: int) -> Any:
        return self.recorder.step(index)

    def compiles(self) -> list[Compile]:
        return [one for _, _, one in compiles_in(RunReader(self.run).poll().facts(KIND))]

    def accounts(self) -> dict[str, float]:
        return RunReader(self.run).poll().ledger().to_json()["accounts"]
