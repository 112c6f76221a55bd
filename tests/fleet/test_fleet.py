"""A fleet says of each job what its report says, and of all jobs their sum."""

import json
import sys
from pathlib import Path

import pytest

from torchett.fleet import Fleet
from torchett.fleet.schema import VIEWS
from torchett.ledger import RULES_VERSION
from torchett.model.accounts import GROUPS, NAMES
from torchett.model.errors import InputError
from torchett.runs.reader import RunReader

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _histories import Long, Wide  # noqa: E402


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    Wide(ranks=8, attempts=3).write_records(folder / "wide")
    Long(steps=9_000, restarts=3).write_records(folder / "long")
    Long(steps=50, restarts=0).write_records(folder / "short")
    return folder


@pytest.fixture
def fleet(runs: Path, tmp_path: Path) -> Fleet:
    made = Fleet.open(tmp_path / "fleet")
    made.roll_up(sorted(runs.iterdir()))
    return made


def test_every_view_has_the_columns_that_its_schema_says(fleet: Fleet) -> None:
    for view in VIEWS:
        found = fleet.query(f"DESCRIBE {view.name}").to_pylist()
        assert [row["column_name"] for row in found] == list(view.names), view.name
        assert [row["column_type"] for row in found] == [c.type for c in view.columns], view.name


def test_the_documents_describe_every_column() -> None:
    text = (ROOT / "docs" / "fleet.md").read_text()
    for view in VIEWS:
        assert f"### {view.name}" in text
        part = text.split(f"### {view.name}\n")[1].split("###")[0]
        for column in view.columns:
            if column.name.removesuffix("_ns") not in (*NAMES, *GROUPS):
                assert f"`{column.name}`" in part, f"{view.name}.{column.name}"


def test_a_jobs_row_is_its_report(fleet: Fleet, runs: Path) -> None:
    for run in runs.iterdir():
        said = RunReader(run).poll().ledger()
        (row,) = fleet.query("SELECT * FROM jobs WHERE job = ?", [run.name]).to_pylist()
        assert row["ett_percent"] == said.ett_percent
        assert row["rank_ns"] == said.rank_ns
        assert {group: row[f"{group}_ns"] for group in GROUPS} == said.groups
        assert (row["attempts"], row["last_step"]) == (len(said.attempts), said.last_step)
        assert row["time_to_start_ns"] == said.time_to_start_ns
        assert row["time_to_recover_ns"] == sum(said.time_to_recover_ns)
        assert row["kernel"] == RULES_VERSION
        sums = ", ".join(f"sum({name}_ns)::BIGINT AS {name}" for name in NAMES)
        (accounts,) = fleet.query(
            f"SELECT {sums} FROM attempts WHERE job = ?", [run.name]
        ).to_pylist()
        own = {n: ns for n, ns in said.accounts.items() if not n.startswith("x-")}
        assert {name: ns for name, ns in accounts.items() if ns} == own


def test_hours_and_days_sum_to_the_jobs_exactly(fleet: Fleet) -> None:
    def whole(table: str, column: str) -> dict[str, int]:
        found = fleet.query(
            f"SELECT {column} AS g, sum(ns)::BIGINT AS ns FROM {table} GROUP BY ALL"
        )
        return {row["g"]: row["ns"] for row in found.to_pylist() if row["ns"]}

    jobs = fleet.query(
        "SELECT " + ", ".join(f"sum({g}_ns)::BIGINT AS {g}" for g in GROUPS) + " FROM jobs"
    ).to_pylist()[0]
    for table in ("job_hours", "hours", "days"):
        assert whole(table, "account_group") == {group: ns for group, ns in jobs.items() if ns}
    per_job = "SELECT job, sum(ns)::BIGINT AS ns FROM job_hours GROUP BY job ORDER BY job"
    by_job = "SELECT job, rank_ns AS ns FROM jobs ORDER BY job"
    assert fleet.query(per_job).to_pylist() == fleet.query(by_job).to_pylist()
    longest = "SELECT max(ns) AS ns FROM job_hours WHERE job = 'short'"
    assert fleet.query(longest).to_pylist()[0]["ns"] <= 3_600 * 10**9


def test_rolling_up_again_changes_nothing(fleet: Fleet, runs: Path) -> None:
    def everything() -> list[object]:
        views = {view.name: f"SELECT * FROM {view.name}" for view in VIEWS}
        for name in ("hours", "days"):  # a key may have several rows: their sum counts
            views[name] = f"SELECT * EXCLUDE ns, sum(ns) AS ns FROM {name} GROUP BY ALL"
        return [fleet.query(f"{sql} ORDER BY ALL").to_pylist() for sql in views.values()]

    before = everything()
    fleet.roll_up([runs / "wide"])
    assert everything() == before


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY jobs TO 'here.csv'",
        "SET memory_limit = '100GB'",
        "SELECT 1; SELECT 2",
        "DROP VIEW jobs",
        "ATTACH 'here.db'",
        "CREATE TABLE t AS SELECT 1",
        "SELECT * FROM jobz",
        "SELECT count(*) FROM range(100000000000) a, range(1000) b",
        "SELECT list(a.range || b.range) FROM range(100000) a, range(100000) b",
    ],
)
def test_a_query_reads_the_views_and_nothing_else(fleet: Fleet, sql: str) -> None:
    with pytest.raises(InputError, match="query: "):
        fleet.query(sql, seconds=0.5, memory="64MB")
    assert fleet.query("SELECT count(*) AS n FROM jobs").to_pylist() == [{"n": 3}]


def test_labels_are_columns_and_others_lie_in_labels(runs: Path, tmp_path: Path) -> None:
    fleet = Fleet.open(tmp_path / "fleet")
    fleet.roll_up([runs / "wide"], labels={"team": "vision", "stage": "pretrain"})
    (row,) = fleet.query("SELECT team, labels, queue FROM jobs").to_pylist()
    assert row["team"] == "vision"
    assert json.loads(row["labels"]) == {"stage": "pretrain"}
    assert row["queue"] is None
    assert fleet.query("SELECT DISTINCT team FROM hours").to_pylist() == [{"team": "vision"}]
