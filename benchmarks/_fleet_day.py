"""A day of a fleet: run folders of jobs drawn from Philly's trace, or from numbers like it.

Sizes (GPUs × `WIDER`, at most 1,024 ranks), run times and ends are the trace's. A job that failed
there has up to three attempts here, each resumed a little before its predecessor's end.
"""

import csv
import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchett.model.accounts import INDEX, NAMES
from torchett.record.attempt_log import FORMAT
from torchett.record.clock import Anchor
from torchett.record.flight import format as layout
from torchett.runs.flight_records import FRAME_DTYPE

TRACE = Path(__file__).parents[2] / "shared" / "data" / "traces" / "philly_status_first15k.csv.gz"
S = 1_000_000_000
EPOCH_S = 1_790_000_000
WIDER = 8
MOST_RANKS = 1024
START = ("imports", "device_init", "process_group_init", "train_module_creation",
         "pre_train", "checkpoint_restore", "pt2_compile", "get_first_batch_data")  # fmt: skip
FRAMES_A_CHUNK = 20
SAVED_EVERY = 20  # blocks
TEAMS, MODELS, QUEUES = 12, 30, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DayJob:
    """One job of the day."""

    name: str
    ranks: int
    run_s: int
    attempts: int
    ends_well: bool
    begin_s: int
    labels: dict[str, str]


def jobs_of_a_day(count: int, seed: int = 0) -> Iterator[DayJob]:
    """So many jobs, in the order they begin."""
    chance = random.Random(seed)
    trace = list(_trace(chance))
    begins = sorted(chance.randrange(86_400) for _ in range(count))
    for i, begin in enumerate(begins):
        gpus, run_s, status = trace[chance.randrange(len(trace))]
        failed = status in ("Failed", "Killed")
        team = chance.randrange(TEAMS)
        labels = {
            "team": f"team{team}",
            "model": f"model{chance.randrange(MODELS)}",
            "queue": f"queue{chance.randrange(QUEUES)}",
            "user": f"user{team}-{chance.randrange(20)}",
        }
        yield DayJob(
            name=f"job-{i:05}",
            ranks=min(max(gpus, 1) * WIDER, MOST_RANKS) if chance.random() < 0.6 else 1,
            run_s=min(max(run_s, 120), 86_400),
            attempts=chance.randint(1, 3) if failed else 1,
            ends_well=not failed,
            begin_s=begin,
            labels=labels,
        )


def _trace(chance: random.Random) -> Iterator[tuple[int, int, str]]:
    if not TRACE.exists():
        for _ in range(2000):
            size = chance.choice([1] * 12 + [2, 4, 8, 8, 16, 32])
            yield size, int(chance.lognormvariate(7, 2)), chance.choice(["Pass", "Pass", "Failed"])
        return
    with gzip.open(TRACE, "rt") as file:
        for row in csv.DictReader(file):
            yield int(row["gpus"]), int(float(row["run_s"])), row["status"]


