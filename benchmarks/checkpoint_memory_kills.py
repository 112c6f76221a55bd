"""Ranks that are killed again and again, and what memory gives back to those that come after them.

In each life the ranks restore, say where they begin and a digest of their whole state, and train
until one is killed: by the clock, or (a third) at a step of a commit to storage. Then the others
are killed, too, as an agent does. What the keepers hold after that says which snapshot is the
newest that all ranks have; a run that was never interrupted says what the state after each step is.
With `--slow-s` every commit to storage takes that long, so that only memory can save the steps.
"""

import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "levers" / "checkpoint"))
os.environ["ETT_DISABLE"] = "1"

SAVE_EVERY = 40  # steps
POINTS = ("files written", "manifest written", "folder synced", "renamed", "durable")


@dataclass(slots=True)
class Result:
    """What came of the kills."""

    kills: Counter[str] = field(default_factory=Counter)
    tiers: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    unsaved_s: list[float] = field(default_factory=list)
    steps: int = 0
    restore_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all lives have in common."""

    where: Path
    ranks: int
    interval_s: float
    step_s: float
    slow_s: float


def live(setting: Setting, rank: int, meeting: Path, point: str | None, steps: int) -> None:
    """One rank's life: in a fork, until it ends or is ended."""
    import torch.distributed as dist
    from trainer import Training

    from torchett.levers.checkpoint import Checkpointer
    from torchett.levers.checkpoint.upload import commit

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(setting.ranks), MASTER_ADDR="127.0.0.1")
    if setting.ranks > 1:
        store = dist.FileStore(str(meeting), setting.ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=setting.ranks)

    def reached(name: str) -> None:
        if name == "files written":
            time.sleep(setting.slow_s)
        if name == point and rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    commit.reached = reached
    training = Training()
    ckpt = Checkpointer(
        setting.where / "c",
        every=SAVE_EVERY,
        snapshot_every=f"{setting.interval_s}s",
        upload="thread",
    )
    began = time.monotonic()
    first = ckpt.restore(training.state)
    took_s = time.monotonic() - began
    digest, tier = training.digest(), ckpt._restored_tier
    _say(setting, rank, {"first": first, "digest": digest, "tier": tier, "restore_s": took_s})
    for step in range(first, steps):
        training.step()
        time.sleep(setting.step_s)
        ckpt.step(step, training.state)
        _say(setting, rank, {"step": step, "t": time.monotonic()})
    ckpt.close()
    _say(setting, rank, {"ended": training.digest()})


def _say(setting: Setting, rank: int, what: dict[str, Any]) -> None:
    with open(setting.where / f"said-{rank}", "a") as file:
        file.write(json.dumps(what) + "\n")


def _said(setting: Setting, rank: int) -> list[dict[str, Any]]:
    path = setting.where / f"said-{rank}"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def newest(setting: Setting) -> int | None:
    """The newest step that all ranks have in memory, or that storage has, by other code."""
    from checkpoint_kills import newest_good

    from torchett.levers.checkpoint.memory import nearby

    having: dict[str, set[int]] = {}
    steps: dict[str, int] = {}
    for keeper in nearby.left_here(str(setting.where / "c")):
        for one in keeper.snapshots:
            id = one.sealed.id
            having.setdefault(id.token, set()).add(id.rank)
            steps[id.token] = id.step
    whole = [steps[t] for t, ranks in having.items() if len(ranks) == setting.ranks]
    stored = newest_good(setting.where / "c")
    return max([*whole, *([] if stored is None else [stored])], default=None)


def one_life(
    setting: Setting, rng: random.Random, number: int, point: str | None, steps: int | None
) -> list[list[dict[str, Any]]]:
    """What each rank said in a life that ended by a kill, or by itself after so many steps."""
    for rank in range(setting.ranks):
        (setting.where / f"said-{rank}").unlink(missing_ok=True)
    meeting = setting.where / f"meeting-{number}"
    pids = []
    for rank in range(setting.ranks):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                live(setting, rank, meeting, point, 10**9 if steps is None else steps)
                code = 0
            except BaseException as error:
                _say(setting, rank, {"failed": f"{type(error).__name__}: {error}"[:300]})
            finally:
                os._exit(code)
        pids.append(pid)
    until = time.monotonic() + 120
    started = None
    lasts_s = setting.interval_s * (1.2 + 2 * rng.random())
    alive = set(pids)
    while alive and time.monotonic() < until:
        for pid in list(alive):
            done, _ = os.waitpid(pid, os.WNOHANG)
            if done:
                alive.discard(pid)
        if steps is None:
            if len(alive) < len(pids):
                break
            if started is None and all("first" in str(_said(setting, r)) for r in range(len(pids))):
                started = time.monotonic()
            limit = 20 * setting.interval_s if point else lasts_s
            if started is not None and time.monotonic() - started > limit:
                os.kill(rng.choice(pids), signal.SIGKILL)
                break
        time.sleep(0.005)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return [_said(setting, rank) for rank in range(setting.ranks)]


