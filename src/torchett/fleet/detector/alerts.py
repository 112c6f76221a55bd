"""Alerts of a fleet over time: opened, acknowledged, muted, closed. The history is kept.

The table `alerts` is the fleet's own. What people do with them lies in two tables beside it.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchett.fleet.detector.notice import Notice, subject_json
from torchett.fleet.state import State
from torchett.model.errors import InputError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS alert_acts (
    id INTEGER PRIMARY KEY, alert INTEGER NOT NULL, what TEXT NOT NULL, who TEXT, note TEXT,
    at_s REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS acts_of_alerts ON alert_acts (alert);
CREATE TABLE IF NOT EXISTS mutes (
    id INTEGER PRIMARY KEY, rule TEXT, subject TEXT NOT NULL, who TEXT, note TEXT,
    made_s REAL NOT NULL, until_s REAL NOT NULL
);
"""
_COLUMNS = (
    "id, rule, severity, project, job, subject, opened_s, closed_s, text, value, expected, details"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What somebody did with an alert."""

    what: str  # opened, acknowledged, closed, sent, failed to send
    who: str | None
    note: str | None
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert and its history."""

    id: int
    rule: str
    severity: str
    project: str | None
    job: str | None
    subject: Mapping[str, str]
    opened_s: float
    closed_s: float | None
    text: str
    value: float | None
    expected: float | None
    details: Mapping[str, Any]
    acts: Sequence[Act]
    muted: bool

    @property
    def acknowledged(self) -> Act | None:
        return next((act for act in self.acts if act.what == "acknowledged"), None)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "acknowledged": self.acknowledged is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mute:
    """Alerts of a rule (any, if None) whose subject has these labels are not sent until then."""

    id: int
    rule: str | None
    subject: Mapping[str, str]
    who: str | None
    note: str | None
    until_s: float

    def fits(self, rule: str, job: str | None, subject: Mapping[str, str]) -> bool:
        known = {**subject, **({"job": job} if job else {})}
        return self.rule in (None, rule) and self.subject.items() <= known.items()


class Alerts:
    """The alerts of one fleet; used by the thread that owns its state."""

    def __init__(self, state: State) -> None:
        self._state = state
        for statement in filter(str.strip, _SCHEMA.split(";")):
            state.db.execute(statement)

    def update(
        self, notices: Iterable[Notice], now_s: float, *, over: Iterable[int] = ()
    ) -> tuple[list[int], list[int]]:
        """Open what is new, close what is over; the ids of both.

        Alerts of every rule but `regression` are over when they are not noticed any more; those
        are over when `over` says so.
        """
        wanted = {one.key: one for one in notices}
        opened, closed = [], []
        done = set(over)
        with self._state.change() as db:
            known = {_key(row): row for row in self._rows("closed_s IS NULL")}
            for key, row in known.items():
                gone = key not in wanted and row["rule"] != "regression"
                if gone or (row["id"] in done and key not in wanted):
                    db.execute("UPDATE alerts SET closed_s = ? WHERE id = ?", (now_s, row["id"]))
                    self._act(db, row["id"], "closed", None, None, now_s)
                    closed.append(row["id"])
            for key, one in wanted.items():
                if key not in known:
                    opened.append(self._open(db, one, now_s))
        return opened, closed

    def _open(self, db: sqlite3.Connection, one: Notice, now_s: float) -> int:
        found = db.execute(
            "INSERT INTO alerts (rule, severity, project, job, subject, opened_s, text, value,"
            " expected, details) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (one.rule, one.severity, one.project, one.job, subject_json(one.subject), now_s,
             one.text, one.value, one.expected, json.dumps(dict(one.details), ensure_ascii=False)),
        ).lastrowid  # fmt: skip
        assert found is not None
        self._act(db, found, "opened", None, None, now_s)
        return found

    def acknowledge(self, alert: int, who: str | None, note: str | None, now_s: float) -> None:
        """Write down that somebody looks after it."""
        self._expect(alert)
        with self._state.change() as db:
            self._act(db, alert, "acknowledged", who, note, now_s)

    def mute(
        self,
        rule: str | None,
        subject: Mapping[str, str],
        until_s: float,
        *,
        who: str | None = None,
        note: str | None = None,
        now_s: float,
    ) -> int:
        """Send nothing of this rule about jobs with these labels until then; the mute's number."""
        if until_s <= now_s:
            raise InputError("mute: expected a time to come")
        with self._state.change() as db:
            found = db.execute(
                "INSERT INTO mutes (rule, subject, who, note, made_s, until_s)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (rule, subject_json(subject), who, note, now_s, until_s),
            ).lastrowid
        assert found is not None
        return found

    def unmute(self, mute: int, now_s: float) -> None:
        with self._state.change() as db:
            if not db.execute("UPDATE mutes SET until_s = ? WHERE id = ?", (now_s, mute)).rowcount:
                raise InputError(f"mute {mute}: there is none of this number")

    def note(self, alert: int, what: str, note: str | None, now_s: float) -> None:
        """Write into an alert's history."""
        with self._state.change() as db:
            self._act(db, alert, what, None, note, now_s)

    def mutes(self, now_s: float) -> list[Mute]:
        """Those that hold now."""
        rows = self._state.rows("SELECT * FROM mutes WHERE until_s > ? ORDER BY id", now_s)
        return [
            Mute(
                id=row["id"],
                rule=row["rule"],
                subject=json.loads(row["subject"]),
                who=row["who"],
                note=row["note"],
                until_s=row["until_s"],
            )
            for row in rows
        ]

    def open(self, now_s: float) -> list[Alert]:
        """Those that are not over, the newest first."""
        return self._alerts("closed_s IS NULL ORDER BY opened_s DESC", now_s)

    def history(self, now_s: float, most: int = 200) -> list[Alert]:
        """Those that are over, the last closed first."""
        return self._alerts(f"closed_s IS NOT NULL ORDER BY closed_s DESC LIMIT {most}", now_s)

    def of(self, ids: Iterable[int], now_s: float) -> list[Alert]:
        return [self._alert(self._expect(one), self.mutes(now_s)) for one in ids]

    def _alerts(self, where: str, now_s: float) -> list[Alert]:
        mutes = self.mutes(now_s)
        return [self._alert(row, mutes) for row in self._rows(where)]

    def _rows(self, where: str) -> list[sqlite3.Row]:
        return self._state.rows(f"SELECT {_COLUMNS} FROM alerts WHERE {where}")

    def _expect(self, alert: int) -> sqlite3.Row:
        rows = self._state.rows(f"SELECT {_COLUMNS} FROM alerts WHERE id = ?", alert)
        if not rows:
            raise InputError(f"alert {alert}: there is none of this number")
        return rows[0]

    def _alert(self, row: sqlite3.Row, mutes: Sequence[Mute]) -> Alert:
        subject = json.loads(row["subject"] or "{}")
        acts = self._state.rows(
            "SELECT what, who, note, at_s FROM alert_acts WHERE alert = ? ORDER BY id", row["id"]
        )
        values = {key: row[key] for key in row.keys() if key not in ("subject", "details")}  # noqa: SIM118
        return Alert(
            **values,
            subject=subject,
            details=json.loads(row["details"] or "{}"),
            acts=[Act(**dict(act)) for act in acts],
            muted=any(mute.fits(row["rule"], row["job"], subject) for mute in mutes),
        )

    @staticmethod
    def _act(
        db: sqlite3.Connection,
        alert: int,
        what: str,
        who: str | None,
        note: str | None,
        at_s: float,
    ) -> None:
        db.execute(
            "INSERT INTO alert_acts (alert, what, who, note, at_s) VALUES (?, ?, ?, ?, ?)",
            (alert, what, who, note, at_s),
        )


def _key(row: sqlite3.Row) -> tuple[str, str | None, str | None, str]:
    return row["rule"], row["project"], row["job"], row["subject"] or "{}"
