"""A training run that is killed again and again, and what it resumes from.

Each life of the trainer restores, says where it begins and a digest of its whole state (weights,
optimizer, schedule, generators, data order), and trains until something happens to it: SIGKILL at
any moment, at a step of the commit or in the middle of a file; a full disk; its upload process
killed; bits flipped and files cut short between two lives. A second reader, which shares no code
with the first, says which checkpoint is the newest good one; a run that was never interrupted says
what the state after each step is. At the end the run finishes, and must end with the same bits.
"""

import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "levers" / "checkpoint"))
os.environ["ETT_DISABLE"] = "1"

FAULTS = {
    "killed by the clock": 30,
    "killed at a step of the commit": 25,
    "killed in the middle of a file": 10,
    "no space on the device": 10,
    "a bit flipped in the newest": 10,
    "the newest cut short": 8,
    "the upload process killed": 7,
}
POINTS = (
    "files written",
    "manifest written",
    "folder synced",
    "renamed",
    "durable",
    "latest moved",
    "retained",
)
EVERY, KEEP = 4, 3


@dataclass(slots=True)
class Result:
    """What came of the kills."""

    kills: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    refused: int = 0  # nothing good was left, and it said so instead of beginning at 0
    problems: list[str] = field(default_factory=list)
    steps: int = 0


# The trainer -------------------------------------------------------------------------------------


