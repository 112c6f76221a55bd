"""Lose a node of a running job: how soon is that noticed, and how soon does training go on?

    ./dev bench lost_node [--runs 10] [--seed 1] [--faults crash,agent,…] [--json]

    node 0 ── serves the rendezvous      crash     the link goes down, every process dies
    node 1 ── ✗                          agent     torchrun's process is killed
    node 2 ── a spare, which waits       cut       the link goes down for ever
                                         deaf      what the node sends is lost
                                         blip      the link is down for 3 s
                                         head      node 0 crashes: the job can only stop, and say so

Nodes are network namespaces on one switch; the job is real (torchrun, gloo, one rank a node, a
checkpoint every five steps) and its result is a number that a lost or repeated step would change.
Beside `ett run -- torchrun …` runs plain torchrun, on the same nodes with the same fault, for 45 s.
"""

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _table import Bar, Column, Report, Row, Sheet, options

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "launch"))
from three_nodes import TRAIN, Nodes, ett_run, steps, three_nodes, torchrun, wait_for

FAULTS = ("crash", "agent", "cut", "deaf", "blip", "head")
SIGNS = ("has not been heard of", "restart-now", "is not reached", "Stopping worker group")
WITHIN_S = 45.0
MORE_STEPS = 60


def one_run(fault: str, side: str, name: str) -> Row:
    """What a fault did to a job: seconds until it was noticed, until the first step again."""
    with tempfile.TemporaryDirectory() as made, three_nodes(name) as nodes:
        if nodes is None:
            return {"fault": fault, "side": side, "error": "no network namespaces"}
        folder = Path(made)
        (folder / "train.py").write_text(TRAIN)
        total = 200
        for node in range(3):
            if node == 2:  # the one that comes last is the spare
                wait_for(lambda: steps(folder), 60)
            plain = torchrun(nodes, node, "2", folder / "train.py", str(folder), str(total))
            command = ett_run(plain) if side == "ett" else plain
            more = {"ETT_RUNS": f"{folder}/runs", "LOGLEVEL": "INFO"}
            nodes.start(node, folder, command, **more)
        if not wait_for(lambda: len(steps(folder)) > 60, 60):
            return {"fault": fault, "side": side, "error": "the job did not start"}
        return {"fault": fault, "side": side, **after(fault, nodes, folder, total)}


def after(fault: str, nodes: Nodes, folder: Path, total: int) -> dict[str, Any]:
    """Let it happen, and watch."""
    logs = [folder / f"log-{node}" for node in range(3)]
    before = {log: len(log.read_bytes()) for log in logs}
    lost = time.time()
    happen(fault, nodes)
    noticed: float | None = None
    over = lost + WITHIN_S + (MORE_STEPS if fault == "head" else 0)
    again: float | None = None
    ended: list[int | None] = [None] * 3
    survivors = (1, 2) if fault == "head" else (0, 2) if fault != "blip" else (0, 1, 2)
    while time.time() < over:
        fresh = "".join(log.read_text(errors="replace")[before[log] :] for log in logs)
        if noticed is None and any(sign in fresh for sign in SIGNS):
            noticed = time.time() - lost
        new = [at for at, _, _ in steps(folder) if at > lost + 0.5]
        if again is None and new and (fault != "blip" or new[0] > lost + 2.5):
            again = new[0] - lost
        ended = [one.poll() for one in nodes.running]
        if all(ended[node] is not None for node in survivors):
            break
        time.sleep(0.1)
    right = (folder / "total").exists()
    right = right and (folder / "total").read_text() == str(sum(range(total)))
    said = "".join(log.read_text(errors="replace") for log in logs)
    stopped = fault == "head" and "this node stops" in said
    return {"noticed_s": noticed, "again_s": again, "right": right or stopped}


def happen(fault: str, nodes: Nodes) -> None:
    if fault == "crash":
        nodes.crash(1)
    elif fault == "head":
        nodes.crash(0)
    elif fault == "agent":
        nodes.kill_agent(1)
    elif fault == "cut":
        nodes.link(1, "down")
    elif fault == "deaf":
        nodes.deaf(1)
    else:
        nodes.link(1, "down")
        time.sleep(3)
        nodes.link(1, "up")


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--runs", type=int, default=12, help="faults, drawn at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--without-torchrun", action="store_true")
    args = parser.parse_args()
    pick = random.Random(args.seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no namespace stays behind
    known = args.faults.split(",")
    drawn = [*known, *(pick.choice(known) for _ in range(args.runs - len(known)))]
    drawn = drawn[: 2 if args.quick else args.runs]
    rows = []
    for i, fault in enumerate(drawn):
        rows.append(one_run(fault, "ett", f"fl{os.getpid() % 10_000}-{i}"))
        print(f"lost_node: {i + 1} of {len(drawn)}: {rows[-1]}", file=sys.stderr, flush=True)
    if not args.without_torchrun:
        for i, fault in enumerate(dict.fromkeys(drawn)):
            rows.append(one_run(fault, "torchrun", f"flt{os.getpid() % 10_000}-{i}"))
    report = Report("lost_node", facts={"nodes": "3 network namespaces, one a spare"})

    def seconds(value: float | None) -> str:
        return "–" if value is None else f"{value:.1f} s"

    columns = [
        Column("side", "side"),
        Column("fault", "fault"),
        Column("noticed_s", "noticed", seconds),
        Column("again_s", "first step again", seconds),
        Column("right", "ended right", str),
    ]
    note = f"torchrun is watched for {WITHIN_S:g} s; –: not within that"
    report.sheets.append(Sheet("a node is lost", columns, rows, note))
    ours = [row for row in rows if row["side"] == "ett" and "error" not in row]
    noticed = [row["noticed_s"] for row in ours if row["noticed_s"] is not None]
    again = [row["again_s"] for row in ours if row["fault"] != "head"]
    if ours:
        worst = max(noticed, default=0.0)
        report.bars.append(Bar("noticed", "≤ 5 s", f"{worst:.1f} s", worst <= 5))
        slow = max((one if one is not None else 1e9 for one in again), default=0.0)
        report.bars.append(Bar("first step again", "≤ 15 s", f"{slow:.1f} s", slow <= 15))
        right = sum(row["right"] for row in ours)
        report.bars.append(Bar("ended right", "all", f"{right} of {len(ours)}", right == len(ours)))
    report.show(args.json)


if __name__ == "__main__":
    main()
