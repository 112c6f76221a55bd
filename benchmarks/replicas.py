"""Jobs whose healthy ranks go on after a failure: torchft, and restarts inside the process.

    ./dev bench replicas [--kills 5] [--parts torchft,in-process] [--json]

    torchft      two replica groups, each under its own `ett run -- torchrun`; ranks are killed
                 (SIGKILL) in turn, `--kills` in each group
    in-process   nvidia-resiliency-ext's inprocess.Wrapper around a function of two ranks, one of
                 which raises `--kills` times

What `ett report` says is compared with a stopwatch in the trainer, which knows nothing of the
record. Needs `pip install torchft-nightly nvidia-resiliency-ext`; a part whose library is not
installed is left out, and says so.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from _table import Bar, Column, Report, Row, Sheet, options

TRAINER = Path(__file__).with_name("_replica_trainer.py")
ETT = [sys.executable, "-m", "torchett.cli.main"]
WITHIN_S = 240.0
Line = tuple[str, float, float, int]  # kind, begin, end, step


def lines(path: Path) -> list[Line]:
    """What a stopwatch has written so far."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        words = line.split()
        if len(words) == 4:
            found.append((words[0], float(words[1]), float(words[2]), int(words[3])))
    return found


def by_stopwatch(seen: list[Line]) -> dict[str, float]:
    """Seconds of one rank: effective, unsaved, and recover after the first step."""
    waits = [(a, b) for kind, a, b, _ in seen if kind == "quorum" and b - a > 0.001]
    total = {"effective": 0.0, "unsaved": 0.0, "recover": 0.0}
    last_s = None
    for kind, begin, end, _ in seen:
        if kind == "start" and last_s is not None:
            first = next((a for k, a, _, _ in seen if a > begin and k != "start"), begin)
            total["recover"] += first - last_s
        if kind not in ("work", "refused", "healing"):
            continue
        waited = sum(b - a for a, b in waits if begin <= a and b <= end)
        account = {"work": "effective", "refused": "unsaved", "healing": "recover"}[kind]
        total[account] += end - begin - waited
        total["recover"] += waited if last_s is not None or kind != "work" else 0.0
        last_s = end
    return total


def report(folder: Path, name: str) -> dict[str, Any]:
    env = os.environ | {"ETT_RUNS": str(folder / "runs")}
    said = subprocess.run([*ETT, "report", name, "--json"], env=env, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def compared(part: str, shown: dict[str, Any], seen: dict[str, float], **more: Any) -> Row:
    """One row: what the report says beside the stopwatch."""
    row: Row = {"part": part, **more}
    for group, seconds in seen.items():
        said = shown["groups"][group]
        row[group] = f"{said:.2f} / {seconds:.2f}"
        row[f"{group}_right"] = abs(said - seconds) <= 0.03 * seconds + 0.2
    row["failures"] = sum(shown["failures"].values())
    return row


def torchft(kills: int) -> list[Row]:
    """Two groups; ranks are killed in turn, once their standbys have had time to import."""
    os.environ.setdefault("RUST_LOG", "error")  # else each quorum is a line
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="[::]:0", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=20,
        heartbeat_timeout_ms=300,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("ETT_")}
        running = []
        for group in ("0", "1"):
            env = kept | {
                "ETT_RUNS": str(folder / "runs"),
                "REPLICA_GROUP_ID": group,
                "TORCHFT_LIGHTHOUSE": lighthouse.address(),
                "OMP_NUM_THREADS": "1",
            }
            command = [
                *(*ETT, "run", "--job", "ft", "--progress", "0", "--restart-policy", "none"),
                *("--preload", "torchft", "--"),
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"),
                *("--max-restarts=20", f"--master-port={_port()}", str(TRAINER)),
                *("torchft", "0", str(folder / f"watch-{group}")),
            ]
            log = (folder / f"log-{group}").open("w")
            running.append(subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log))
        watches = [folder / f"watch-{group}" for group in ("0", "1")]
        killed = _kill_in_turn(watches, kills)
        reached = max(line[3] for watch in watches for line in lines(watch) if line[0] == "work")
        (folder / "stop").write_text(str(reached + 100))
        codes = _ends(running)
        shown = report(folder, "ft")
        seen = [lines(watch) for watch in watches]
        rows = []
        for group in ("0", "1"):
            mine = by_stopwatch(seen[int(group)])
            mine_killed = sum(who == int(group) for who, _ in killed)
            one = shown["replica_groups"][group]
            rows.append(compared(f"torchft, group {group}", one, mine, kills=mine_killed))
            rows[-1]["ended_right"] = codes[int(group)] == 0
            rows[-1] |= _gaps(seen, int(group), killed)
        return rows


def _ends(running: list[Any]) -> list[int | None]:
    """How each of them exited; None for one that had to be killed in the end."""
    over = time.monotonic() + WITHIN_S
    codes: list[int | None] = []
    for one in running:
        try:
            codes.append(one.wait(max(1.0, over - time.monotonic())))
        except subprocess.TimeoutExpired:
            one.kill()
            codes.append(None)
    return codes


