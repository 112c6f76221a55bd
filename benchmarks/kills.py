"""SIGKILL at any moment: is the record readable, and does it know every finished step?

    nursery ── fork ──► child   real training, recorded; says what it has done in shared memory
       │                  │
       └── SIGKILL ───────✗     at a random time, or at a random bytecode of the recorder itself
                          │
    checker ◄─────────────┘     reads the record, compares it with what the child had said

The child notes "step i is done" after the recorder has taken it, so at the kill the checker knows
a lower bound of what the record must hold, and "step i has begun" is an upper one. Some of the
kills come by the clock; the others are aimed: the child traces the recorder's own bytecodes and
kills itself at the nth of them while the record is being opened, while the ring is folded into
the log, or while an entry is stored. A run is killed up to three times, each time a new attempt
that resumes from the last durable checkpoint, and a reader that has watched it grow must come to
the same ledger as one that sees it for the first time.
"""

import io
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import Any, Literal

Aim = Literal["time", "early", "opening", "folding", "storing"]

# How kills are aimed, how often, and the highest n of "the nth bytecode of these modules". An
# early one comes by the clock too, when the record is hardly open.
AIMS: dict[Aim, int] = {"time": 6, "early": 2, "opening": 4, "folding": 5, "storing": 3}
MODULES: dict[str, tuple[tuple[str, ...], int]] = {
    "opening": (("api.py", "flight.py", "ring.py", "log_writer.py", "recorder.py"), 900),
    "folding": (("flight.py", "fold.py", "layout.py", "log_writer.py"), 60_000),
    "storing": (("recorder.py",), 20_000),
}
LONGEST_S = 0.8
EARLY_S = 0.02
ATTEMPTS = 3
SLACK_NS = 1_000_000  # between the anchors of two processes

# What the child says, one 64-bit number each.
OPENED, BEGUN, FINISHED, SAVING, SAVED, UPLOADS, PROBES = range(7)
WITNESS_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One child to be: where it records, what it resumes from, how it is to be killed."""

    runs: str
    job: str
    attempt: int
    first: int
    aim: Aim
    countdown: int  # bytecodes; of a kill by the clock, microseconds
    witness: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """What is certain of a child that was killed."""

    life: Life
    born_ns: int
    dead_ns: int
    opened: bool
    begun: int
    finished: int
    saving: int
    saved: int
    uploads: int
    probes: int


@dataclass(slots=True, kw_only=True)
class Tally:
    """Kills of one kind, and what came of them."""

    kills: int = 0
    opening: int = 0  # died before `ett.init` had returned
    steps: int = 0  # certainly finished
    lost_steps: int = 0
    unreadable: int = 0  # not read at all, or read with a note about damage
    others: int = 0

    def add(self, other: "Tally") -> None:
        for f in fields(Tally):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))


@dataclass(slots=True, kw_only=True)
class Result(Tally):
    """All kills together; `problems` has a line for everything that was not as it should be."""

    by_aim: dict[str, Tally] = field(default_factory=lambda: {aim: Tally() for aim in AIMS})
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not (self.lost_steps or self.unreadable or self.others)


# The child -------------------------------------------------------------------------------------


def train(life: Life) -> None:
    """Train until killed."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import torchett as ett

    with open(life.witness, "r+b") as file:
        said = memoryview(mmap.mmap(file.fileno(), WITNESS_BYTES)).cast("q")
    os.environ |= {"ETT_RUNS": life.runs, "ETT_ATTEMPT": str(life.attempt)}
    torch.set_num_threads(1)
    if life.aim == "opening":
        take_aim(life)
    ett.init(job=life.job)
    said[OPENED] = 1
    if life.aim in ("folding", "storing"):
        take_aim(life)

    with ett.stage("train_module_creation"):
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ett.stage("preproc_creation"):
        data = TensorDataset(torch.randn(256, 16), torch.randn(256, 1))
        loader = DataLoader(data, batch_size=8, shuffle=True)

    def upload() -> None:
        while True:  # every tenth under a new name, which the recorder has to write down
            with ett.stage(f"x-upload_{said[UPLOADS] // 10}", background=True):
                time.sleep(0.003)
            said[UPLOADS] += 1

    threading.Thread(target=upload, daemon=True).start()

    def save(index: int) -> None:
        said[SAVING] = index
        with ett.blocked("checkpoint_blocked"):
            torch.save([model.state_dict(), optimizer.state_dict()], io.BytesIO())
        ett.checkpoint_durable(index)
        said[SAVED] = index

    index = life.first
    bursts = random.Random(life.first + life.countdown)
    while True:
        for x, y in ett.steps(loader, start=index):
            said[FINISHED] = index - 1  # the loop has come round: that step is in the record
            said[BEGUN] = index
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if index % 7 == 0:
                with ett.blocked("evaluation"), ett.stage("x-probe"):
                    model(x)
                said[PROBES] += 1
            if index % 20 == 19:
                save(index)
            index += 1
        said[FINISHED] = index - 1
        # Steps that do nothing: the ring is folded every few hundred microseconds.
        for _ in range(bursts.randrange(3000)):
            said[BEGUN] = index
            with ett.step(index):
                pass
            said[FINISHED] = index
            if index % 500 == 499:
                save(index)
            index += 1


