"""Kill anything of a job at any moment: does it end with the right result, and leave nothing?

    ./dev bench launcher_kills [--kills 100] [--seed 1]

    ett run ── agent ─┬─ rank 0 ─┐          rank      one of them, SIGKILL
                      ├─ rank 1 ─┤          standby   one that waits, or the template
                      ├─ standby │          agent     torchrun's own process
                      └─ standby │          both      a rank and the agent, or both ranks, at once
                                 │          start-up  a rank before its first step
     hand-over: a second kill ◄──┘          hang      SIGSTOP of a rank
                right after the first

The job is real (torchrun, gloo, 2 ranks, a checkpoint every few steps), and its result is a number
that any lost or repeated step would change. After each job: its exit status, its result, what the
ledger says, and whether a process, a listening port or shared memory stayed behind.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from _table import Column, Report, Row, Sheet, bar, options

from torchett.record.flight.ring import pulse, rings
from torchett.runs.reader import RunReader

KINDS = ("rank", "rank", "standby", "agent", "both", "start-up", "hand-over", "hang")
STEPS = 600
RANKS = 2
KILLS_A_JOB = 5

SCRIPT = f"""
import os, sys, time
import torch
import torch.distributed as dist
import torchett as ett

ett.init()
folder = sys.argv[1]
dist.init_process_group("gloo")
rank, state, first = dist.get_rank(), torch.zeros(2, dtype=torch.int64), 0
saved = os.path.join(folder, "saved.pt")
if os.path.exists(saved):
    first, state = torch.load(saved)
everyone = torch.tensor([first])
dist.broadcast(everyone, 0)
first = int(everyone)
dist.broadcast(state, 0)
for step in range(first, {STEPS}):
    with ett.step(step):
        part = torch.tensor([(step + 1) * (rank + 1), (step * 31 + rank) % 97])
        dist.all_reduce(part)
        state = state * 3 % 1_000_003 + part
        time.sleep(0.01)
    if step % 10 == 9:
        with ett.blocked("checkpoint_blocked"):
            dist.barrier()
            if rank == 0:
                torch.save((step + 1, state), saved + ".new")
                os.replace(saved + ".new", saved)
                ett.checkpoint_durable(step)
            dist.barrier()
if rank == 0:
    print("result", *state.tolist(), flush=True)