def _kill_in_turn(watches: list[Path], kills: int) -> list[tuple[int, float]]:
    """Kill the rank of one group after the other: which group, and when."""
    killed: list[tuple[int, float]] = []
    for turn in range(2 * kills):
        group = turn % 2
        since = killed[-1][1] if killed else 0.0
        many = 120 if killed else 400  # at first standbys rehearse what ranks will do
        if not _wait(lambda since=since, many=many: all(_steps(w, since) >= many for w in watches)):
            break
        pid = next(step for kind, _, _, step in reversed(lines(watches[group])) if kind == "start")
        killed.append((group, time.time()))
        os.kill(pid, signal.SIGKILL)
    return killed


def _steps(watch: Path, since: float) -> int:
    """Steps that counted since then, by the process that runs now."""
    mine = lines(watch)
    began = max((a for kind, a, _, _ in mine if kind == "start"), default=0.0)
    return sum(kind == "work" and a > max(since, began) for kind, a, _, _ in mine)


def _gaps(seen: list[list[Line]], group: int, killed: list[tuple[int, float]]) -> Row:
    """How long until a killed group and its peer trained again, the median of all kills."""
    again, survivor = [], []
    for who, at in killed:
        if who == group:
            again.append(_next_end(seen[group], at))
        else:
            ends = [b for kind, _, b, _ in seen[group] if kind == "work"]
            near = [b - a for a, b in pairwise(ends) if at - 0.5 < b < at + 3]
            survivor.append(max(near, default=0.0))
    slowest = max(again, default=0.0)
    return {"again_s": _median(again), "slowest_s": slowest, "survivor_s": _median(survivor)}


def _next_end(mine: list[Line], at: float) -> float:
    began = next((a for kind, a, _, _ in mine if kind == "start" and a > at), at)
    return next((b for kind, a, b, _ in mine if kind == "work" and a > began), at) - at


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def _wait(condition: Any) -> bool:
    over = time.monotonic() + 120
    while time.monotonic() < over:
        if condition():
            return True
        time.sleep(0.05)
    return False


def _port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


def in_process(kills: int) -> list[Row]:
    """Two ranks in one function, which begins anew when rank 1 raises."""
    faults = ",".join(str(40 * (k + 1) + 3) for k in range(kills))
    with tempfile.TemporaryDirectory() as made:
        folder, port = Path(made), _port()
        kept = {k: v for k, v in os.environ.items() if not k.startswith("ETT_")}
        running = []
        for rank in ("0", "1"):
            env = kept | {
                "ETT_RUNS": str(folder / "runs"), "ETT_JOB": "inside", "RANK": rank,
                "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            steps = str(40 * (kills + 1))
            watch = str(folder / f"watch-{rank}")
            command = [sys.executable, str(TRAINER), "in-process", steps, watch, faults]
            log = (folder / f"log-{rank}").open("w")
            running.append(subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log))
        codes = _ends(running)
        shown = report(folder, "inside")
        total = {"effective": 0.0, "unsaved": 0.0, "recover": 0.0}
        for rank in ("0", "1"):
            for group, seconds in _without_repeats(lines(folder / f"watch-{rank}")).items():
                total[group] += seconds
        row = compared("in-process, both ranks", shown, total, kills=kills)
        return [row | {"ended_right": codes == [0, 0]}]


def _without_repeats(seen: list[Line]) -> dict[str, float]:
    """Of a step made more than once only the last counts; between two lives lies recovery."""
    work = [(a, b, step) for kind, a, b, step in seen if kind == "work"]
    last = {step: i for i, (_, _, step) in enumerate(work)}
    total = {"effective": 0.0, "unsaved": 0.0, "recover": 0.0}
    for i, (begin, end, step) in enumerate(work):
        total["effective" if last[step] == i else "unsaved"] += end - begin
        if i and step <= work[i - 1][2]:
            total["recover"] += begin - work[i - 1][1]
    return total


PARTS = {"torchft": ("torchft", torchft), "in-process": ("nvidia_resiliency_ext", in_process)}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--kills", type=int, default=5, help="in each group")
    parser.add_argument("--parts", default=",".join(PARTS))
    args = parser.parse_args()
    rows: list[Row] = []
    for part in args.parts.split(","):
        library, run = PARTS[part]
        if find_spec(library) is None:
            rows.append({"part": part, "error": f"{library} is not installed"})
        else:
            rows += run(1 if args.quick else args.kills)

    def seconds(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f} s"

    groups = ("effective", "recover", "unsaved")
    columns = [
        Column("part", "part"),
        Column("kills", "kills", str),
        Column("failures", "failures", str),
        *(Column(group, f"{group}, ett / stopwatch") for group in groups),
        Column("again_s", "trains again", seconds),
        Column("slowest_s", "slowest of them", seconds),
        Column("survivor_s", "survivor's gap", seconds),
        Column("ended_right", "ended right", str),
    ]
    made = Report("replicas")
    made.sheets.append(Sheet("healthy ranks go on", columns, rows, "rank-seconds; medians"))
    good = [row for row in rows if "error" not in row]
    if good:
        right = all(row[f"{g}_right"] for row in good for g in groups)
        said = "all" if right else "not all"
        made.bars.append(Bar("within 3% + 0.2 s of the stopwatch", "all", said, right))
        counted = all(row["failures"] == row["kills"] for row in good)
        made.bars.append(Bar("each kill is one failure", "all", str(counted), counted))
        again = [row["again_s"] for row in good if "again_s" in row]
        if again:
            made.bars.append(
                Bar("torchft trains again", "≤ 1 s", f"{max(again):.2f} s", max(again) <= 1)
            )
    made.show(args.json)


if __name__ == "__main__":
    main()