def run(kills: int, seed: int, setting: Setting) -> Result:
    import torch

    torch.set_num_threads(1)
    import torch.distributed.checkpoint
    from checkpoint_kills import Truth

    rng, result, truth = random.Random(seed), Result(), Truth()
    expected: int | None = None
    last_said: list[list[dict[str, Any]]] = []
    for number in range(kills + 1):
        last = number == kills
        in_save = not last and rng.random() < 1 / 3 and not setting.slow_s
        point = rng.choice(POINTS) if in_save else None
        said = one_life(setting, rng, number, point, result.steps + 40 if last else None)
        head = f"life {number} ({point or 'by the clock'}): "
        firsts = [next((s for s in one if "first" in s), None) for one in said]
        for one in said:
            if failed := next((s["failed"] for s in one if "failed" in s), None):
                result.problems.append(f"{head}{failed}")
        for first in firsts:
            if first is None:
                continue
            if first["first"] != (0 if expected is None else expected + 1):
                result.problems.append(f"{head}began at {first['first']}, newest is {expected}")
            if first["digest"] != truth.after(first["first"]):
                result.problems.append(f"{head}a state that never was after {first['first']}")
            result.restore_s.append(first["restore_s"])
        if firsts[0] is not None:
            result.tiers[str(firsts[0]["tier"])] += 1
            _unsaved(result, last_said, firsts[0]["first"])
        result.kills["in a save" if in_save else "by the clock"] += not last
        reached = [[s["step"] for s in one if "step" in s][-1:] for one in said]
        result.steps = max([result.steps, *(one[0] for one in reached if one)])
        last_said = said
        if last:
            ended = {next((s["ended"] for s in one if "ended" in s), None) for one in said}
            if ended != {truth.after(_ends_at(said))}:
                result.problems.append("the end differs from the uninterrupted run's")
        else:
            expected = newest(setting)
    return result


def _ends_at(said: list[list[dict[str, Any]]]) -> int:
    return max(s["step"] for one in said for s in one if "step" in s) + 1


def _unsaved(result: Result, before: list[list[dict[str, Any]]], first: int) -> None:
    """Seconds of the life before that have to be trained again, of the slowest rank."""
    times = [[s for s in one if "step" in s] for one in before]
    if not times or not all(times):
        return
    slowest = min(times, key=lambda one: one[-1]["step"])
    lost = [s for s in slowest if s["step"] >= first]
    kept = [s for s in slowest if s["step"] == first - 1]
    since = kept[0]["t"] if kept else lost[0]["t"] if lost else 0.0
    result.unsaved_s.append(slowest[-1]["t"] - since if lost else 0.0)


def main() -> None:
    from _table import Bar, Column, Report, Sheet, options

    parser = options(__doc__ or "")
    parser.add_argument("--kills", type=int, help="how many (200; --quick: 10)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--interval-s", type=float, default=0.5, help="between two snapshots")
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--slow-s", type=float, default=0.0, help="what a commit takes longer")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    kills = args.kills or (10 if args.quick else 200)
    where = Path(tempfile.mkdtemp(prefix="ett-memory-kills-"))
    setting = Setting(
        where=where, ranks=args.ranks, interval_s=args.interval_s, step_s=args.step_s,
        slow_s=args.slow_s,
    )  # fmt: skip
    began = time.monotonic()
    result = run(kills, args.seed, setting)
    from torchett.levers.checkpoint.memory import nearby

    until = time.monotonic() + 10
    while nearby.any_here(str(where / "c")) and time.monotonic() < until:
        time.sleep(0.05)
    left = len(nearby.keepers_here(str(where / "c")))
    shutil.rmtree(where, ignore_errors=True)
    took = f"{time.monotonic() - began:.0f} s, seed {args.seed}"
    report = Report("kills, with snapshots in memory", facts={"took": took})
    what = [{"what": k, "times": v} for k, v in [*result.kills.items(), *result.tiers.items()]]
    report.sheets = [
        Sheet("what happened", [Column("what", "what"), Column("times", "times", str)], what)
    ]
    if result.problems:
        found = [{"problem": problem} for problem in result.problems]
        report.sheets.append(Sheet("problems", [Column("problem", "problem")], found))
    most = max(result.unsaved_s, default=0.0)
    mean = statistics.fmean(result.unsaved_s or [0.0])
    bound = 1.2 * args.interval_s
    report.bars = [
        Bar("bad or older ones loaded, other ends", "0", str(len(result.problems)),
            not result.problems),
        Bar("unsaved a kill", f"≤ {bound:.2f} s", f"{mean:.2f} s, at most {most:.2f} s",
            most <= bound),
        Bar("keepers left, which alone hold memory", "0", str(left), left == 0),
        Bar("restore", "—", f"{statistics.median(result.restore_s or [0]):.3f} s", None),
    ]  # fmt: skip
    report.show(args.json)


if __name__ == "__main__":
    main()
