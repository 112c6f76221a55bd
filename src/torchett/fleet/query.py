"""SQL over the fleet's views: read-only, bounded in time and memory."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from torchett.fleet.schema import ACCOUNT_COLUMNS, FAILURES, HELD_IDLE, HOURS, STORED, View
from torchett.fleet.schema import ACCOUNTS as ACCOUNT_VIEW
from torchett.fleet.storage.segments import EMPTY, Segments
from torchett.model.accounts import ACCOUNTS
from torchett.model.errors import InputError

Params = Sequence[Any] | Mapping[str, Any]
SECONDS = 30.0
_BATCH = 1 << 17
MEMORY = "1GB"
_FAILURES = f"""
SELECT project, job, attempt, ended, state, coalesce(cause, state) AS cause, domain, failed_rank,
    ranks, failure_detect_ns AS detect_ns, failure_restart_gap_ns AS restart_gap_ns,
    failure_start_again_ns AS start_again_ns, failure_unsaved_ns AS unsaved_ns,
    failure_detect_ns + failure_restart_gap_ns + failure_start_again_ns + failure_unsaved_ns
        AS total_ns,
    {", ".join(FAILURES.names[-10:])}
FROM attempts WHERE domain IS NOT NULL
"""
HELD_IDLE_MEANING = "Held by a scheduler's job while no process ran on it."
_ACCOUNTS = [
    *((account.name, account.kind, account.colour, account.meaning) for account in ACCOUNTS),
    (HELD_IDLE, HELD_IDLE, "#5c6370", HELD_IDLE_MEANING),
]


def open_views(
    segments: Segments,
    named: Sequence[tuple[str, str]],
    alerts: pa.Table,
    memory: str = MEMORY,
    *,
    mixed: bool = False,
) -> duckdb.DuckDBPyConnection:
    """A connection that sees the views of these segments (day and name), and no other file.

    mixed: some of them were written when there were fewer columns.
    """
    db = duckdb.connect(config={"memory_limit": memory})
    db.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    db.execute("SET temp_directory = ''")
    for view in STORED:
        files = [str(segments.path(view.name, day, name)) for day, name in named]
        if files:
            listed = ", ".join(f"'{_quoted(file)}'" for file in files)
            source = f"read_parquet([{listed}], hive_partitioning = false)"
            source = _of_all_layouts(db, view, listed) if mixed else source
        else:
            db.register(f"no_{view.name}", EMPTY[view.name])
            source = f"no_{view.name}"
        db.execute(f"CREATE VIEW {view.name} AS SELECT {', '.join(view.names)} FROM {source}")
    db.execute(f"CREATE VIEW failures AS {_FAILURES}")
    db.execute(f"CREATE VIEW hours AS SELECT {', '.join(HOURS.names)} FROM job_hours")
    db.register("the_alerts", alerts)
    db.execute("CREATE VIEW alerts AS SELECT * FROM the_alerts")
    rows = ", ".join("(" + ", ".join(f"'{_quoted(v)}'" for v in row) + ")" for row in _ACCOUNTS)
    names = ", ".join(ACCOUNT_VIEW.names)
    db.execute(f"CREATE VIEW accounts AS SELECT * FROM (VALUES {rows}) AS v({names})")
    folder = _quoted(str(segments.folder.absolute()))
    db.execute(f"SET allowed_directories = ['{folder}/']")
    db.execute("SET enable_external_access = false; SET lock_configuration = true")
    return db


def _of_all_layouts(db: duckdb.DuckDBPyConnection, view: View, listed: str) -> str:
    """The same files; a column that some do not have is NULL there, an account zero."""
    files = f"read_parquet([{listed}], hive_partitioning = false, union_by_name = true)"
    there = {row[0] for row in db.execute(f"DESCRIBE SELECT * FROM {files}").fetchall()}
    columns = []
    for column in view.columns:
        found = f'"{column.name}"' if column.name in there else f"NULL::{column.type}"
        if column.name in ACCOUNT_COLUMNS:
            found = f"coalesce({found}, 0)"
        columns.append(f'{found} AS "{column.name}"')
    return f"(SELECT {', '.join(columns)} FROM {files})"


def ask(
    db: duckdb.DuckDBPyConnection,
    sql: str,
    params: Params = (),
    seconds: float = SECONDS,
) -> pa.Table:
    """The answer to one SELECT; InputError says what is wrong with it, or that it took too long."""
    with batches(db, sql, params, seconds) as found:
        return found.read_all()


@contextmanager
def batches(
    db: duckdb.DuckDBPyConnection,
    sql: str,
    params: Params = (),
    seconds: float = SECONDS,
) -> Iterator[pa.RecordBatchReader]:
    """As `ask`, a batch of rows at a time; time and errors count until the last is read."""
    _expect_one_select(db, sql)
    began = time.monotonic()
    timer = threading.Timer(seconds, db.interrupt)
    timer.daemon = True
    timer.start()
    try:
        found = db.sql(sql, params=params) if params else db.sql(sql)
        yield found.to_arrow_reader(_BATCH)
    except (duckdb.Error, pa.ArrowException) as error:
        late = time.monotonic() - began >= seconds or isinstance(error, duckdb.InterruptException)
        if late:
            raise InputError(f"query: no answer within {seconds:g} s: ask for less") from None
        if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in str(error):
            raise InputError("query: more memory than allowed: ask for less") from None
        raise InputError(f"query: {_first_lines(error)}") from None
    finally:
        timer.cancel()


def _expect_one_select(db: duckdb.DuckDBPyConnection, sql: str) -> None:
    try:
        statements = db.extract_statements(sql)
    except duckdb.Error as error:
        raise InputError(f"query: {_first_lines(error)}") from None
    kinds = [statement.type for statement in statements]
    if kinds != [duckdb.StatementType.SELECT]:
        found = ", ".join(kind.name for kind in kinds) or "nothing"
        raise InputError(f"query: expected one SELECT, found {found}")


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


def _quoted(text: str) -> str:
    return text.replace("'", "''")
