"""Two nodes, one of which is lost whole, again and again: what is restored, from where, how soon.

Nodes are network namespaces with a rank each, or `--ranks`. All processes of one are killed, with
keepers, so that its shared memory is gone; the other's trainers are killed as an agent would
do. Both begin anew, and the lost ranks' state comes from the copy that its neighbour holds. Nothing
is ever saved to storage. Every rank compares what it restored with what the state after that step
has to be.
"""

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STEP_S = 0.05
WIDTH = 1 << 18  # numbers of a tensor


# A rank ------------------------------------------------------------------------------------------


def rank_main(where: str, mib: int, every: int) -> None:
    """Train until killed; say what was restored, and each step that is over."""
    import torch
    import torch.distributed as dist

    from torchett.levers.checkpoint import Checkpointer

    torch.set_num_threads(1)
    runs_s = time.monotonic()
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    tensors = max(1, mib * (1 << 20) // (4 * WIDTH))
    state: dict[str, Any] = {
        f"of rank {rank}": {f"w{n}": torch.zeros(WIDTH) for n in range(tensors)},
        "alike": {f"w{n}": torch.zeros(WIDTH) for n in range(tensors)},
        "shared": torch.zeros(1000),
    }
    ckpt = Checkpointer(where, every=10**9, snapshot_every=every)
    began_s = time.monotonic()
    first = ckpt.restore(state)
    ended_s = time.monotonic()
    mine, alike = state[f"of rank {rank}"], state["alike"]
    right = all(bool((mine[f"w{n}"] == value(first - 1, rank, n)).all()) for n in range(tensors))
    right &= all(bool((alike[f"w{n}"] == value(first - 1, 99, n)).all()) for n in range(tensors))
    right &= bool((state["shared"] == max(first - 1, 0)).all())
    said = {"first": first, "tier": ckpt._restored_tier, "right": right or first == 0}
    print(
        json.dumps(said | {"restore_s": ended_s - began_s, "again_s": ended_s - runs_s}), flush=True
    )
    step = first
    while True:
        time.sleep(STEP_S)
        for n in range(tensors):
            mine[f"w{n}"].fill_(value(step, rank, n))
            alike[f"w{n}"].fill_(value(step, 99, n))  # on all ranks: one of a node copies it
        state["shared"].fill_(step)
        ckpt.step(step, state)
        print(json.dumps({"step": step}), flush=True)
        dist.barrier()
        step += 1


def value(step: int, rank: int, tensor: int) -> float:
    """What a tensor holds after a step."""
    return float(max(step, 0) * 64 + rank * 16 + tensor % 16) if step >= 0 else 0.0


# The nodes ---------------------------------------------------------------------------------------


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("ip") or "/usr/sbin/ip"
    return subprocess.run([tool, *words], capture_output=True, text=True)


@contextmanager
def two_nodes() -> Iterator[list[str]]:
    """The names of two namespaces that reach each other; OSError where there can be none."""
    tag = os.getpid() % 100_000
    names, links = [f"checkpoint{tag}-{n}" for n in range(2)], [f"ck{tag}{end}" for end in "ab"]
    try:
        made = [ip("netns", "add", name) for name in names]
        made.append(ip("link", "add", links[0], "type", "veth", "peer", "name", links[1]))
        for node, (name, link) in enumerate(zip(names, links, strict=True)):
            made.append(ip("link", "set", link, "netns", name))
            made.append(ip("-n", name, "addr", "add", f"10.214.0.{node + 1}/24", "dev", link))
            made.append(ip("-n", name, "link", "set", link, "up"))
            made.append(ip("-n", name, "link", "set", "lo", "up"))
        if any(one.returncode for one in made):
            raise OSError("network namespaces cannot be made here")
        yield names
    finally:
        for name in names:
            kill_node(name)
            ip("netns", "del", name)


def kill_node(name: str) -> None:
    """Kill every process of a namespace."""
    until = time.monotonic() + 10
    while (pids := ip("netns", "pids", name).stdout.split()) and time.monotonic() < until:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)


