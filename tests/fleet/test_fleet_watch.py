"""A watched fleet follows live jobs, lets none stop the others, and reads no more than it must."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from torchett.fleet import Fleet
from torchett.fleet.figures import newest
from torchett.fleet.intake.watch import FleetWatch, WatchedFolder
from torchett.fleet.storage.upkeep import compact
from torchett.model.accounts import NAMES
from torchett.record.clock import Anchor
from torchett.record.flight.format import header_line
from torchett.runs.reader import SHIPPED, RunReader

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _histories import Long, Wide  # noqa: E402


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet.open(tmp_path / "fleet")


def states(fleet: Fleet) -> dict[str, str]:
    found = fleet.query("SELECT job, state FROM jobs").to_pylist()
    return {row["job"]: row["state"] for row in found}


def test_a_job_is_followed_from_live_to_its_end(fleet: Fleet, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    Long(steps=500, restarts=0, live=True).write_records(runs / "gpt")
    watch = FleetWatch(fleet, [WatchedFolder(path=runs, project="nlp")], every_s=1.0)
    assert watch.look(0.0) == 1
    assert states(fleet) == {"gpt": "live"}
    assert watch.look(1.0) == 0  # it stands still
    log = runs / "gpt" / "attempts-0.jsonl"
    with log.open("a") as file:
        file.write(json.dumps({"event": "end", "attempt": 0, "t_ns": 10**12, "outcome": "success"}))
        file.write("\n")
    looks = next(i for i in range(2, 90) if watch.look(float(i)))
    assert looks < 10
    assert states(fleet) == {"gpt": "success"}
    said = RunReader(runs / "gpt").poll().ledger()
    (row,) = fleet.query("SELECT rank_ns, effective_ns, project FROM jobs").to_pylist()
    assert row == {
        "rank_ns": said.rank_ns, "effective_ns": said.groups["effective"], "project": "nlp",
    }  # fmt: skip
    assert watch.live == 0
    assert all(watch.look(float(i)) == 0 for i in range(20, 200, 10))


def test_a_new_watch_reads_nothing_that_is_known(fleet: Fleet, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for i in range(3):
        Long(steps=50, restarts=0).write_records(runs / f"job{i}")
    folders = [WatchedFolder(path=runs, project="default")]
    assert FleetWatch(fleet, folders).look(0.0) == 3
    assert FleetWatch(fleet, folders).look(0.0) == 0
    shutil.rmtree(runs / "job1")
    Long(steps=60, restarts=0).write_records(runs / "job1")
    assert FleetWatch(fleet, folders).look(0.0) == 1


def test_what_was_shipped_is_watched_by_its_project(fleet: Fleet) -> None:
    Wide(ranks=2, attempts=2).write_records(fleet.run_folder("alpha", "gpt"))
    Long(steps=50, restarts=0).write_records(fleet.run_folder("beta", "gpt"))
    assert FleetWatch(fleet).look(0.0) == 2
    found = fleet.query("SELECT project, job FROM jobs ORDER BY ALL").to_pylist()
    assert [row["project"] for row in found] == ["alpha", "beta"]


def hostile(run: Path, **facts: object) -> None:
    """A record whose first line says what no recorder would."""
    (run / "attempt-0").mkdir(parents=True, exist_ok=True)
    anchor = Anchor(host="h", clock="c", wall_ns=10**18, mono_ns=0).to_json()
    header = {
        "attempt": 0, "restart": 0, "rank": 0, "ranks": 1, "began_ns": 0, "anchor": anchor,
        "accounts": NAMES, "job": "x",
    }  # fmt: skip
    (run / "attempt-0" / "rank-0.ett").write_bytes(header_line({**header, **facts}))


@pytest.mark.parametrize(
    "facts",
    [
        {"ranks": 1 << 40},
        {"ranks": -1},
        {"ranks": "many"},
        {"attempt": 1 << 62},
        {"began_ns": 1 << 60},
        {"anchor": {"host": "h", "clock": "c", "wall_ns": 1 << 60, "mono_ns": -(1 << 60)}},
        {"accounts": []},
        {"accounts": ["effective"] * 70_000},
        {"ring": "/dev/zero"},
        {"anchor": None},
    ],
)
def test_one_hostile_job_harms_no_other(
    fleet: Fleet, tmp_path: Path, facts: dict[str, object]
) -> None:
    hostile(fleet.run_folder("evil", "bad"), **facts)
    Long(steps=50, restarts=0).write_records(fleet.run_folder("good", "gpt"))
    FleetWatch(fleet).look(0.0)
    assert states(fleet)["gpt"] == "success"
    sums = fleet.query("SELECT sum(ns)::BIGINT AS n FROM days WHERE project = 'good'").to_pylist()
    assert sums == fleet.query("SELECT rank_ns AS n FROM jobs WHERE job = 'gpt'").to_pylist()


def test_a_job_of_very_many_ranks_for_years_is_refused(fleet: Fleet) -> None:
    run = fleet.run_folder("evil", "huge")
    hostile(run, ranks=1 << 18)
    anchor = Anchor(host="h", clock="c", wall_ns=10**18, mono_ns=0).to_json()
    facts = [
        {"format": "attempts/1", "job": "x", "node": 0, "ranks": 1 << 18, "anchor": anchor},
        {"event": "start", "attempt": 0, "t_ns": 0, "ranks": 1 << 18},
        {"event": "end", "attempt": 0, "t_ns": 10**17, "outcome": "success"},
    ]
    (run / "attempts-0.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    watch = FleetWatch(fleet)
    assert watch.look(0.0) == 0
    assert "rank-hours" in watch.errors[str(run)]


def test_a_shipped_record_names_no_file_of_the_server(tmp_path: Path) -> None:
    """A ring is looked for beside a shipped log, wherever its first line says that it is."""
    run = tmp_path / "run"
    hostile(run, ring=str(tmp_path / "ett-secret.ring"))
    assert any("ett-secret" in str(f.header.get("ring")) for f in RunReader(run).poll().flights)
    (run / SHIPPED).touch()
    assert all("ring" not in flight.header for flight in RunReader(run).poll().flights)


@pytest.mark.parametrize("off_s", [-40 * 365 * 86400, -3 * 86400, 3 * 86400, 20 * 365 * 86400])
def test_a_host_whose_clock_is_wrong_harms_no_other(
    fleet: Fleet, tmp_path: Path, off_s: int
) -> None:
    """Its job has the same durations on other days, and the sums of others stay as they are."""
    Long(steps=50, restarts=1).write_records(fleet.run_folder("good", "gpt"))
    skewed = fleet.run_folder("skewed", "gpt")
    Long(steps=50, restarts=1).write_records(skewed)
    for path in (*skewed.glob("*.jsonl"), *skewed.glob("*/*.ett")):
        head, _, rest = path.read_bytes().partition(b"\n")
        facts = json.loads(head)
        facts["anchor"]["wall_ns"] = max(facts["anchor"]["wall_ns"] + off_s * 10**9, 0)
        facts = {key: value for key, value in facts.items() if key not in ("crc", "format")}
        line = header_line(facts)
        if path.suffix == ".jsonl":
            line = json.dumps({"format": "attempts/1", **facts}).encode() + b"\n"
        path.write_bytes(line + rest)
    assert FleetWatch(fleet).look(0.0) == 2
    rows = fleet.query("SELECT * EXCLUDE (project, path, began, ended) FROM jobs").to_pylist()
    assert rows[0] == rows[1]
    (good,) = fleet.query("SELECT began, rank_ns FROM jobs WHERE project = 'good'").to_pylist()
    (other,) = fleet.query("SELECT began FROM jobs WHERE project = 'skewed'").to_pylist()
    assert abs((other["began"] - good["began"]).total_seconds()) > 86400
    for view in ("days", "hours", "job_hours"):
        sql = f"SELECT sum(ns)::BIGINT AS n FROM {view} WHERE project = 'good'"
        assert fleet.query(sql).to_pylist() == [{"n": good["rank_ns"]}]
    compact(fleet)
    assert [row["job"] for row in newest(fleet, 2)] == ["gpt", "gpt"]
