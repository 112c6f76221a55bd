"""A year of rows: a segment a day, made from a few days that repeat, then joined as they age."""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from torchett.fleet import Fleet
from torchett.fleet.state import PUT_SEGMENT
from torchett.fleet.storage.segments import SCHEMAS, Tables, last_day, with_days
from torchett.fleet.storage.upkeep import compact
from torchett.ledger import RULES_VERSION
from torchett.model.accounts import GROUPS, NAMES

TEMPLATES = 5
S = 10**9
DAY_US = 86_400 * 10**6
LOSSES = ("start", "recover", "in_loop", "shutdown", "unsaved", "unattributed")
_ACCOUNTS = [name for name in NAMES if name not in GROUPS]


def write_year(fleet: Fleet, jobs: int, days: int, last: dt.date) -> None:
    """`jobs` jobs over `days` days, the last of which is given."""
    each = jobs // days
    templates = [_day(each, seed) for seed in range(TEMPLATES)]
    for i in range(days):
        day = last - dt.timedelta(days=days - 1 - i)
        tables = {name: _moved(t, i, day) for name, t in templates[i % TEMPLATES].items()}
        segment = fleet.segments.write(tables, str(day), durable=False)
        with fleet.state.change() as db:
            db.execute(PUT_SEGMENT, (segment, str(day), each, last_day(tables)))
            db.executemany(
                "INSERT INTO jobs (project, job, path, live, first_day, last_day, print, kernel,"
                " source, labels) VALUES ('default', ?, ?, 0, ?, ?, ?, ?, 'recorded', '{}')",
                [
                    (f"{i}-{n}", f"/shared/ett-runs/{i}-{n}", str(day), str(day),
                     f"{1 + n % 64}:{9_999 * n}:{1_780_000_000 + n}{n:09}", RULES_VERSION)
                    for n in range(each)
                ],
            )  # fmt: skip
        if day.weekday() == 6:
            compact(fleet, dt.datetime.combine(last, dt.time()))
    compact(fleet, dt.datetime.combine(last, dt.time()))


def _moved(table: pa.Table, number: int, day: dt.date) -> pa.Table:
    """A template's rows, on that day and with names of their own."""
    offset = (day - dt.date(1970, 1, 1)).days
    for name in ("began", "ended", "hour"):
        if name in table.schema.names:
            values = table[name].to_numpy().astype("int64") + offset * DAY_US
            table = _with(table, name, pa.array(values, pa.int64()).cast(pa.timestamp("us")))
    if "day" in table.schema.names:
        values = table["day"].cast(pa.int32()).to_numpy() + offset
        table = _with(table, "day", pa.array(values, pa.int32()).cast(pa.date32()))
    if "job" in table.schema.names:
        numbers = table["job"].to_pylist()
        table = _with(table, "job", pa.array([f"{number}-{n}" for n in numbers]))
    return table


