"""A job of many ranks with every step and wait recorded: the timeline's heaviest picture.

Two attempts. One rank waits longer for its data than the others, who then wait for it in the step.
"""

from pathlib import Path

import numpy as np

from torchett.ledger import AccountTable, History, Rows
from torchett.ledger.rows import STEP
from torchett.model.accounts import INDEX
from torchett.model.values import Attempt, Job
from torchett.runs.imported import write_run

S = 1_000_000_000
START = ("imports", "device_init", "process_group_init", "train_module_creation", "pt2_compile")
SLOW_RANK = 0.62  # of the ranks


def write(folder: Path, ranks: int, spans: int, epoch_s: float = 1.79e9) -> Path:
    """A run of about so many spans in all."""
    each = max(spans // ranks // 2 - len(START), 10)  # steps an attempt, each after a wait
    rng = np.random.default_rng(4)
    long = each // 2 + 20  # seconds of an attempt, about
    rows = [_attempt(0, ranks, each, 0, rng), _attempt(1, ranks, each, (long + 60) * S, rng)]
    half = (long + 40) * S
    attempts = (
        Attempt(number=0, start_ns=0, ranks=ranks, end_ns=half, outcome="failed",
                cause="nccl_timeout", failed_rank=3),
        Attempt(number=1, start_ns=(long + 60) * S, ranks=ranks, end_ns=2 * half + 40 * S,
                outcome="success"),
    )  # fmt: skip
    history = History(
        job=Job(name=folder.name, ranks=ranks, attempts=attempts),
        rows=_joined(rows),
        accounts=AccountTable(),
        epoch_s=epoch_s,
    )
    write_run(history, folder)
    return folder


def _attempt(number: int, ranks: int, steps: int, begin: int, rng: np.random.Generator) -> Rows:
    rank = np.arange(ranks)
    slow = (rank == int(SLOW_RANK * ranks)) * 0.06
    begins, ends, accounts, indices, of = [], [], [], [], []

    def add(account: int, index: int, t0: np.ndarray, t1: np.ndarray) -> None:
        begins.append(t0)
        ends.append(t1)
        accounts.append(np.full(ranks, account))
        indices.append(np.full(ranks, index))
        of.append(rank)

    at = np.full(ranks, 0.0)
    for name in START:
        after = at + rng.uniform(1, 6) + rng.uniform(0, 1, ranks)
        add(INDEX[name], 0, at, after)
        at = after
    at[:] = at.max()
    for i in range(steps // 2):
        saves = i % 100 == 99
        name = "checkpoint_blocked" if saves else "data_wait"
        waited = at + (2.5 if saves else 0.05) + slow + rng.uniform(0, 0.02, ranks)
        add(INDEX[name], 0, at, waited)
        ended = np.full(ranks, waited.max() + 0.85) + rng.uniform(0, 0.002, ranks)
        add(STEP, i + number * (steps // 2 - 20), waited, ended)
        at = ended
    return Rows.of(
        attempt=np.full(len(of) * ranks, number),
        rank=np.concatenate(of),
        account=np.concatenate(accounts),
        index=np.concatenate(indices),
        t0_ns=begin + (np.concatenate(begins) * S).astype(np.int64),
        t1_ns=begin + (np.concatenate(ends) * S).astype(np.int64),
    )


def _joined(rows: list[Rows]) -> Rows:
    from dataclasses import fields

    return Rows(
        **{f.name: np.concatenate([getattr(one, f.name) for one in rows]) for f in fields(Rows)}
    )