def take_aim(life: Life) -> None:
    """Die at the nth bytecode that this thread executes in the modules aimed at."""
    modules, _ = MODULES[life.aim]
    files = tuple(os.path.join("torchett", "record", module) for module in modules)
    left = life.countdown

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        left -= event == "opcode"
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return count

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    sys.settrace(enter)


# The nursery: it has imported torch but records nothing itself, and forks a child per kill -----


def nursery() -> None:
    """For every life on stdin: fork it, see it killed, say on stdout when."""
    import torch
    import torch.utils.data

    import torchett.record.flight.writer  # noqa: F401  so that its import is no part of opening

    # What torch imports at its first use. No backward: autograd refuses to be forked after one.
    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.AdamW([weight])
    optimizer.step()
    torch.save(optimizer.state_dict(), io.BytesIO())

    for line in sys.stdin:
        life = Life(**json.loads(line))
        born_ns = time.monotonic_ns()
        pid = os.fork()
        if pid == 0:
            try:
                train(life)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        if life.aim in MODULES:
            _wait(pid, 10.0)
        else:
            time.sleep(life.countdown / 1e6)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        times = {"born_ns": born_ns, "dead_ns": time.monotonic_ns()}
        print(json.dumps({"killed": killed, **times}), flush=True)


def _wait(pid: int, longest_s: float) -> None:
    """Until the child is dead (it stays a zombie, for the caller to reap)."""
    until = time.monotonic() + longest_s
    while time.monotonic() < until:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.002)


