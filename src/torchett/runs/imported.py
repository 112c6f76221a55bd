"""A history written as a run folder, so that every command takes it like one that ran here."""

import json
import os
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np

from torchett.ledger.history import History
from torchett.model.accounts import NAMES
from torchett.model.errors import RunError
from torchett.record.attempt_log import FORMAT as ATTEMPTS
from torchett.record.attempt_log import attempts_path
from torchett.record.clock import Anchor
from torchett.record.flight.format import (
    BACKGROUND,
    CHECKPOINT,
    FRAMES,
    NOTE,
    SPAN,
    STEP,
    chunk,
    header_line,
)
from torchett.runs.flight_records import FRAME_DTYPE, FURTHEST_NS


def write_run(history: History, run: Path) -> None:
    """Write the folder, all of it or nothing; RunError if it cannot be."""
    if os.path.exists(run):
        raise RunError(f"{run}: expected a new run, found one that exists; remove it or rename")
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{run.name}-", dir=run.parent))
    except OSError as error:
        raise RunError(f"{run}: not writable: {error.strerror}") from None
    try:
        made.chmod(0o755)
        attempts_path(made).write_text("".join(_attempt_lines(history)))
        (made / "attempt-all").mkdir()
        (made / "attempt-all" / "rank-all.ett").write_bytes(_flight(history))
        os.rename(made, run)
    except OSError as error:
        raise RunError(f"{run}: not writable: {error.strerror}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)  # unless it has taken its name


def _anchor(history: History) -> Anchor:
    given_ns = history.epoch_s * 1e9
    wall = round(given_ns) if abs(given_ns) < FURTHEST_NS else 0  # else: a clock without a date
    return Anchor(host="imported", clock="imported", wall_ns=wall, mono_ns=0)


def _attempt_lines(history: History) -> list[str]:
    facts: list[dict[str, object]] = [
        {
            "format": ATTEMPTS,
            "job": history.job.name,
            "ranks": history.job.ranks,
            "node": 0,
            "imported": True,
            "anchor": _anchor(history).to_json(),
        }
    ]
    for attempt in history.job.attempts:
        facts.append(
            {
                "event": "start",
                "attempt": attempt.number,
                "t_ns": attempt.start_ns,
                "submitted_ns": attempt.submitted_ns,
                "allocated_ns": attempt.allocated_ns,
                "ranks": attempt.ranks,
                "resumed_from": attempt.resumed_from,
            }
        )
        if attempt.end_ns is not None:
            facts.append(
                {
                    "event": "end",
                    "attempt": attempt.number,
                    "t_ns": attempt.end_ns,
                    "outcome": attempt.outcome,
                    "cause": attempt.cause,
                    "domain": attempt.domain,
                }
            )
    facts += [{"event": "note", "text": note} for note in history.notes]
    if history.now_ns is not None:
        facts.append({"event": "now", "t_ns": history.now_ns})
    return [json.dumps({k: v for k, v in f.items() if v is not None}) + "\n" for f in facts]


def _flight(history: History) -> bytes:
    """One log for all lanes: each chunk says whose it is."""
    header = {
        "attempt": 0,
        "rank": 0,
        "ranks": history.job.ranks,
        "began_ns": 0,
        "anchor": _anchor(history).to_json(),
        "accounts": NAMES,
    }
    out = [header_line(header)]
    for number, name in enumerate(history.accounts.names[len(NAMES) :], len(NAMES)):
        said = json.dumps({"account": number, "name": name}).encode()
        out.append(chunk(NOTE, said, attempt=0, rank=0, reach=0))
    rows = history.rows
    order = np.lexsort((rows.rank, rows.attempt))
    rows = rows.take(order)
    step = rows.is_step
    frames = np.zeros(len(rows), dtype=FRAME_DTYPE)
    frames["kind"] = np.where(step, STEP, np.where(rows.background, BACKGROUND, SPAN))
    frames["account"] = np.where(step, 0, rows.account)
    frames["count"], frames["index"] = rows.count, rows.index
    frames["t0"], frames["t1"] = rows.t0_ns, rows.t1_ns
    frames["least"], frames["median"], frames["most"] = rows.least, rows.median, rows.most
    changes = (np.diff(rows.attempt) != 0) | (np.diff(rows.rank) != 0)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(rows)] if len(rows) else [0]
    for a, b in pairwise(edges):
        lane = {"attempt": int(rows.attempt[a]), "rank": int(rows.rank[a])}
        out.append(chunk(FRAMES, frames[a:b].tobytes(), **lane, reach=0))
    for durable in history.checkpoints:
        mark = np.zeros(1, dtype=FRAME_DTYPE)
        mark["kind"], mark["count"], mark["index"] = CHECKPOINT, 1, durable.step
        mark["t0"] = mark["t1"] = durable.durable_ns
        out.append(chunk(FRAMES, mark.tobytes(), attempt=durable.attempt, rank=0, reach=0))
    return b"".join(out)