def live(where: Path, fault: str, seed: int, steps: int, says: int) -> None:
    """One life: in a fork, until it ends or is ended."""
    from trainer import Training

    from torchett.levers.checkpoint import Checkpointer, CheckpointError
    from torchett.levers.checkpoint.stored.storage import Folder
    from torchett.levers.checkpoint.upload import commit

    rng = random.Random(seed)
    training = Training()
    by_process = fault == "the upload process killed"
    kind = "process" if by_process else "thread"
    ckpt = Checkpointer(where, every=EVERY, keep=KEEP, upload=kind, snapshot_every=None)
    try:
        first = ckpt.restore(training.state)
    except CheckpointError as error:
        _say(says, {"refused": str(error)})
        os._exit(3)
    _say(says, {"first": first, "digest": training.digest()})

    countdown = rng.randint(1, 12)
    if fault == "killed at a step of the commit":
        point = rng.choice(POINTS)

        def reached(name: str) -> None:
            nonlocal countdown
            if name == point:
                countdown -= 4
                if countdown <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        commit.reached = reached
    elif fault in ("killed in the middle of a file", "no space on the device"):
        write = Folder.write

        class Broken:
            def __init__(self, stream: Any) -> None:
                self._stream = stream

            def write(self, data: Any) -> int:
                nonlocal countdown
                countdown -= 1
                if countdown == 0:
                    self._stream.write(data[: len(data) // 2])
                    if fault == "killed in the middle of a file":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise OSError(28, "No space left on device")
                return int(self._stream.write(data))

        @contextmanager
        def broken(self: Folder, path: str) -> Any:
            with write(self, path) as stream:
                yield Broken(stream)

        Folder.write = broken  # type: ignore[method-assign]
    elif by_process:
        wait_s = rng.random() * 0.3

        def hunt() -> None:
            assert ckpt._met is not None
            while not ckpt._met.uploader.is_ready():
                time.sleep(0.01)
            time.sleep(wait_s)
            hunted = ckpt.upload_pid
            assert hunted is not None
            os.kill(hunted, signal.SIGKILL)
            while ckpt.upload_pid == hunted or not ckpt._met.uploader.is_ready():
                time.sleep(0.01)
            _say(says, {"begun anew": ckpt.upload_pid})
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=hunt, daemon=True).start()
    for step in range(first, steps):
        training.step()
        ckpt.step(step, training.state)
        if by_process:
            time.sleep(0.02)
    ckpt.close()
    _say(says, {"ended": training.digest()})
    os._exit(0)


def _say(pipe: int, what: dict[str, Any]) -> None:
    os.write(pipe, json.dumps(what).encode() + b"\n")


# The judge ---------------------------------------------------------------------------------------


def newest_good(where: Path) -> int | None:
    """The step of the newest checkpoint whose bytes are right, told by json and zlib alone."""
    best = None
    for folder in where.glob("step-????????*"):
        text = folder.name.removeprefix("step-")
        if not text.partition(".")[0].isdigit() or any(c in text for c in ("tmp", "corr", "trash")):
            continue
        try:
            told = json.loads((folder / "manifest.json").read_bytes())
            crc = told.pop("crc32")
            whole = crc == zlib.crc32(json.dumps(told, sort_keys=True).encode())
            for name, file in told["files"].items():
                data = (folder / name).read_bytes()
                whole &= len(data) == file["size"] and zlib.crc32(data) == file["crc32"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        if whole and (best is None or told["step"] > best):
            best = told["step"]
    return best


def candidates(where: Path) -> list[Path]:
    found = (p for p in where.glob("step-*") if p.name.removeprefix("step-").isdigit())
    return sorted(found, key=lambda p: p.name)


def damage(where: Path, fault: str, rng: random.Random) -> None:
    """Do to the newest checkpoint what a bad disk does."""
    found = candidates(where)
    if not found:
        return
    path = rng.choice([p for p in found[-1].iterdir() if p.is_file()])
    data = bytearray(path.read_bytes())
    if fault == "the newest cut short":
        path.write_bytes(bytes(data[: rng.randrange(len(data))]))
    elif data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(data))


class Truth:
    """The state after each step of a run that was never interrupted."""

    def __init__(self) -> None:
        from trainer import Training

        self._training = Training()
        self._digests = [self._training.digest()]

    def after(self, steps: int) -> str:
        import random as python_random

        import torch

        kept = torch.get_rng_state(), python_random.getstate()
        while len(self._digests) <= steps:
            if self._rng is not None:
                torch.set_rng_state(self._rng)
            self._training.step()
            self._rng = torch.get_rng_state()
            self._digests.append(self._training.digest())
        torch.set_rng_state(kept[0])
        python_random.setstate(kept[1])
        return self._digests[steps]

    _rng: Any = None


def run(kills: int, seed: int) -> Result:
    import torch

    torch.set_num_threads(1)
    import torch.distributed.checkpoint

    rng = random.Random(seed)
    result, truth = Result(), Truth()
    where = Path(tempfile.mkdtemp(prefix="ett-kills-"))
    never = 10**9
    number = 0
    while True:
        last = number == kills
        fault = rng.choices(list(FAULTS), weights=list(FAULTS.values()))[0]
        expected = newest_good(where)
        there = bool(candidates(where))
        steps = max(result.steps, expected or 0) + 40 if last else never
        said, status = one_life(where, fault if not last else "", rng, steps)
        first = next((s["first"] for s in said if "first" in s), None)
        head = f"life {number} ({fault}): "
        if first is not None:
            digest = next(s["digest"] for s in said if "first" in s)
            if first != (expected + 1 if expected is not None else 0):
                result.problems.append(f"{head}began at {first}, the newest good is {expected}")
            if digest != truth.after(first):
                result.problems.append(f"{head}loaded a state that never was after {first} steps")
            result.resumed += 1
            result.steps = max(result.steps, first)
        elif any("refused" in s for s in said):
            if expected is not None or not there:
                result.problems.append(f"{head}refused although {expected} is good: {said}")
            result.refused += 1
            shutil.rmtree(where)
            where.mkdir()
        elif status == -signal.SIGKILL:
            pass  # dead before it had restored
        else:
            result.problems.append(f"{head}ended with {status} before it had restored")
        if last:
            ended = next((s["ended"] for s in said if "ended" in s), None)
            if ended != truth.after(steps):
                result.problems.append(f"the end differs from the uninterrupted run's: {status}")
            break
        if fault == "the upload process killed" and not any("begun anew" in s for s in said):
            result.problems.append(f"{head}it was not begun anew: {said}")
        result.kills[fault] += 1
        if fault in ("a bit flipped in the newest", "the newest cut short"):
            damage(where, fault, rng)
        number += 1
    shutil.rmtree(where, ignore_errors=True)
    return result


def one_life(
    where: Path, fault: str, rng: random.Random, steps: int
) -> tuple[list[dict[str, Any]], int]:
    """What a life said, and how it ended; by the clock, if by nothing else."""
    hears, says = os.pipe()
    seed = rng.randrange(1 << 30)
    pid = os.fork()
    if pid == 0:
        os.close(hears)
        try:
            live(where, fault, seed, steps, says)
        finally:
            os._exit(1)
    os.close(says)
    data = b""
    patience = 120.0 if not fault or fault.startswith("the upload") else 30.0
    deadline = time.monotonic() + patience
    ends_at = None
    while True:
        now = time.monotonic()
        left = min(deadline, ends_at or deadline) - now
        if left <= 0:
            os.kill(pid, signal.SIGKILL)
        ready, _, _ = select.select([hears], [], [], max(left, 0.0))
        if ready:
            more = os.read(hears, 65536)
            if not more:
                break
            data += more
            by_clock = fault not in ("", "the upload process killed")
            if by_clock and ends_at is None:  # it has restored: some time to live
                ends_at = time.monotonic() + rng.random() * 0.8
    os.close(hears)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return [json.loads(line) for line in data.splitlines()], status


def main() -> None:
    from _table import Bar, Column, Report, Sheet, options

    parser = options(__doc__ or "")
    parser.add_argument("--kills", type=int, default=None, help="how many (200; --quick: 20)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    kills = args.kills or (20 if args.quick else 200)
    began = time.monotonic()
    result = run(kills, args.seed)
    rows = [{"what": what, "times": result.kills[what]} for what in FAULTS]
    took = f"{time.monotonic() - began:.0f} s, seed {args.seed}"
    report = Report("checkpoint kills", facts={"took": took, "steps": f"{result.steps} steps"})
    report.sheets = [
        Sheet("what happened", [Column("what", "what"), Column("times", "times", str)], rows)
    ]
    if result.problems:
        found = [{"problem": problem} for problem in result.problems]
        report.sheets.append(Sheet("problems", [Column("problem", "problem")], found))
    wrong = len(result.problems)
    restored = f"{result.resumed} of {kills + 1} ({result.refused} refused: nothing good was left)"
    report.bars = [
        Bar("bad or older ones loaded, other ends", "0", str(wrong), wrong == 0),
        Bar("lives that restored", "all that lived to", restored, None),
    ]
    report.show(args.json)


if __name__ == "__main__":
    main()
