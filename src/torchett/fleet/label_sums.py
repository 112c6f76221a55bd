"""Sums by day and one label, of all segments in one file: so that a year is summed in a moment.

    rows/label-sums.arrow    label │ value │ day │ account_group │ account │ ns      (memory-mapped)
                             └── rows of segment 5f0c… ──┘└── rows of segment 71aa… ──┘

It is made from the segments, by the process that writes rows, and may be missing or behind: what it
does not hold yet is summed from the segments themselves. Sums are the same either way.
"""

import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from torchett.fleet.schema import LABELS
from torchett.fleet.storage.segments import LIVE

if TYPE_CHECKING:
    from torchett.fleet.fleet import Fleet

SUMMED = ("", "project", *LABELS)  # the first: of everything
JOBS = "jobs"  # stands for an account in rows that count jobs
Key = tuple[str | None, str, str]  # value of the label, group, account
_KEYS = ["label", "value", "day", "account_group", "account"]
_NAMES = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [(name, pa.date32() if name == "day" else _NAMES) for name in _KEYS] + [("ns", pa.int64())]
)
_NONE = pa.Table.from_batches([], _SCHEMA)
Named = tuple[str, str]


class LabelSums:
    """The file of one fleet, as it is now."""

    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._path = fleet.segments.folder / "label-sums.arrow"
        self._ranges: dict[str, list[int]] = {}
        self._table = _NONE
        try:
            with pa.memory_map(str(self._path)) as file:
                table = pa.ipc.open_file(file).read_all()
            self._ranges = json.loads(table.schema.metadata[b"segments"])
            self._table = table
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
            pass  # not there yet, or of another version: it is made again

    def missing(self, named: Sequence[Named]) -> list[Named]:
        """The segments that it does not hold."""
        return [(day, name) for day, name in named if name not in self._ranges]

    def sums(
        self, label: str, named: Sequence[Named], since: Any = None
    ) -> Iterator[tuple[Key, int]]:
        """What it holds of these segments, by value of one label, from a day on."""
        wanted = {name for _, name in named}
        table = self._table
        if not wanted.issuperset(self._ranges):
            spans = [span for name, span in self._ranges.items() if name in wanted]
            parts = [table.slice(begin, end - begin) for begin, end in spans]
            table = pa.concat_tables(parts) if parts else _NONE
        found = (
            "SELECT value, account_group, account, sum(ns) FROM sums"
            " WHERE label = ? AND (?::DATE IS NULL OR day >= ?::DATE) GROUP BY ALL"
        )
        with duckdb.connect() as db:
            db.register("sums", table)
            for value, group, account, ns in db.execute(found, [label, since, since]).fetchall():
                yield (value, group, account), ns

    def update(self, most: int = 10_000) -> None:
        """Take in the segments that are new, and leave out those that are gone; one writer."""
        rows = self._fleet.state.rows("SELECT day, name FROM segments WHERE day != ?", LIVE)
        named = [(row["day"], row["name"]) for row in rows]
        missing = self.missing(named)[:most]
        there = {name for _, name in named}
        kept = {name: span for name, span in self._ranges.items() if name in there}
        if not missing and len(kept) == len(self._ranges):
            return
        parts = [(name, self._table.slice(a, b - a)) for name, (a, b) in kept.items()]
        parts += [(name, self._summed(day, name)) for day, name in missing]
        self._write(parts)

    def _summed(self, day: str, name: str) -> pa.Table:
        tables = self._fleet.segments.read(day, name, ["days", "jobs"])
        found = []
        for label in SUMMED:
            by = [label] if label else []
            summed = tables["days"].group_by([*by, "day", "account_group", "account"])
            found.append(_as_rows(summed.aggregate([("ns", "sum")]), label, "ns_sum"))
            counted = tables["jobs"].group_by(by).aggregate([([], "count_all")])
            found.append(_as_rows(counted, label, "count_all"))
        return pa.concat_tables(found)

    def _write(self, parts: list[tuple[str, pa.Table]]) -> None:
        ranges, at = {}, 0
        for name, table in parts:
            ranges[name] = [at, at + len(table)]
            at += len(table)
        whole = pa.concat_tables([table for _, table in parts]) if parts else _NONE
        whole = whole.unify_dictionaries().combine_chunks()
        whole = whole.replace_schema_metadata({b"segments": json.dumps(ranges).encode()})
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, whole.schema) as writer:
            writer.write_table(whole)
        os.replace(part, self._path)
        self._table, self._ranges = whole, ranges


def _as_rows(table: pa.Table, label: str, number: str) -> pa.Table:
    count = len(table)
    columns = {
        "label": pa.array([label] * count, pa.string()),
        "value": table[label] if label else pa.nulls(count, pa.string()),
        "day": table["day"] if "day" in table.schema.names else pa.nulls(count, pa.date32()),
        **{
            name: table[name] if name in table.schema.names else pa.array([JOBS] * count)
            for name in ("account_group", "account")
        },
        "ns": table[number],
    }
    return pa.table(columns).cast(_SCHEMA)