def write_run(job: DayJob, run: Path, rows: int, live: bool = False) -> None:
    """The run folder, about `rows` rows a rank record.

    The last attempt of a live one has no end, and its records are not closed.
    """
    anchor = Anchor(host="bench", clock="bench", wall_ns=EPOCH_S * S, mono_ns=0)
    head = {"format": FORMAT, "job": job.name, "node": 0, "ranks": job.ranks}
    facts: list[dict[str, Any]] = [head | {"anchor": anchor.to_json(), "labels": job.labels}]
    begin = job.begin_s * S
    each = job.run_s * S // job.attempts
    first = 0
    run.mkdir(parents=True)
    for a in range(job.attempts):
        last = a == job.attempts - 1
        outcome = "success" if last and job.ends_well else "failed"
        end = begin + each
        facts.append({"event": "start", "attempt": a, "t_ns": begin, "ranks": job.ranks})
        if not (live and last):
            facts.append({"event": "end", "attempt": a, "t_ns": end, "outcome": outcome})
        frames, steps = _lane(begin, end - 5 * S, first, rows)
        _write_ranks(run, job.ranks, a, frames, anchor, closed=not (live and last))
        first += max(steps - steps // 10, 0)
        begin = end + 60 * S
    text = "".join(json.dumps(fact) + "\n" for fact in facts)
    (run / "attempts-0.jsonl").write_text(text)


def _lane(begin: int, end: int, first: int, rows: int) -> tuple[Any, int]:
    """Start-up spans, then blocks of ten steps with waits and saves between them."""
    blocks = max((rows - len(START)) // 2, 1)
    frames = np.zeros(len(START) + 2 * blocks, dtype=FRAME_DTYPE)
    start = (end - begin) // 20
    cuts = begin + np.arange(len(START) + 1) * (start // len(START))
    frames["kind"][: len(START)] = layout.SPAN
    frames["account"][: len(START)] = [INDEX[name] for name in START]
    frames["t0"][: len(START)], frames["t1"][: len(START)] = cuts[:-1], cuts[1:]
    took = (end - int(cuts[-1])) // blocks
    at = int(cuts[-1]) + np.arange(blocks) * took
    steps, waits = frames[len(START) :: 2], frames[len(START) + 1 :: 2]
    steps["kind"], steps["count"] = layout.STEP, 10
    steps["index"] = first + 10 * np.arange(blocks)
    steps["t0"], steps["t1"] = at, at + took * 9 // 10
    steps["least"] = steps["median"] = steps["most"] = took * 9 / 100 / S
    waits["kind"], waits["count"] = layout.SPAN, 1
    saves = np.arange(blocks) % SAVED_EVERY == SAVED_EVERY - 1
    waits["account"] = np.where(saves, INDEX["checkpoint_blocked"], INDEX["data_wait"])
    waits["t0"], waits["t1"] = at + took * 9 // 10, at + took
    frames["count"][: len(START)] = 1
    return frames, 10 * blocks


def _write_ranks(
    run: Path, ranks: int, attempt: int, frames: Any, anchor: Anchor, *, closed: bool
) -> None:
    folder = run / f"attempt-{attempt}"
    folder.mkdir()
    header = {
        "attempt": attempt, "restart": 0, "ranks": ranks, "began_ns": int(frames["t0"][0]),
        "anchor": anchor.to_json(), "accounts": NAMES, "launched": True,
    }  # fmt: skip
    saved = frames[frames["account"] == INDEX["checkpoint_blocked"]]
    marks = np.zeros(len(saved), dtype=FRAME_DTYPE)
    marks["kind"], marks["count"] = layout.CHECKPOINT, 1
    before = np.searchsorted(frames["t0"], saved["t0"]) - 1
    marks["index"] = frames["index"][before] + 9
    marks["t0"] = marks["t1"] = saved["t1"]
    for rank in range(ranks):
        late = rank * 1_000_003 % S
        mine = frames.copy()
        mine["t0"] += late
        mine["t1"] += late
        lane = {"attempt": attempt, "rank": rank}
        parts = [layout.header_line({**header, "rank": rank})]
        for cut in range(0, len(mine), FRAMES_A_CHUNK):
            piece = mine[cut : cut + FRAMES_A_CHUNK].tobytes()
            parts.append(layout.chunk(layout.FRAMES, piece, **lane, reach=cut + FRAMES_A_CHUNK))
        if rank == 0 and len(marks):
            parts.append(layout.chunk(layout.FRAMES, marks.tobytes(), **lane, reach=len(mine)))
        note = json.dumps({"exit_ns": int(mine["t1"][-1])}).encode()
        if closed:
            parts.append(layout.chunk(layout.NOTE, note, **lane, reach=len(mine)))
        (folder / f"rank-{rank}.ett").write_bytes(b"".join(parts))
