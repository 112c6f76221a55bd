"""A fleet as a year or a quarter leaves it: jobs drawn from public traces, else from a seed.

Sizes, lengths, teams and ends come from Philly's jobs where its trace is at hand; without it
from distributions of the same shape. Where time went inside a job is drawn: start-up
by size, waits by team, failures by a rate for each rank-day. `Regression` puts a known change in.
"""

import csv
import gzip
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchett.fleet import Fleet
from torchett.fleet.rows import JobRows, label_columns, timestamp
from torchett.ledger import RULES_VERSION
from torchett.model.accounts import BY_NAME, GROUPS, NAMES

TRACES = Path(__file__).parents[2] / "shared" / "data" / "traces"
HOUR = 3600
_START = {
    "hardware_setup": 20, "launcher_init": 4, "imports": 12, "device_init": 5,
    "process_group_init": 9, "train_module_creation": 14, "get_first_batch_data": 15,
    "checkpoint_restore": 20, "pt2_compile": 90,
}  # fmt: skip
_LOOP = {"data_wait": 2.4, "checkpoint_blocked": 1.2, "evaluation": 1.6, "other_in_loop": 1.1}
_CAUSES = {
    "infra": ["nccl_timeout", "cuda_ecc", "node_lost", "hang", "storage_error"],
    "scheduler": ["preempted"],
    "user": ["cuda_oom", "python_exception", "data_error"],
}
_TEAMS = ["ads", "ranking", "speech", "vision", "language", "search", "safety", "maps"]
_MODELS = {
    "ads": ["dlrm", "hstu"], "ranking": ["dlrm", "two-tower"], "speech": ["conformer"],
    "vision": ["vit", "detr"], "language": ["gpt", "moe"], "search": ["bert", "two-tower"],
    "safety": ["bert"], "maps": ["unet"],
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """From an hour on, jobs with these labels lose `points` of their time to one account."""

    since_s: float
    labels: dict[str, str]
    account: str
    points: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One job of the trace: what the generator needs of it."""

    at: float  # 0…1 through the period
    team: str
    user: str
    gpus: int
    run_s: float
    status: str


def fill(
    folder: Path,
    *,
    end_s: float,
    days: int = 90,
    jobs: int = 1500,
    seed: int = 1,
    regressions: Sequence[Regression] = (),
    live: int = 4,
) -> Fleet:
    """A fleet of so many jobs that ended in these days, and a few that still run."""
    draw = random.Random(seed)
    fleet = Fleet.open(folder)
    begin_s = end_s - days * 86400
    held: list[JobRows] = []
    for i, one in enumerate(drawn(jobs, draw)):
        began = begin_s + one.at * days * 86400
        held.append(_job(f"{one.team}-{i:05d}", one, began, end_s, draw, regressions))
    for i in range(live):
        team = _TEAMS[i % len(_TEAMS)]
        one = Drawn(at=1, team=team, user=f"u{i}", gpus=8 << i, run_s=9e9, status="Pass")
        held.append(_job(f"{team}-live-{i}", one, end_s - 7200 * (i + 1), end_s, draw, regressions))
    for i in range(0, len(held), 4000):
        fleet.put(held[i : i + 4000])
    return fleet


def drawn(count: int, draw: random.Random) -> Iterator[Drawn]:
    """Jobs in order of time."""
    path = TRACES / "philly_status_first15k.csv.gz"
    if not path.exists():
        yield from _synthetic(count, draw)
        return
    with gzip.open(path, "rt") as file:
        known = [row for row in csv.DictReader(file) if float(row["run_s"]) > 300]
    vcs = {vc: _TEAMS[i % len(_TEAMS)] for i, vc in enumerate(sorted({r["vc"] for r in known}))}
    chosen = sorted(draw.sample(range(len(known)), min(count, len(known))))
    while len(chosen) < count:
        chosen.append(draw.randrange(len(known)))
    chosen.sort()
    for place, index in enumerate(chosen):
        row = known[index]
        yield Drawn(
            at=(place + draw.random()) / count,
            team=vcs[row["vc"]],
            user=f"u{row['user']}",
            gpus=min(int(row["gpus"]), 1024) if row["gpus"].isdigit() else 1,
            run_s=min(float(row["run_s"]), 4 * 86400),
            status=row["status"],
        )


def _synthetic(count: int, draw: random.Random) -> Iterator[Drawn]:
    for place in range(count):
        yield Drawn(
            at=(place + draw.random()) / count,
            team=draw.choice(_TEAMS),
            user=f"u{draw.randrange(60)}",
            gpus=draw.choices([1, 2, 4, 8, 16, 32, 64], [50, 12, 12, 14, 7, 3, 2])[0],
            run_s=min(max(draw.lognormvariate(9.2, 1.4), 300), 4 * 86400),
            status=draw.choices(["Pass", "Killed", "Failed"], [65, 17, 18])[0],
        )


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Seconds t0…t1 of every rank, split over accounts by these shares."""

    t0: float
    t1: float
    attempt: int
    shares: dict[tuple[str, str], float]  # (group, account)


def _job(
    name: str,
    one: Drawn,
    began: float,
    now: float,
    draw: random.Random,
    regressions: Sequence[Regression],
) -> JobRows:
    labels = _labels(one, began, draw)
    stretches: list[_Stretch] = []
    ends: list[tuple[float, float, str, str | None, str | None]] = []
    at, left, number = began, one.run_s, 0
    while left > 0 and at < now and number < 12:
        first = number == 0
        stretch_began = at
        if not first:
            gap = draw.uniform(20, 400)
            stretches.append(_Stretch(at, at + gap, number, {("recover", "restart_gap"): 1.0}))
            at += gap
        group = "start" if first else "recover"
        for account, usual in _START.items():
            if first and account == "checkpoint_restore":
                continue
            took = usual * draw.lognormvariate(0, 0.35) * (1 + math.log2(one.gpus) / 8)
            stretches.append(_Stretch(at, at + took, number, {(group, account): 1.0}))
            at += took
        rate = one.gpus / (180 * 86400) + 1 / (6 * 86400)
        fails_in = draw.expovariate(rate)
        ran = min(left, fails_in)
        failed = fails_in < left
        stops = at + ran
        lost = min(ran, draw.uniform(0, 1500)) if failed else 0.0
        loop = _loop(one, labels, draw)
        stretches += _cut_loop(at, stops - lost, number, loop, labels, regressions)
        if lost:
            stretches.append(_Stretch(stops - lost, stops, number, {("unsaved", "unsaved"): 1.0}))
        at, left = stops, left - ran
        state, cause, domain = "success", None, None
        if failed:
            domain = draw.choices(["infra", "scheduler", "user"], [60, 28, 12])[0]
            cause = draw.choice(_CAUSES[domain])
            state = "preempted" if domain == "scheduler" else "failed"
            took = draw.uniform(5, 600) if cause in ("hang", "nccl_timeout") else 8
            stretches.append(_Stretch(at, at + took, number, {("recover", "detect"): 1.0}))
            at += took
        elif one.status == "Failed":
            state, domain = "failed", "user"
            cause = draw.choice(_CAUSES["user"])
        else:
            took = draw.uniform(3, 40)
            stretches.append(_Stretch(at, at + took, number, {("shutdown", "teardown"): 1.0}))
            at += took
        ends.append((stretch_began, at, state, cause, domain))
        number += 1
    return _rows(name, one, labels, stretches, ends, began, now)


def _labels(one: Drawn, began: float, draw: random.Random) -> dict[str, str]:
    day = int(began // 86400)
    newer = draw.random() < 0.45
    return {
        "team": one.team,
        "model": draw.choice(_MODELS[one.team]),
        "cluster": draw.choice(["east", "east", "west"]),
        "queue": draw.choice(["prod", "research"]),
        "user": one.user,
        "torch": "2.15" if newer else "2.14",
        "image": f"train-{day // 14}",
    }


def _loop(one: Drawn, labels: dict[str, str], draw: random.Random) -> dict[tuple[str, str], float]:
    habit = random.Random(labels["model"])
    lost = {
        ("in_loop", account): usual / 100 * habit.uniform(0.4, 2.0) * draw.lognormvariate(0, 0.3)
        for account, usual in _LOOP.items()
    }
    return {**lost, ("effective", "effective"): 1 - sum(lost.values())}


def _cut_loop(
    t0: float,
    t1: float,
    number: int,
    loop: dict[tuple[str, str], float],
    labels: dict[str, str],
    regressions: Sequence[Regression],
) -> Iterator[_Stretch]:
    """The loop before and after each regression that these labels meet."""
    edges = {t0, t1}
    mine = [r for r in regressions if r.labels.items() <= labels.items()]
    edges |= {r.since_s for r in mine if t0 < r.since_s < t1}
    cuts = sorted(edges)
    for a, b in itertools.pairwise(cuts):
        shares = dict(loop)
        for regression in mine:
            if a >= regression.since_s:
                account = BY_NAME[regression.account]
                group = account.kind
                more = min(regression.points / 100, shares[("effective", "effective")])
                key = (group, account.name)
                shares[key] = shares.get(key, 0) + more
                shares[("effective", "effective")] -= more
        if b > a:
            yield _Stretch(a, b, number, shares)


def _rows(
    name: str,
    one: Drawn,
    labels: dict[str, str],
    stretches: Sequence[_Stretch],
    ends: Sequence[tuple[float, float, str, str | None, str | None]],
    began: float,
    now: float,
) -> JobRows:
    live = bool(ends) and ends[-1][1] > now
    hours: Counter[tuple[int, str, str]] = Counter()
    by_attempt: dict[int, Counter[tuple[str, str]]] = {i: Counter() for i in range(len(ends))}
    for piece in stretches:
        upto, at = min(piece.t1, now), piece.t0
        while at < upto:
            hour = int(at // HOUR)
            till = min(upto, (hour + 1) * HOUR)
            for (group, account), share in piece.shares.items():
                ns = round((till - at) * share * one.gpus * 1e9)
                if ns > 0:
                    hours[hour, group, account] += ns
                    by_attempt[piece.attempt][group, account] += ns
            at = till
    identity = {"project": "default", "job": name}
    columns = label_columns(labels)
    attempts = [
        _attempt(identity, i, ends[i], one.gpus, by_attempt, columns, live and i == len(ends) - 1)
        for i in range(len(ends))
    ]
    job = _job_row(identity, one, attempts, stretches, began, min(ends[-1][1], now), columns)
    hour_rows = [
        {**identity, "hour": timestamp(hour * HOUR * 10**9), "account": account,
         "account_group": group, "ns": ns}
        for (hour, group, account), ns in hours.items()
    ]  # fmt: skip
    return JobRows(job=job, attempts=attempts, hours=hour_rows, live=live)


def _attempt(
    identity: dict[str, str],
    number: int,
    end: tuple[float, float, str, str | None, str | None],
    ranks: int,
    by_attempt: dict[int, Counter[tuple[str, str]]],
    columns: dict[str, Any],
    live: bool,
) -> dict[str, Any]:
    t0, t1, state, cause, domain = end
    mine, later = by_attempt[number], by_attempt.get(number + 1, Counter())
    groups: Counter[str] = Counter()
    accounts: Counter[str] = Counter()
    for (group, account), ns in mine.items():
        groups[group] += ns
        accounts[account] += ns
    if live:
        state, cause, domain = "live", None, None
    failed = domain is not None
    again = sum(ns for (g, a), ns in later.items() if g == "recover" and a in _START)
    return {
        **identity, "attempt": number, "state": state, "began": timestamp(round(t0 * 1e9)),
        "ended": timestamp(round(t1 * 1e9)), "ranks": ranks, "rank_ns": sum(mine.values()),
        "cause": cause, "domain": domain, "failed_rank": 0 if failed else None, "first_step": 0,
        "saves": 1, "peak_memory_bytes": None,
        "failure_detect_ns": accounts["detect"] if failed else None,
        "failure_restart_gap_ns": later["recover", "restart_gap"] if failed else None,
        "failure_start_again_ns": again if failed else None,
        "failure_unsaved_ns": accounts["unsaved"] if failed else None,
        **{f"{group}_ns": groups[group] for group in GROUPS}, "held_idle_ns": 0,
        **{f"{account}_ns": accounts[account] for account in NAMES if account not in GROUPS},
        "own_ns": 0, "own": None, "kernel": RULES_VERSION, **columns,
    }  # fmt: skip


def _job_row(
    identity: dict[str, str],
    one: Drawn,
    attempts: list[dict[str, Any]],
    stretches: Sequence[_Stretch],
    began: float,
    ended: float,
    columns: dict[str, Any],
) -> dict[str, Any]:
    rank_ns = sum(a["rank_ns"] for a in attempts)
    effective = sum(a["effective_ns"] for a in attempts)
    start = sum(s.t1 - s.t0 for s in stretches if next(iter(s.shares))[0] == "start")
    recover = sum(s.t1 - s.t0 for s in stretches if next(iter(s.shares))[0] == "recover")
    domains = Counter(a["domain"] for a in attempts)
    return {
        **identity, "state": attempts[-1]["state"], "began": timestamp(round(began * 1e9)),
        "ended": timestamp(round(ended * 1e9)), "ranks": one.gpus, "attempts": len(attempts),
        "ett_percent": 100 * effective / max(rank_ns, 1), "rank_ns": rank_ns,
        **{f"{g}_ns": sum(a[f"{g}_ns"] for a in attempts) for g in GROUPS}, "held_idle_ns": 0,
        "window_ns": round((ended - began) * 1e9), "queue_ns": 0, "requeue_ns": 0,
        "time_to_start_ns": round(start * 1e9), "time_to_recover_ns": round(recover * 1e9),
        "recoveries": len(attempts) - 1,
        **{f"{d}_failures": domains[d] for d in ("infra", "scheduler", "user")},
        "at_risk_ns": 0, "estimated_ns": 0, "last_step": 1000, "saves": len(attempts),
        "peak_memory_bytes": None, "path": f"/nowhere/{identity['job']}", "source": "recorded",
        "kernel": RULES_VERSION, **columns,
    }  # fmt: skip


def day(text: str) -> float:
    """A day's begin in seconds since the epoch."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