class Nursery:
    """The nursery as seen from here."""

    def __init__(self) -> None:
        strange = ("ETT_", "SLURM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "JOB_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(strange)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    def begin(self, life: Life) -> None:
        Path(life.witness).write_bytes(bytes(WITNESS_BYTES))
        with open(life.witness, "r+b") as file:
            file.write(b"".join(_witness(life.first - 1)))
        assert self._process.stdin is not None
        facts = {name: getattr(life, name) for name in Life.__dataclass_fields__}
        self._process.stdin.write(json.dumps(facts) + "\n")
        self._process.stdin.flush()

    def end(self, life: Life) -> Death:
        """Wait for the kill."""
        assert self._process.stdout is not None
        told = json.loads(self._process.stdout.readline())
        assert told["killed"], f"the child ended by itself: {life}"
        said = memoryview(Path(life.witness).read_bytes()).cast("q")
        return Death(
            life=life,
            born_ns=told["born_ns"],
            dead_ns=told["dead_ns"],
            opened=bool(said[OPENED]),
            begun=said[BEGUN],
            finished=said[FINISHED],
            saving=said[SAVING],
            saved=said[SAVED],
            uploads=said[UPLOADS],
            probes=said[PROBES],
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _witness(before_first: int) -> Iterator[bytes]:
    for slot in range(7):
        value = before_first if slot in (BEGUN, FINISHED, SAVING, SAVED) else 0
        yield value.to_bytes(8, sys.byteorder, signed=True)


# The checker -----------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What is wrong with a run's record."""

    lost: dict[int, int] = field(default_factory=dict)  # by attempt
    damage: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def check(run: Path, deaths: list[Death], watching: Any) -> Verdict:
    """Read the record as `ett report` does and hold it against what the children had said.

    `watching` is a reader that may have seen the run before.
    """
    from torchett.model.errors import RunError
    from torchett.runs.reader import RunReader

    verdict = Verdict()
    opened = [death for death in deaths if death.opened]
    try:
        reader = RunReader(run).poll()
    except RunError as error:
        # One killed before there was anything to read is told so in one line: that is as it
        # should be.
        verdict.damage += [str(error)] if opened else []
        return verdict
    unopened = [f"/attempt-{death.life.attempt}/" for death in deaths if not death.opened]
    for note in reader.notes:
        if not ("an empty file" in note and any(folder in note for folder in unopened)):
            verdict.damage.append(note)

    ledger = reader.ledger()
    for name, total in (("accounts", ledger.accounts), ("groups", ledger.groups)):
        if sum(total.values()) != ledger.rank_ns:
            verdict.others.append(f"{name} sum to {sum(total.values())}, not {ledger.rank_ns}")
    if min(ledger.accounts.values(), default=0) < 0:
        verdict.others.append(f"an account is negative: {ledger.accounts}")
    watched = watching.poll().ledger().accounts
    if differs := {
        name: watched.get(name, 0) - ledger.accounts.get(name, 0)
        for name in {**watched, **ledger.accounts}
        if watched.get(name) != ledger.accounts.get(name)
    }:
        verdict.others.append(f"a reader that watched it grow has other accounts: {differs} ns")

    history = reader.history()
    saved = {(c.attempt, c.step) for c in history.checkpoints}
    flights = sorted(reader.flights, key=lambda flight: flight.attempt)
    offset = min(flights, key=lambda flight: flight.anchor.wall_ns).anchor.offset_ns
    for death in opened:
        first = death.life.first
        number = [flight.attempt for flight in flights].index(death.life.attempt)
        rows = history.rows
        mine = rows.take(rows.is_step & (rows.attempt == number))
        verdict.lost[number] = check_steps(death, mine, offset, verdict.others)
        check_spans(death, flights[number].path, verdict.others)
        if death.saved >= first and (number, death.saved) not in saved:
            verdict.others.append(f"the checkpoint of step {death.saved} is not known")
        if any(a == number and step > death.saving for a, step in saved):
            verdict.others.append("a checkpoint is known that was never made")
        if death.finished >= first and ledger.attempts[number].first_step != first:
            found = ledger.attempts[number].first_step
            verdict.others.append(f"it resumed at {first}, the ledger says {found}")
    last = opened[-1] if opened else None
    if last and last.finished >= last.life.first and (ledger.last_step or 0) < last.finished:
        verdict.others.append(f"the last step is {last.finished}, not {ledger.last_step}")
    return verdict


def check_steps(death: Death, rows: Any, offset_ns: int, problems: list[str]) -> int:
    """How many finished steps are missing. They must lie in turn, while the child lived."""
    import numpy as np

    first, finished = death.life.first, death.finished
    rows = rows.take(rows.t0_ns.argsort(kind="stable"))
    begins, ends, t0, t1 = rows.index, rows.index + rows.count, rows.t0_ns, rows.t1_ns
    times = np.zeros(death.begun + 1 - first, dtype=np.int64)  # that each step is known
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        times[max(begin - first, 0) : end - first] += 1
    for what, wrong in (
        ("steps are known that had not begun", ends > death.begun + 1),
        ("steps are known more than once", times > 1),
        ("steps do not follow the one before", begins[1:] != ends[:-1]),
        ("steps begin before the one before ends", t0[1:] < t1[:-1]),
        ("steps end before they begin", t1 < t0),
        ("steps lie before the child's birth", t0 < death.born_ns + offset_ns - SLACK_NS),
        ("steps lie after its death", t1 > death.dead_ns + offset_ns + SLACK_NS),
        (
            "steps have durations out of order",
            (rows.least > rows.median) | (rows.median > rows.most),
        ),
        ("steps take less than no time", rows.least < 0),
    ):
        if wrong.any():
            problems.append(f"{int(wrong.sum())} {what}")
    return int((times[: finished + 1 - first] == 0).sum())


def check_spans(death: Death, path: Path, problems: list[str]) -> None:
    """Whether every span that had ended is there: counted by frame, as they lie folded."""
    from torchett.record.flight import format as layout
    from torchett.runs.flight_records import open_flight

    flight = open_flight(path)
    assert not isinstance(flight, str), flight
    flight.poll()
    names = flight.names
    counts: Counter[str] = Counter()
    for _, _, frames in flight.frames:
        for kind, account, count in zip(
            frames["kind"].tolist(),
            frames["account"].tolist(),
            frames["count"].tolist(),
            strict=True,
        ):
            if kind in (layout.SPAN, layout.BACKGROUND):
                counts[names[account]] += count
    for what in flight.ring["meta"].tolist():
        if what & 0xFF in (layout.SPAN, layout.BACKGROUND):
            counts[names[what >> layout.ACCOUNT_SHIFT & 0xFFFF]] += 1
    for name, ended in (("x-upload", death.uploads), ("x-probe", death.probes)):
        found = sum(count for known, count in counts.items() if known.startswith(name))
        if not ended <= found <= ended + 1:
            problems.append(f"{name}: {found} spans are known, {ended} had ended")


def run(kills: int, seed: int) -> Result:
    """Kill that many children and check every record."""
    from torchett.model.errors import RunError
    from torchett.record.clock import anchor
    from torchett.record.flight.format import attempt_folder, log_path
    from torchett.record.flight.seal import seal
    from torchett.runs.reader import RunReader

    rng = random.Random(seed)
    result = Result()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        nurse = Nursery()
        deaths: list[Death] = []
        for number in range(kills):
            if not deaths or len(deaths) >= rng.randint(1, ATTEMPTS):
                deaths, job, told = [], f"job-{number}", set[str]()
                where = Path(folder) / job
                watching = RunReader(where)
            life = _draw(rng, folder, job, deaths)
            nurse.begin(life)
            for _ in range(rng.randint(0, 3)):  # someone looks on while it runs
                time.sleep(rng.random() * 0.05)
                try:
                    watching.poll().ledger()
                except RunError:
                    pass  # not open yet
            deaths.append(nurse.end(life))
            try:
                verdict = check(where, deaths, watching)
                if rng.random() < 0.5 and deaths[-1].opened:
                    # What a launcher does with a dead rank's ring: nothing may be lost by it.
                    path = log_path(attempt_folder(where, life.attempt), rank=0)
                    seal(path, anchor(), deaths[-1].dead_ns)
                    again = check(where, deaths, RunReader(where))
                    verdict.damage += again.damage
                    verdict.others += [
                        f"after sealing: {p}" for p in again.others if p not in verdict.others
                    ]
                    verdict.lost = {
                        a: max(n, again.lost.get(a, 0)) for a, n in verdict.lost.items()
                    }
            except Exception as error:  # a reader that raises has not read it
                at = traceback.extract_tb(error.__traceback__)[-1]
                said = f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
                verdict = Verdict(damage=[said])
            _book(result, deaths[-1], verdict, told, folder)
        nurse.close()
    result.seconds = time.monotonic() - began
    return result


def _book(result: Result, death: Death, verdict: Verdict, told: set[str], folder: str) -> None:
    """Add a kill to the result; what earlier kills of the run did is not told again."""
    lost = {f"{n} steps of attempt {a} lost": n for a, n in verdict.lost.items() if n}
    new = [p for p in dict.fromkeys([*verdict.damage, *verdict.others, *lost]) if p not in told]
    told.update(new)
    tally = Tally(
        kills=1,
        opening=not death.opened,
        steps=death.finished - death.life.first + 1,
        lost_steps=sum(lost[p] for p in new if p in lost),
        unreadable=any(p in verdict.damage for p in new),
        others=sum(p in verdict.others for p in new),
    )
    result.add(tally)
    result.by_aim[death.life.aim].add(tally)
    life = death.life
    said = f"{life.job}, attempt {life.attempt}, killed by {life.aim} {life.countdown}: "
    result.problems += [said + p.replace(f"{folder}/", "") for p in new]


def _draw(rng: random.Random, folder: str, job: str, deaths: list[Death]) -> Life:
    aim = rng.choices(list(AIMS), weights=list(AIMS.values()))[0]
    longest = {"time": LONGEST_S * 1e6, "early": EARLY_S * 1e6}
    most = longest.get(aim) or MODULES[aim][1]
    saved = [death.saved for death in deaths if death.opened]
    return Life(
        runs=folder,
        job=job,
        attempt=len(deaths),
        first=saved[-1] + 1 if saved else 0,
        aim=aim,
        countdown=1 + int(rng.random() * most),
        witness=str(Path(folder) / f"{job}.{len(deaths)}.witness"),
    )


SHOWN = 40  # problems; --json has them all


def main() -> None:
    from _table import Bar, Column, Report, Sheet, options

    parser = options(__doc__ or "")
    parser.add_argument("--kills", type=int, default=None, help="how many (200; --quick: 20)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other moments")
    args = parser.parse_args()
    result = run(args.kills or (20 if args.quick else 200), args.seed)
    told = {
        "time": f"by the clock, within {LONGEST_S} s",
        "early": f"by the clock, within {1000 * EARLY_S:.0f} ms",
        "opening": "at a bytecode that opens the record",
        "folding": "at a bytecode that folds the ring into the log",
        "storing": "at a bytecode that stores an entry",
    }
    rows = [{"what": told[aim], **asdict(tally)} for aim, tally in result.by_aim.items()]
    rows.append({"what": "all", **{f.name: getattr(result, f.name) for f in fields(Tally)}})
    number = "{:,}".format
    columns = [
        Column("what", "killed"),
        Column("kills", "kills", number),
        Column("opening", "before init returned", number),
        Column("steps", "steps finished", number),
        Column("lost_steps", "lost", number),
        Column("unreadable", "unreadable records", number),
        Column("others", "other problems", number),
    ]
    report = Report("kills", facts={"took": f"{result.seconds:.0f} s, seed {args.seed}"})
    report.sheets = [Sheet("kills", columns, rows)]
    if result.problems:
        problems = [{"problem": problem} for problem in result.problems]
        shown = problems if args.json else problems[:SHOWN]
        note = f"… and {len(problems) - SHOWN} more" if len(problems) > len(shown) else ""
        report.sheets.append(Sheet("problems", [Column("problem", "problem")], shown, note=note))
    report.bars = [
        Bar("lost steps", "0", number(result.lost_steps), result.lost_steps == 0),
        Bar("unreadable records", "0", number(result.unreadable), result.unreadable == 0),
        Bar("other problems", "0", number(result.others), result.others == 0),
    ]
    report.show(args.json)


if __name__ == "__main__":
    if sys.argv[1:] == ["--nursery"]:
        nursery()
    else:
        main()