dist.destroy_process_group()
"""


def right_result() -> str:
    """What the job prints if no step is lost or done twice."""
    a = b = 0
    for step in range(STEPS):
        a = a * 3 % 1_000_003 + sum((step + 1) * (rank + 1) for rank in range(RANKS))
        b = b * 3 % 1_000_003 + sum((step * 31 + rank) % 97 for rank in range(RANKS))
    return f"result {a} {b}"


@dataclass(slots=True)
class Verdict:
    """What one job came to."""

    kills: Counter[str] = field(default_factory=Counter)
    code: int = 0
    wrong: list[str] = field(default_factory=list)
    noticed_s: list[float] = field(default_factory=list)  # SIGSTOP → the rank is gone


# Who is who ----------------------------------------------------------------------------------


def family(root: int) -> Iterator[int]:
    """Every process below `root`, which adopts what its children leave."""
    for path in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for pid in map(int, children):
            yield pid
            yield from family(pid)


def words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def members(run: Path, root: int) -> dict[str, list[int]]:
    """Agent, ranks and standbys of the job at this moment."""
    found: dict[str, list[int]] = {"agent": [], "standby": [], "rank": []}
    ranks = {seen.pid for path in rings(run) if (seen := pulse(path)) is not None}
    for pid in family(root):
        said = words(pid)
        if pid in ranks:
            found["rank"].append(pid)
        elif "torchett.launch.elastic.agent" in said and not found["agent"]:
            found["agent"].append(pid)
        elif "torchett.launch." in said:  # what was forked from the agent has its words
            found["standby"].append(pid)
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


# One job -------------------------------------------------------------------------------------


def strike(kind: str, run: Path, root: int, dice: random.Random, verdict: Verdict) -> bool:
    """Do one kill; False if there was nobody to kill yet."""
    who = members(run, root)
    if kind == "hang":
        if not who["rank"]:
            return False
        victim, began = dice.choice(who["rank"]), time.monotonic()
        if not kill(victim, signal.SIGSTOP):
            return False
        while time.monotonic() - began < 60 and words(victim):
            time.sleep(0.05)
        verdict.noticed_s.append(time.monotonic() - began)
        if words(victim):
            verdict.wrong.append("a stopped rank was not noticed in 60 s")
            kill(victim)
        return True
    if kind == "both":
        pair = dice.choice((["agent", "rank"], ["rank", "rank"], ["rank", "standby"]))
        if not all(who[one] for one in pair):
            return False
        struck = [kill(who[one][i % len(who[one])]) for i, one in enumerate(pair)]
        return any(struck)
    if kind in ("hand-over", "rank"):
        if not who["rank"] or not kill(dice.choice(who["rank"])):
            return False
        if kind == "hand-over":
            time.sleep(dice.random() * 0.7)
            again = members(run, root)
            anyone = [*again["rank"], *again["standby"]]
            if anyone:
                kill(dice.choice(anyone))
        return True
    if kind == "start-up":  # a process that has no record yet, or has only just opened one
        anyone = [*who["standby"], *who["rank"]]
        return bool(anyone) and kill(dice.choice(anyone))
    return bool(who[kind]) and kill(dice.choice(who[kind]))


def job(seed: int, kills: int, folder: Path) -> Verdict:
    """Run one job with this many kills, and look at what is left."""
    dice, verdict = random.Random(seed), Verdict()
    script = folder / "train.py"
    script.write_text(SCRIPT)
    before = set(os.listdir("/dev/shm"))
    ett = [sys.executable, "-m", "torchett.cli.main", "run", "--job", "mayhem", "--progress", "0"]
    ett += ["--max-restarts", str(2 * kills), "--", sys.executable, "-m", "torch.distributed.run"]
    ett += ["--standalone", f"--nproc-per-node={RANKS}", f"--max-restarts={3 * kills}"]
    env = os.environ | {"ETT_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1"}
    run = folder / "runs" / "mayhem"
    with (folder / "log").open("w+") as log:
        running = subprocess.Popen(
            [*ett, str(script), str(folder)], env=env, stdout=log, stderr=subprocess.STDOUT
        )
        for _ in range(kills):
            kind = dice.choice(KINDS)
            wait = dice.random() * (1.0 if kind == "start-up" else 4.0)
            over = time.monotonic() + wait
            while time.monotonic() < over and running.poll() is None:
                time.sleep(0.02)
            while running.poll() is None:
                if strike(kind, run, running.pid, dice, verdict):
                    verdict.kills[kind] += 1
                    break
                time.sleep(0.1)
        ours = set(family(running.pid))
        try:
            verdict.code = running.wait(timeout=300)
        except subprocess.TimeoutExpired:
            verdict.wrong.append("the job did not end")
            ours |= set(family(running.pid))
            running.kill()
            verdict.code = running.wait()
        log.seek(0)
        output = log.read()
    judge(verdict, output, run, ours, before)
    if verdict.wrong:
        print(f"seed {seed}:", *verdict.wrong, output[-6000:], sep="\n", file=sys.stderr)
    return verdict


def judge(verdict: Verdict, output: str, run: Path, ours: set[int], before: set[str]) -> None:
    """Right result, right account, and nothing left behind."""
    if verdict.code:
        verdict.wrong.append(f"ended with {verdict.code}")
    if right_result() not in output:
        verdict.wrong.append("not the right result")
    time.sleep(0.2)
    left = [pid for pid in ours if "torchett" in words(pid) or "train.py" in words(pid)]
    if left:
        verdict.wrong.append(f"left behind: {[words(pid) for pid in left]}")
    shared = sorted(set(os.listdir("/dev/shm")) - before)
    if any(name.startswith(("torch_", "sem.", "psm_", "ett-")) for name in shared):
        verdict.wrong.append(f"left in /dev/shm: {shared}")
    ledger = RunReader(run).poll().ledger()
    if ledger.last_step != STEPS - 1:
        verdict.wrong.append(f"the ledger's last step is {ledger.last_step}")
    if ledger.accounts and sum(ledger.accounts.values()) != ledger.rank_ns:
        verdict.wrong.append("the accounts do not sum up")


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    total, done, verdicts = 10 if args.quick else args.kills, 0, list[Verdict]()
    while done < total:
        with tempfile.TemporaryDirectory() as folder:
            seed = args.seed * 1000 + len(verdicts)
            verdict = job(seed, min(KILLS_A_JOB, total - done), Path(folder))
        verdicts.append(verdict)
        done += sum(verdict.kills.values())
        said = "wrong" if verdict.wrong else "right"
        print(f"{done}/{total} kills: {dict(verdict.kills)} {said}", file=sys.stderr, flush=True)
        if not verdict.kills and not verdict.wrong:
            break
    kinds = Counter[str]()
    for verdict in verdicts:
        kinds += verdict.kills
    wrong = sum(bool(verdict.wrong) for verdict in verdicts)
    hangs = [t for verdict in verdicts for t in verdict.noticed_s]
    rows: list[Row] = [{"kind": kind, "kills": kinds[kind]} for kind in dict.fromkeys(KINDS)]
    report = Report("launcher_kills", facts={"jobs": str(len(verdicts)), "ranks": str(RANKS)})
    columns = [Column("kind", ""), Column("kills", "kills", str)]
    report.sheets = [Sheet("what was killed", columns, rows)]
    report.bars = [
        bar("jobs that did not end right", "0", wrong, wrong == 0, ""),
        bar("kills", f"≥ {total}", done, done >= total, ""),
    ]
    if hangs:
        report.bars.append(bar("hang → ended, worst", "≤ 10 s", max(hangs), max(hangs) <= 10, "s"))
    report.show(args.json)


if __name__ == "__main__":
    main()