def _with(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def _day(jobs: int, seed: int) -> Tables:
    chance = np.random.default_rng(seed)
    began = np.sort(chance.integers(0, 86_400, jobs))
    ran = np.minimum(chance.lognormal(7.2, 1.8, jobs).astype(int) + 60, 5 * 86_400)
    ranks = np.minimum(chance.choice([1, 1, 1, 2, 4, 8, 8, 16, 32, 64, 256], jobs), 1024)
    shares = chance.dirichlet([20, 1, 1, 1, 0.5, 0.5, 0.3], jobs)
    rank_ns = ran * ranks * S
    groups = (shares * rank_ns[:, None]).astype(np.int64)
    groups[:, 0] += rank_ns - groups.sum(1)
    failed = chance.random(jobs) < 0.25
    team = chance.integers(0, 20, jobs)
    labels = {
        "team": [f"team{t}" for t in team],
        "model": [f"model{m}" for m in chance.integers(0, 40, jobs)],
        "queue": [f"queue{q}" for q in chance.integers(0, 5, jobs)],
        "cluster": [f"cluster{c}" for c in chance.integers(0, 2, jobs)],
        "user": [f"u{t}-{u}" for t, u in zip(team, chance.integers(0, 15, jobs), strict=True)],
        "torch": [f"2.{v}" for v in chance.integers(10, 14, jobs)],
    }
    names = [str(n) for n in range(jobs)]
    common = {
        "project": ["default"] * jobs, "job": names, "kernel": [RULES_VERSION] * jobs,
        "began": began * 10**6, "ended": (began + ran) * 10**6, "ranks": ranks,
        "rank_ns": rank_ns, **labels,
        "state": np.where(failed, "failed", "success").tolist(),
        **{f"{group}_ns": groups[:, i] for i, group in enumerate(GROUPS)},
    }  # fmt: skip
    found = {
        "jobs": _table(
            "jobs",
            jobs,
            common
            | {
                "attempts": 1 + failed,
                "ett_percent": 100 * groups[:, 0] / rank_ns,
                "source": ["recorded"] * jobs,
                "infra_failures": failed.astype(int),
                "path": [f"/shared/ett-runs/{n}" for n in names],
                "window_ns": ran * S,
                "time_to_start_ns": ran * S // 20,
            },
        ),
        "attempts": _attempts(common, failed, groups, jobs),
        "job_hours": _job_hours(names, began, ran, groups, labels),
    }
    return with_days(found)


def _attempts(common: dict[str, Any], failed: Any, groups: Any, jobs: int) -> pa.Table:
    """One attempt a job; a job that failed has the failure in it."""
    accounts = {f"{name}_ns": np.zeros(jobs, dtype=np.int64) for name in _ACCOUNTS}
    chosen = ("imports", "checkpoint_restore", "data_wait", "teardown", "other_in_loop", "detect")
    for i, name in enumerate(chosen):
        accounts[f"{name}_ns"] = groups[:, 1 + i % len(LOSSES)]
    domain = np.where(failed, "infra", None).tolist()
    more = {"attempt": np.zeros(jobs, int), "domain": domain, "cause": domain}
    costs = {f"failure_{n}_ns": groups[:, 1] for n in ("detect", "restart_gap", "unsaved")}
    return _table("attempts", jobs, common | accounts | more | costs)


def _job_hours(
    names: list[str], began: Any, ran: Any, groups: Any, labels: dict[str, list[str]]
) -> pa.Table:
    """Every hour that a job touches, with its groups' shares of it."""
    rows = list(_hours(names, began, ran, groups))
    job, hour, group, ns = (list(column) for column in zip(*rows, strict=True))
    times = pa.array(np.array(hour) * 3_600_000_000, pa.int64()).cast(pa.timestamp("us"))
    columns = {
        "project": ["default"] * len(job), "job": job, "hour": times,
        "account": group, "account_group": group, "ns": ns,
    }  # fmt: skip
    for column in SCHEMAS["job_hours"]:
        if column.name not in columns:
            of_jobs = pa.array(labels.get(column.name, [None] * len(names)), pa.string())
            columns[column.name] = of_jobs.take(pa.array(list(map(int, job))))
    return pa.table(columns, schema=SCHEMAS["job_hours"])


def _hours(names: list[str], began: Any, ran: Any, groups: Any) -> Iterator[tuple[Any, ...]]:
    for n, name in enumerate(names):
        first, last = began[n] // 3600, (began[n] + ran[n] - 1) // 3600
        count = int(last - first + 1)
        for g, group in enumerate(GROUPS):
            whole = int(groups[n, g])
            if g in (1, 2) or count == 1:  # a start is in one hour
                yield name, first, group, whole
                continue
            for k in range(count):
                yield name, first + k, group, whole // count + (whole % count if k == 0 else 0)


def _table(name: str, rows: int, columns: dict[str, Any]) -> pa.Table:
    arrays = []
    for column in SCHEMAS[name]:
        values = columns.get(column.name)
        if values is None:
            integer = pa.types.is_integer(column.type)
            arrays.append(pa.array(np.zeros(rows, int)).cast(column.type) if integer
                          else pa.nulls(rows, column.type))  # fmt: skip
        elif pa.types.is_timestamp(column.type):
            arrays.append(pa.array(values, pa.int64()).cast(column.type))
        else:
            arrays.append(pa.array(values).cast(column.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMAS[name])
