"""The progress line of a running job."""

import sys
import threading
import time
from pathlib import Path

from torchett.ledger.ledger import Ledger
from torchett.model.errors import EttError
from torchett.runs.reader import RunReader


def line(ledger: Ledger, now: str | None = None) -> str:
    """One line: `attempt 1 · step 240 · 71.3% effective · 1 failure · now pt2_compile 12 s`."""
    parts = [f"attempt {ledger.window.tenures[-1].attempt.number}"] if ledger.window.tenures else []
    if ledger.last_step is not None:
        parts.append(f"step {ledger.last_step}")
    parts.append(f"{ledger.ett_percent:.1f}% effective")
    if any(ledger.failures.values()):
        count, _, by_user = ledger.failures_said.partition(" ")
        parts.append(f"{count} failure{'' if count == '1' else 's'} {by_user}".rstrip())
    if now:
        parts.append(f"now {now}")
    return " · ".join(parts)


def doing(reader: RunReader) -> str | None:
    """The open span of the lowest rank, and for how long it has been open."""
    live = [flight for flight in reader.flights if len(flight.open) and flight.exit is None]
    if not live or reader.now_ns is None:
        return None
    flight = min(live, key=lambda f: (-f.attempt, -f.restart, f.rank))
    newest = flight.open[flight.open["t0"].argmax()]
    account = flight.names.get(int(newest["account"]) - 1, "?")
    since_s = (reader.now_ns - int(newest["t0"]) - flight.anchor.offset_ns) / 1e9
    return f"{account} {max(since_s, 0):.0f} s"


def watch(run: Path, every_s: float, over: threading.Event) -> None:
    """Print the line every `every_s` seconds until the job is over."""
    reader = RunReader(run)
    pause_s = 0.0
    while not over.wait(pause_s):
        began = time.monotonic()
        try:
            ledger = reader.poll().ledger()
            print(f"ett: {line(ledger, doing(reader))}", file=sys.stderr, flush=True)
        except (EttError, OSError):
            pass  # nothing recorded yet
        # Never more than a hundredth of a core, however large the job is.
        pause_s = max(every_s, 100 * (time.monotonic() - began))
