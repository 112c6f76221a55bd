"""Jobs to settle: the same one as rows, as an events/1 file, as flight records, or for a peer.

Long   one rank, a million steps of a second each, restarted now and then
       ├ start-up ┤ step step … step ┤✗ detect │ gap │├ start-up ┤ step … (10 steps back)
Wide   a thousand ranks, a few attempts; steps lie folded in blocks, as recorders leave them
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from torchett.ledger import AccountTable, History, Rows
from torchett.ledger.rows import STEP
from torchett.model.accounts import INDEX, NAMES
from torchett.model.values import Attempt, Checkpoint, Job
from torchett.record.attempt_log import AttemptLog
from torchett.record.clock import Anchor
from torchett.record.flight import fold
from torchett.record.flight import format as layout

S = 1_000_000_000
EPOCH_S = 1_600_000_000  # peers compare with the present: everything lies in the past
HELPING = 256  # steps that a recorder folds together

Block = tuple[int, int, int, int]  # index, steps, begin and length in ns

START = (
    "imports",
    "device_init",
    "process_group_init",
    "preproc_creation",
    "train_module_creation",
    "init_plugins",
    "pre_train",
    "checkpoint_restore",
    "pt2_compile",
    "get_first_batch_data",
    "x-warmup_a",
    "x-warmup_b",
    "x-warmup_c",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Long:
    """`steps` steps in restarts + 1 attempts of one rank; a live job's last one has no end."""

    steps: int
    restarts: int
    live: bool = False

    STARTUP_S = 30
    DETECT_S = 5
    GAP_S = 60
    SAVED_EVERY = 500
    SPANS = (("imports", 0, 10), ("checkpoint_restore", 10, 25), ("get_first_batch_data", 25, 30))

    @property
    def numbers(self) -> range:
        return range(self.restarts + 1)

    def size(self, attempt: int) -> int:
        """Steps executed by the attempt; the last takes what is left over."""
        each, rest = divmod(self.steps, self.restarts + 1)
        return each + (rest if attempt == self.restarts else 0)

    def first(self, attempt: int) -> int:
        """The index it begins with: each restart falls back ten steps, or half an attempt."""
        each = self.size(0)
        return attempt * (each - min(10, each // 2))

    def start_s(self, attempt: int) -> int:
        return attempt * (self.STARTUP_S + self.size(0) + self.DETECT_S + self.GAP_S)

    def end_s(self, attempt: int) -> int:
        return self.start_s(attempt) + self.STARTUP_S + self.size(attempt) + self.DETECT_S

    def job(self) -> Job:
        last = self.numbers[-1]
        attempts = [
            Attempt(
                number=a,
                start_ns=self.start_s(a) * S,
                ranks=1,
                end_ns=None if self.live and a == last else self.end_s(a) * S,
                outcome=None if self.live and a == last else "success" if a == last else "failed",
            )
            for a in self.numbers
        ]
        return Job(name="long", ranks=1, attempts=tuple(attempts))

    def rows(self) -> Rows:
        """Three spans and the steps of each attempt, in order; little memory beside the result."""
        sizes = np.array([self.size(a) for a in self.numbers])
        total = int(sizes.sum()) + 3 * len(sizes)
        attempt = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes + 3)
        account = np.full(total, STEP, dtype=np.int16)
        index, t0 = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
        t1 = np.zeros(total, dtype=np.int64)
        at = 0
        for a in self.numbers:
            for k, (name, begin, end) in enumerate(self.SPANS):
                account[at + k] = INDEX[name]
                t0[at + k] = (self.start_s(a) + begin) * S
                t1[at + k] = (self.start_s(a) + end) * S
            size, begin = self.size(a), self.start_s(a) + self.STARTUP_S
            steps = slice(at + 3, at + 3 + size)
            index[steps] = np.arange(self.first(a), self.first(a) + size)
            t0[steps] = np.arange(begin * S, (begin + size) * S, S)
            t1[steps] = t0[steps] + S
            at += 3 + size
        return Rows.of(attempt=attempt, rank=0, account=account, index=index, t0_ns=t0, t1_ns=t1)

    def next_row(self, more: int) -> Rows:
        """The step that comes `more` steps after the last one."""
        last = self.numbers[-1]
        at = (self.start_s(last) + self.STARTUP_S + self.size(last) + more) * S
        index = [self.first(last) + self.size(last) + more]
        return Rows.of(
            attempt=[last], rank=[0], account=[STEP], index=index, t0_ns=[at], t1_ns=[at + S]
        )

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """One durable every SAVED_EVERY steps, and where the next attempt resumes."""
        found = []
        for a in self.numbers:
            first, begin = self.first(a), self.start_s(a) + self.STARTUP_S
            saved = set(range(first + self.SAVED_EVERY, first + self.size(a), self.SAVED_EVERY))
            if a < self.restarts:
                saved.add(self.first(a + 1) - 1)
            found += [
                Checkpoint(attempt=a, step=i, durable_ns=(begin + i - first + 1) * S)
                for i in sorted(saved)
            ]
        return tuple(found)

    def history(self) -> History:
        return History(
            job=self.job(),
            rows=self.rows(),
            accounts=AccountTable(),
            checkpoints=self.checkpoints(),
        )

    def write_records(self, run: Path) -> None:
        """The run folder a launcher and the recorder would have left."""
        _write_attempts(run, self.job())
        durable: list[list[tuple[int, int]]] = [[] for _ in self.numbers]
        for c in self.checkpoints():
            durable[c.attempt].append((c.step, c.durable_ns))
        for a in self.numbers:
            begin = self.start_s(a)
            first, size = self.first(a), self.size(a)
            # A recorder closes a block when half its ring is full, and at every checkpoint.
            cuts = {step + 1 for step, _ in durable[a]} | set(range(first, first + size, HELPING))
            blocks = [
                (i, j - i, (begin + self.STARTUP_S + i - first) * S, (j - i) * S)
                for i, j in pairwise(sorted(cuts | {first + size}))
            ]
            write_record(
                run,
                attempt=a,
                rank=0,
                ranks=1,
                spans=[(name, (begin + t0) * S, (begin + t1) * S) for name, t0, t1 in self.SPANS],
                blocks=blocks,
                durable=durable[a],
            )

    def entries(self) -> Iterator[dict[str, Any]]:
        """The entries ml-goodput's recorder would have written for this job."""
        for a in self.numbers:
            t = float(EPOCH_S + self.start_s(a))
            yield entry(job_start_time=t)
            yield entry(tpu_init_start_time=t)
            yield entry(tpu_init_end_time=t + 10)
            yield entry(training_prep_start_time=t + 10)
            yield entry(training_prep_end_time=t + 25)
            yield entry(data_loading_start_time=t + 25)
            yield entry(data_loading_end_time=t + 30)
            for k in range(self.size(a)):
                begin = t + self.STARTUP_S + k
                yield entry(step_count=self.first(a) + k, step_start_time=begin)
        if not self.live:
            yield entry(job_end_time=float(EPOCH_S + self.end_s(self.numbers[-1])))

    def next_entry(self, more: int) -> dict[str, Any]:
        last = self.numbers[-1]
        begin = float(EPOCH_S + self.start_s(last) + self.STARTUP_S + self.size(last) + more)
        index = self.first(last) + self.size(last) + more
        return entry(step_count=index, step_start_time=begin)


def entry(**fields: Any) -> dict[str, Any]:
    return {"job_name": "bench", **fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wide:
    """`ranks` ranks × `attempts` attempts; a lane has 13 start-up spans, 60 blocks and 4 saves."""

    ranks: int = 1024
    attempts: int = 6

    SPAN_S = 10
    BLOCKS = 60
    BLOCK_STEPS = 50
    SAVED_AFTER = (12, 24, 36, 48)  # blocks; training waits two seconds each time
    SAVE_S = 2
    EACH_S = 4000

    def job(self) -> Job:
        last = self.attempts - 1
        attempts = [
            Attempt(
                number=a,
                start_ns=a * self.EACH_S * S,
                ranks=self.ranks,
                end_ns=(a * self.EACH_S + self.EACH_S - 60) * S,
                outcome="success" if a == last else "failed",
            )
            for a in range(self.attempts)
        ]
        return Job(name="wide", ranks=self.ranks, attempts=tuple(attempts))

    def lane(self, attempt: int) -> tuple[list[tuple[str, int, int]], list[Block]]:
        """Spans and blocks of one attempt, as every rank has them but for its own delay."""
        at = attempt * self.EACH_S * S
        spans = []
        for name in START:
            spans.append((name, at, at + self.SPAN_S * S))
            at += self.SPAN_S * S
        first = attempt * self.SAVED_AFTER[-1] * self.BLOCK_STEPS
        blocks = []
        for k in range(self.BLOCKS):
            took = self.BLOCK_STEPS * S
            blocks.append((first + k * self.BLOCK_STEPS, self.BLOCK_STEPS, at, took))
            at += took
            if k + 1 in self.SAVED_AFTER:
                spans.append(("checkpoint_blocked", at, at + self.SAVE_S * S))
                at += self.SAVE_S * S
        return spans, blocks

    def history(self) -> History:
        """Rows as a reader hands them over: attempt by attempt, rank by rank."""
        accounts = AccountTable()
        delay = self.delays()
        parts = []
        for a in range(self.attempts):
            spans, blocks = self.lane(a)
            lane = [(accounts.id(name), 0, 1, t0, t1) for name, t0, t1 in spans]
            lane += [(STEP, index, count, t0, t0 + took) for index, count, t0, took in blocks]
            columns = np.array(sorted(lane, key=lambda row: row[3]), dtype=np.int64).T
            account, index, count, t0, t1 = (np.tile(c, self.ranks) for c in columns)
            late = np.repeat(delay, len(lane))
            parts.append(
                Rows.of(
                    attempt=np.full(len(account), a),
                    rank=np.repeat(np.arange(self.ranks), len(lane)),
                    account=account,
                    index=index,
                    count=count,
                    t0_ns=t0 + late,
                    t1_ns=t1 + late,
                )
            )
        rows = Rows.joined(parts)
        return History(
            job=self.job(), rows=rows, accounts=accounts, checkpoints=tuple(self.checkpoints())
        )

    def delays(self) -> Any:
        """How much later than rank 0 each rank does everything."""
        return np.random.default_rng(0).integers(0, S, self.ranks)

    def checkpoints(self) -> Iterator[Checkpoint]:
        for a in range(self.attempts):
            _, blocks = self.lane(a)
            for k in self.SAVED_AFTER:
                index, count, t0, took = blocks[k - 1]
                yield Checkpoint(attempt=a, step=index + count - 1, durable_ns=t0 + took + 5 * S)

    def write_records(self, run: Path) -> None:
        _write_attempts(run, self.job())
        saved = {(c.attempt, c.step): c.durable_ns for c in self.checkpoints()}
        for a in range(self.attempts):
            spans, blocks = self.lane(a)
            durable = [(step, t) for (attempt, step), t in saved.items() if attempt == a]
            for rank, late in enumerate(self.delays().tolist()):
                write_record(
                    run,
                    attempt=a,
                    rank=rank,
                    ranks=self.ranks,
                    spans=[(name, t0 + late, t1 + late) for name, t0, t1 in spans],
                    blocks=[(i, n, t0 + late, took) for i, n, t0, took in blocks],
                    durable=durable if rank == 0 else (),
                )


# Flight records, made as the recorder makes them but for the clock --------------------------------

_ANCHOR = Anchor(host="bench", clock="bench", wall_ns=EPOCH_S * S, mono_ns=0)


def _write_attempts(run: Path, job: Job) -> None:
    """The launcher's log."""
    log = AttemptLog(run, job=job.name, node=0, anchor=_ANCHOR, ranks=job.ranks)
    for attempt in job.attempts:
        log.append({"event": "start", "attempt": attempt.number, "t_ns": attempt.start_ns})
        end = {"event": "end", "attempt": attempt.number, "t_ns": attempt.end_ns}
        log.append({**end, "outcome": attempt.outcome})


def write_record(
    run: Path,
    *,
    attempt: int,
    rank: int,
    ranks: int,
    spans: Sequence[tuple[str, int, int]],
    blocks: Sequence[Block],
    durable: Sequence[tuple[int, int]] = (),
) -> None:
    """One rank's log: a chunk with the start-up, then a chunk for every block of steps."""
    own = sorted({name for name, _, _ in spans if name.startswith("x-")})
    number = {**INDEX, **{name: len(NAMES) + k for k, name in enumerate(own)}}
    header = {
        "attempt": attempt,
        "rank": rank,
        "ranks": ranks,
        "launched": True,
        "began_ns": spans[0][1],
        "anchor": _ANCHOR.to_json(),
        "accounts": NAMES,
    }
    lane = {"attempt": attempt, "rank": rank}
    reach = 0
    pieces = [layout.header_line(header)]
    for name in own:
        note = json.dumps({"account": number[name], "name": name}).encode()
        pieces.append(layout.chunk(layout.NOTE, note, **lane, reach=reach))
    waiting = [(t1, fold.span_frame(layout.SPAN, number[name], t0, t1)) for name, t0, t1 in spans]
    waiting += [
        (t, layout.FRAME.pack(layout.CHECKPOINT, 0, 1, step, t, t, 0, 0, 0)) for step, t in durable
    ]
    waiting.sort()
    for index, count, t0, took in blocks:
        frames = []
        while waiting and waiting[0][0] <= t0:
            frames.append(waiting.pop(0)[1])
        each = took / count / S
        frames.append(
            layout.FRAME.pack(layout.STEP, 0, count, index, t0, t0 + took, each, each, each)
        )
        reach += len(frames) - 1 + count
        pieces.append(layout.chunk(layout.FRAMES, b"".join(frames), **lane, reach=reach))
    end = max(t0 + took for _, _, t0, took in blocks)
    rest = b"".join(frame for _, frame in waiting)
    if rest:
        pieces.append(layout.chunk(layout.FRAMES, rest, **lane, reach=reach + len(waiting)))
    note = json.dumps({"exit_ns": end}).encode()
    pieces.append(layout.chunk(layout.NOTE, note, **lane, reach=reach + len(waiting)))
    path = layout.log_path(layout.attempt_folder(run, attempt), rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(pieces))
