"""Which run a launch belongs to: one that exists and continues, or a new one.

    ett run --job gpt            there is no gpt              gpt, attempt 0
                                 gpt failed or was stopped    gpt, its next attempt
                                 gpt ended well               gpt-2, attempt 0; then gpt-3, …
    with ETT_GROUP=1             the same of gpt.group-1      gpt.group-1 or gpt-2.group-1
    ett run --job gpt --resume   gpt ended well               gpt, its next attempt

A job that Slurm requeued goes on even where it ended well: it may have saved and exited with 0.

All nodes decide by what lies in the shared run folder, so they agree. A node that comes late, when
node 0 may be done already, joins the run if it has not taken part in node 0's last attempt. Where
nodes share no folder, each decides by its own log.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from torchett.record.attempt_log import attempts_path, in_use
from torchett.record.identity import group_suffix, safe_name, slurm_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The run to write to, and the last one before it that ended well."""

    name: str
    ended_well: str | None = None


def choose_run(
    runs: Path, asked: str, env: Mapping[str, str], *, node: int, resume: bool, named: bool
) -> Choice:
    """The run of a job called `asked`; `named` by a person, so that two at once are a mistake."""
    series, group = safe_name(asked), group_suffix(env)
    before: str | None = None
    for number in count(1):
        name = (series if number == 1 else f"{series}-{number}") + group
        logs = {known: _Log.read(runs / name, known) for known in {0, node}}
        log = logs[0] or logs[node]
        if number == 1 and (log is None or resume):
            return Choice(name=name)
        if log is None:
            if _exists(runs / name):
                continue  # records of another job, which no launcher began
            return Choice(name=name, ended_well=before)
        if number > 1 and log.series != series:
            continue  # a job that was given this name
        busy = not named and node == 0 and in_use(runs / name)
        late = node > 0 and node < log.nodes and log.attempt > _attempt(logs[node])
        if late or not (busy or (log.ended_well and not log.requeued(env))):
            return Choice(name=name, ended_well=before)
        before = name if log.ended_well else before
    raise AssertionError


def series_facts(asked: str, env: Mapping[str, str], nodes: int) -> dict[str, Any]:
    """The first line of a launcher's log, from which `choose_run` decides."""
    facts: dict[str, Any] = {"series": safe_name(asked), "nodes": nodes}
    if env.get("SLURM_JOB_ID"):
        facts["slurm"] = [slurm_name(env), _restarts(env)]
    return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    """What one node's log says about a run, as far as its name needs it."""

    series: str | None
    nodes: int
    slurm: tuple[str, int] | None
    attempt: int  # the last one that was begun
    ended_well: bool

    @staticmethod
    def read(run: Path, node: int) -> "_Log | None":
        """The log of this node; None if there is none."""
        facts = list(_facts(attempts_path(run, node)))
        heads = [fact for fact in facts if "format" in fact]
        if not heads:
            return None
        starts = [fact for fact in facts if fact.get("event") == "start"]
        attempt = max((_number(fact.get("attempt"), -1) for fact in starts), default=-1)
        ended = [
            fact.get("outcome")
            for fact in facts
            if fact.get("event") == "end"
            and fact.get("attempt") == attempt
            and "restart" not in fact
        ]
        slurm = heads[-1].get("slurm")
        return _Log(
            series=heads[0].get("series"),
            nodes=_number(heads[-1].get("nodes"), 1),
            slurm=(str(slurm[0]), _number(slurm[1], 0)) if isinstance(slurm, list) else None,
            attempt=attempt,
            ended_well=ended[-1:] == ["success"],
        )

    def requeued(self, env: Mapping[str, str]) -> bool:
        """Whether this is the same Slurm job, requeued."""
        if self.slurm is None or not env.get("SLURM_JOB_ID"):
            return False
        return self.slurm[0] == slurm_name(env) and self.slurm[1] < _restarts(env)


def _attempt(log: _Log | None) -> int:
    return -1 if log is None else log.attempt


def _exists(run: Path) -> bool:
    try:
        return any(name.startswith("attempt") for name in os.listdir(run))
    except OSError:
        return False


def _facts(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            fact = json.loads(line)
        except ValueError:
            continue  # cut off
        if isinstance(fact, dict):
            yield fact


def _restarts(env: Mapping[str, str]) -> int:
    return _number(env.get("SLURM_RESTART_COUNT"), 0)


def _number(value: object, otherwise: int) -> int:
    return int(value) if isinstance(value, int | str) and str(value).isdecimal() else otherwise
