"""What changes: which jobs, segments, tokens and alerts there are, in SQLite (WAL).

The table `segments` says which Parquet files count. A job's rows and the files they replace change
in one transaction, so that a reader sees a job once, whatever is killed meanwhile.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchett.fleet.schema import LAYOUT
from torchett.model.errors import RunError

VERSION = 4
PUT_SEGMENT = (
    f"INSERT INTO segments (name, day, jobs, last_day, layout) VALUES (?, ?, ?, ?, '{LAYOUT}')"
)
_SCHEMA = """
CREATE TABLE jobs (
    project TEXT NOT NULL, job TEXT NOT NULL, path TEXT, live INTEGER NOT NULL, first_day TEXT,
    last_day TEXT, print TEXT, kernel INTEGER, source TEXT NOT NULL, labels TEXT,
    PRIMARY KEY (project, job)
) WITHOUT ROWID;
CREATE TABLE segments (
    name TEXT PRIMARY KEY, day TEXT NOT NULL, jobs INTEGER NOT NULL, last_day TEXT, layout TEXT
);
CREATE INDEX segment_days ON segments (day);
CREATE TABLE tokens (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL UNIQUE, may TEXT NOT NULL,
    project TEXT, made_s REAL NOT NULL, revoked_s REAL
);
CREATE TABLE alerts (
    id INTEGER PRIMARY KEY, rule TEXT NOT NULL, severity TEXT NOT NULL, project TEXT, job TEXT,
    subject TEXT, opened_s REAL NOT NULL, closed_s REAL, text TEXT NOT NULL, value REAL,
    expected REAL, details TEXT
);
CREATE INDEX open_alerts ON alerts (opened_s);
"""


class State:
    """The database of one fleet folder. One connection for each thread that works on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.db = sqlite3.connect(path, isolation_level=None, timeout=30)
            self.db.row_factory = sqlite3.Row
            self.db.execute("PRAGMA journal_mode = WAL")
            self.db.execute("PRAGMA synchronous = NORMAL")
            self._prepare()
        except sqlite3.Error as error:
            raise RunError(f"{path}: expected a fleet's database: {error}") from None

    def _prepare(self) -> None:
        found = self.db.execute("PRAGMA user_version").fetchone()[0]
        if found == VERSION:
            return
        if found:
            raise RunError(
                f"{self.path}: version {found}, expected {VERSION}: made by another torchett:"
                " roll its runs up into another folder"
            )
        with self.change():
            if not self.db.execute("PRAGMA user_version").fetchone()[0]:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self.db.execute(statement)
                self.db.execute(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of what is done inside, or nothing."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield self.db
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def rows(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        return self.db.execute(sql, values).fetchall()

    def one(self, sql: str, *values: Any) -> sqlite3.Row | None:
        found: sqlite3.Row | None = self.db.execute(sql, values).fetchone()
        return found

    def close(self) -> None:
        self.db.close()
