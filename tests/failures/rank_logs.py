"""Logs of eight ranks made from real texts: one rank's failure under seven ranks of cascades.

    [rank3]: ValueError: …                              the failure
    [rank0]: … Connection closed by remote peer …       what the others print because of it
    Sending process 812 closing signal SIGTERM          what the launcher prints

Each log has its own form of prefix and time stamp. With time stamps the lines stand in any order
of ranks; without, a rank's lines follow each other, and the failing rank's may come last.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

RANKS = 8
CASCADES = ("nccl_timeout", "nccl_remote_peer", "rendezvous_store")
# What the scheduler, the kernel or the launcher prints belongs to no rank; of a text that says
# nothing of its cause, no line can be told from a cascade.
OF_NO_RANK = (
    *CASCADES, "external_sigterm", "preemption", "requeue", "time_limit", "user_cancel",
    "k8s_eviction", "node_failure", "unknown",
)  # fmt: skip
TEARDOWN = (
    "Sending process 4411 closing signal SIGTERM",
    "Unable to shutdown process 4412 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
)
PREFIXES: tuple[Callable[[int], str], ...] = (
    lambda rank: f"[rank{rank}]: ",
    lambda rank: f"[default{rank}]:",
    lambda rank: f"{rank}: ",
    lambda rank: f"[1,{rank}]<stderr>:",
    lambda rank: f"[Rank {rank}] ",
)
STAMPS: tuple[Callable[[datetime], str], ...] = (
    lambda at: "",
    lambda at: "",
    lambda at: f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03} ",
    lambda at: f"{at:%Y-%m-%dT%H:%M:%S.%f}Z ",
    lambda at: f"[{at:%Y-%m-%d %H:%M:%S}] ",
    lambda at: f"{at:%b %d %H:%M:%S} gpu-4 ",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLog:
    """A log, the rank that began the failure, and what the failure was."""

    text: str
    rank: int
    category: str


def rank_logs(texts: Sequence[dict[str, Any]], count: int, seed: int = 0) -> Iterator[RankLog]:
    """So many logs made from labelled texts; the same ones for the same seed."""
    pick = random.Random(seed)
    roots = [one for one in texts if one["category"] not in OF_NO_RANK]
    cascades = [one["text"] for one in texts if one["category"] in CASCADES]
    for _ in range(count):
        root, failed = pick.choice(roots), pick.randrange(RANKS)
        said = {rank: pick.choice(cascades) for rank in range(RANKS)} | {failed: root["text"]}
        text = _log(pick, said, failed)
        yield RankLog(text=text, rank=failed, category=root["category"])


def _log(pick: random.Random, said: dict[int, str], failed: int) -> str:
    prefix, stamp = pick.choice(PREFIXES), pick.choice(STAMPS)
    begin = datetime(2025, 3, 2, 11, 58, 30)
    blocks: list[list[str]] = []
    for rank, text in said.items():
        after_s = 0.0 if rank == failed else pick.uniform(0.5, 90.0)
        lines = [
            stamp(begin + timedelta(seconds=after_s + 0.001 * number)) + prefix(rank) + line
            for number, line in enumerate(text.splitlines())
        ]
        blocks.append(lines)
    pick.shuffle(blocks)
    if stamp(begin):
        lines = list(_interleaved(pick, blocks))
    else:
        lines = [line for block in blocks for line in block]
    steps = [f"step {number} | loss {3 - number / 50:.3f}" for number in range(20)]
    return "\n".join([*steps, *lines, *pick.sample(TEARDOWN, 2)])


def _interleaved(pick: random.Random, blocks: list[list[str]]) -> Iterator[str]:
    """The lines of all blocks, each block's in its order."""
    left = [iter(block) for block in blocks if block]
    while left:
        one = pick.choice(left)
        line = next(one, None)
        if line is None:
            left.remove(one)
        else:
            yield line