class Ranks:
    """The ranks of one attempt, as many a node, with what they say."""

    def __init__(
        self, names: list[str], count: int, where: Path, port: int, mib: int, every: int
    ) -> None:
        tool, tag = shutil.which("ip") or "/usr/sbin/ip", os.getpid() % 100_000
        self.processes, self.files = [], []
        for rank in range(count * len(names)):
            node, name = rank // count, names[rank // count]
            env = os.environ | {
                "ETT_DISABLE": "1", "OMP_NUM_THREADS": "1", "RANK": str(rank),
                "WORLD_SIZE": str(count * len(names)), "LOCAL_WORLD_SIZE": str(count),
                "MASTER_ADDR": "10.214.0.1", "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": f"ck{tag}{'ab'[node]}", "ETT_LAUNCHER": str(os.getpid()),
            }  # fmt: skip
            said = where / f"said-{rank}"
            with said.open("w") as file:
                command = [tool, "netns", "exec", name, sys.executable, __file__, "--rank"]
                command += [str(where / "c"), str(mib), str(every)]
                self.processes.append(subprocess.Popen(command, env=env, stdout=file))
            self.files.append(said)

    def said(self, rank: int) -> list[dict[str, Any]]:
        lines = self.files[rank].read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def steps(self) -> int:
        """The last step that all ranks have finished."""
        last = (self.said(rank)[-1:] for rank in range(len(self.files)))
        return min(one[0].get("step", -1) if one else -1 for one in last)

    def wait_for(self, step: int, timeout_s: float = 120.0) -> None:
        until = time.monotonic() + timeout_s
        while self.steps() < step:
            if time.monotonic() > until or any(p.poll() is not None for p in self.processes):
                raise TimeoutError(f"step {step} was not reached: {self.steps()}")
            time.sleep(0.02)


def run(times: int, mib: int, every: int, seed: int, count: int) -> list[dict[str, Any]]:
    """A row for each loss of a node."""
    rng, rows = random.Random(seed), []
    where = Path(tempfile.mkdtemp(prefix="ett-node-loss-"))
    with two_nodes() as names:
        port = 29_000 + os.getpid() % 900
        ranks = Ranks(names, count, where, port, mib, every)
        reached = 0
        for number in range(times):
            ranks.wait_for(reached + 3 * every + rng.randrange(every))
            lost = rng.randrange(2)
            kill_node(names[lost])
            at = ranks.steps()
            for process in ranks.processes:
                process.kill()
                process.wait()
            port += 1
            ranks = Ranks(names, count, where, port, mib, every)
            ranks.wait_for(0)
            first = [ranks.said(rank)[0] for rank in range(2 * count)]
            reached = first[0]["first"]
            rows.append(
                {
                    "loss": number,
                    "lost node": lost,
                    "at step": at,
                    "resumed at": first[0]["first"],
                    "lost steps": at - first[0]["first"] + 1,
                    "tiers": [one["tier"] for one in first],
                    "right": all(one["right"] for one in first)
                    and len({one["first"] for one in first}) == 1,
                    "again_s": round(max(one["again_s"] for one in first), 2),
                    "restore_s": round(max(one["restore_s"] for one in first), 2),
                }
            )
    shutil.rmtree(where, ignore_errors=True)
    return rows


def main() -> None:
    from _table import Bar, Column, Report, Sheet, options

    parser = options(__doc__ or "")
    parser.add_argument("--times", type=int, help="how many losses (20; --quick: 2)")
    parser.add_argument(
        "--mib",
        type=int,
        default=64,
        help="of state a rank has of its own, and as much that all have",
    )
    parser.add_argument("--every", type=int, default=20, help="steps between two snapshots")
    parser.add_argument("--ranks", type=int, default=1, help="of a node")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    times = args.times or (2 if args.quick else 20)
    rows = run(times, args.mib, args.every, args.seed, args.ranks)
    wrong = sum(not row["right"] for row in rows)
    again = max(row["again_s"] for row in rows)
    most = max(row["lost steps"] for row in rows)
    report = Report(
        "a node is lost with its memory",
        facts={
            "state": f"{args.mib} MiB a rank and {args.mib} that all ranks have",
            "snapshots": f"every {args.every} steps",
        },
    )
    columns = [Column(name, name, str) for name in rows[0]]
    report.sheets = [Sheet("losses", columns, rows)]
    typical = statistics.median(row["again_s"] for row in rows)
    report.bars = [
        Bar("restored wrongly", "0", str(wrong), wrong == 0),
        Bar(
            "ranks run again → restored",
            "≤ 3 s",
            f"{typical:.2f}, at most {again:.2f} s",
            again <= 3,
        ),
        Bar("steps lost", f"≤ {args.every}", f"at most {most}", most <= args.every),
    ]
    report.show(args.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
