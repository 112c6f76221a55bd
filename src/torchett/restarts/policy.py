"""The restart policy of one launcher: gathers what is known of a failure, rules, and remembers.

a life ends ──► evidence ──► verdict on it ──► ruling by the table ──► restarts.jsonl
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchett.failures.rules import Rule
from torchett.model.errors import EttError
from torchett.model.restarts import Decision, LifeEnd, Outlook
from torchett.restarts.decide import Failure, Ruling, decide
from torchett.restarts.gather import Found, gather
from torchett.restarts.history import Fact, append_facts, lineage_of, read_history
from torchett.restarts.memory_kills import MemoryKills
from torchett.restarts.table import Table
from torchett.runs.printed import Printed
from torchett.runs.reader import RunReader


class RunPolicy:
    """Decides for the launcher of one node, and for the agent that it starts."""

    def __init__(
        self,
        run: Path,
        env: Mapping[str, str],
        printed: Printed,
        kills: MemoryKills,
        *,
        table: Table,
        rules: Sequence[Rule],
    ) -> None:
        self._run, self._table, self._rules = run, table, tuple(rules)
        self._lineage = lineage_of(env, time.time_ns())
        self._lineages = {self._lineage}  # and those of the other nodes' launchers
        self._host = os.uname().nodename
        self._printed, self._kills = printed, kills
        self._reader: RunReader | None = None
        self._since_s = time.time()
        self._last: list[Fact] = []

    def decide(self, end: LifeEnd) -> Decision:
        """The decision on this life, also written down."""
        known = read_history(self._run)
        history = [fact for fact in known if fact.lineage in self._lineages]
        if (last := _final(history, end)) is not None:
            return Decision(outlook=last.outlook, why=last.why)
        found = self._found(end)
        failure = Failure(
            attempt=end.attempt,
            restart=end.restart,
            category=found.category,
            outlook=found.outlook,
            root=found.root,
            rank=found.rank,
            text=found.text,
            file=found.file,
            place=found.place,
            node=end.node,
            nodes=end.nodes,
            by=end.by,
            shared_limit=end.shared_limit,
        )
        durable_step = self._durable_step()
        ruling = decide(failure, self._table, history, durable_step, end.limit)
        self._last = [self._fact(failure, ruling, durable_step)]
        append_facts(self._run, self._last)
        return Decision(outlook=ruling.outlook, why=ruling.why, pause_s=ruling.pause_s)

    def hear(self, facts: list[dict[str, Any]]) -> None:
        """Keep what other nodes have decided, unless it lies in this folder already."""
        known = {fact.key for fact in read_history(self._run)}
        heard = []
        for content in facts:
            try:
                fact = Fact.from_json(content)
            except (KeyError, ValueError, TypeError):
                continue
            self._lineages.add(fact.lineage)
            if fact.key not in known:
                heard.append(fact)
        if heard:
            append_facts(self._run, heard)

    def last_facts(self) -> list[dict[str, Any]]:
        return [fact.to_json() for fact in self._last]

    def _found(self, end: LifeEnd) -> Found:
        printed, killed = self._printed.new(), self._kills.new()
        if end.preempted:
            return Found(
                category="preemption",
                outlook=Outlook.RESTART_NOW,
                root=True,
                rank=None,
                text="",
                file="",
                place="",
            )
        since_s, self._since_s = self._since_s, time.time()
        return gather(
            self._run,
            end,
            self._rules,
            printed=printed,
            killed_for_memory=killed,
            since_s=since_s,
        )

    def _durable_step(self) -> int:
        """The last step that a durable checkpoint holds; −1 without one."""
        try:
            if self._reader is None:
                self._reader = RunReader(self._run)
            return self._reader.poll().ledger().last_durable_step
        except (EttError, OSError):
            return -1

    def _fact(self, failure: Failure, ruling: Ruling, durable_step: int) -> Fact:
        return Fact(
            attempt=failure.attempt,
            restart=failure.restart,
            outlook=ruling.outlook,
            why=ruling.why,
            node=failure.node,
            by=failure.by,
            lineage=self._lineage,
            t_s=time.time(),
            host=self._host,
            category=failure.category,
            root=failure.root,
            rank=failure.rank,
            text=failure.text,
            file=failure.file,
            place=failure.place,
            row=ruling.row,
            charged=ruling.charged,
            limit_reached=ruling.limit_reached,
            pause_s=ruling.pause_s,
            durable_step=durable_step,
        )


def _final(history: Sequence[Fact], end: LifeEnd) -> Fact | None:
    """What an agent decided about the end of this attempt, if the launcher has to keep to it."""
    if end.by != "launcher":
        return None
    mine = [fact for fact in history if fact.attempt == end.attempt and fact.by == "agent"]
    last = max(mine, key=lambda fact: fact.restart, default=None)
    if last is None or last.limit_reached:
        return None
    return last if last.outlook in (Outlook.STOP, Outlook.REPLACE_NODE) else None
