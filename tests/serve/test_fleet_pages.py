"""The pages of a fleet: sums as SQL has them, filters in the URL, hostile labels as text."""

import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import _fleets  # noqa: E402
from test_serve_pages import history  # noqa: E402

from torchett.fleet import Fleet  # noqa: E402
from torchett.fleet.detector.alerts import Alerts  # noqa: E402
from torchett.fleet.detector.notice import Notice  # noqa: E402
from torchett.runs.imported import write_run  # noqa: E402
from torchett.serve.app import make_app  # noqa: E402
from torchett.serve.fleet import source as sources  # noqa: E402

END_S = _fleets.day("2026-11-19") + 4 * 3600
HOSTILE = '<img src=x onerror=alert(1)>\x1b[31m"&' * 30_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    fleet = _fleets.fill(folder / "fleet", end_s=END_S, days=20, jobs=120, seed=3)
    write_run(history("long"), folder / "long")
    fleet.roll_up([folder / "long"], labels={"team": HOSTILE, "model": "<b>x</b>"})
    fleet.close()
    return folder / "fleet"


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(make_app(None, fleet=folder, clock=lambda: END_S)) as made:
        yield made


def test_the_page_and_its_twin_say_what_sql_says(client: TestClient, folder: Path) -> None:
    data = client.get("/fleet.json?days=20&team=ads").json()
    with Fleet.open(folder) as fleet:
        since = data["days"][0]
        (row,) = fleet.query(
            "SELECT sum(ns) FILTER (account_group = 'effective')::BIGINT AS effective,"
            " sum(ns)::BIGINT AS whole FROM days WHERE team = 'ads' AND day >= ?::DATE",
            [since],
        ).to_pylist()
    assert data["ett_percent"] == pytest.approx(100 * row["effective"] / row["whole"])
    assert sum(map(sum, data["bands"].values())) == pytest.approx(row["whole"] / 3.6e12)
    assert len(data["days"]) == 20
    assert data["groups"]
    page = client.get("/fleet?days=20&team=ads")
    assert f"<b>{data['ett_percent']:.1f}</b>" in page.text
    assert len(page.content) < 200_000


def test_points_of_what_changed_sum_to_zero(client: TestClient) -> None:
    data = client.get("/fleet.json").json()
    moved = {one["account"]: one["after"] - one["before"] for one in data["moved"]}
    assert moved["effective"] == pytest.approx(data["moved_points"])
    assert abs(sum(moved.values())) < 0.5  # the smallest moves are left out


OF_HOSTILE = ["/fleet?model=%3Cb%3Ex%3C%2Fb%3E", "/jobs?q=long"]


@pytest.mark.parametrize("path", [*OF_HOSTILE, f"/fleet?team={'x' * 5000}&days=9x", "/"])
def test_hostile_labels_are_text(client: TestClient, path: str) -> None:
    page = client.get(path)
    assert page.status_code == 200
    assert ("&lt;img" in page.text) == (path in OF_HOSTILE)
    assert "\x1b" not in page.text
    assert not re.search(r"<script(?![^>]*\bsrc=\"/static/)|<[^>]* (style|on\w+)=|<img", page.text)
    assert len(page.content) < 400_000


def test_the_page_says_in_a_sentence_what_most_was_lost_to(client: TestClient) -> None:
    data = client.get("/fleet.json?days=20").json()
    whole = data["hours"]
    effective = next(one["hours"] for one in data["groups"] if one["name"] == "effective")
    assert data["lost_hours"] == pytest.approx(whole - effective)
    shares = [one["percent"] for one in data["lost"]]
    assert shares == sorted(shares, reverse=True)
    page = client.get("/fleet?days=20").text
    assert f"rank-hours were lost, most to {data['lost'][0]['name']} <b>{shares[0]:.1f}%" in page


def test_two_windows_of_days_are_compared_as_two_jobs_are(client: TestClient, folder: Path) -> None:
    weeks = client.get("/fleet.json?days=20&team=ads").json()["weeks"]
    assert "team=ads" in weeks
    data = client.get(f"/compare.json?{weeks}").json()
    assert (data["a"], data["b"]) == ("2026-11-06..2026-11-12", "2026-11-13..2026-11-19")
    with Fleet.open(folder) as fleet:
        (row,) = fleet.query(
            "SELECT 100 * sum(ns) FILTER (account_group = 'effective') / sum(ns)::DOUBLE AS ett"
            " FROM days WHERE team = 'ads' AND day BETWEEN '2026-11-13' AND '2026-11-19'"
        ).to_pylist()
    assert data["b_percent"] == pytest.approx(row["ett"])
    page = client.get(f"/compare?{weeks}&other=1").text
    assert "2026-11-13..2026-11-19 is" in page
    assert "Jobs of team ads.</p>" in page
    assert 'name="team" value="ads"' in page  # kept where other days are chosen


@pytest.mark.parametrize("days", ["2026-11-09..2026-11-01", "2026-13-01..2026-13-02"])
def test_days_that_are_none_are_an_error_in_one_line(client: TestClient, days: str) -> None:
    answer = client.get(f"/compare?a={days}&b=2026-11-01..2026-11-02")
    assert answer.status_code == 400
    assert "expected days as 2026-11-01..2026-11-07" in answer.text


def test_readers_who_ask_the_same_at_once_share_one_query(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, waiting = [], threading.Event()
    query = Fleet.query

    def counted(self: Fleet, sql: str, *args: object, **named: object) -> object:
        asked.append(sql)
        waiting.wait(60)
        return query(self, sql, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Fleet, "query", counted)
    source = sources.FleetSource(folder)
    with ThreadPoolExecutor(8) as readers:
        answers = [
            readers.submit(source.rows, "SELECT count(*) AS n FROM jobs", fresh_s=600)
            for _ in range(8)
        ]
        while not asked:
            time.sleep(0.01)
        waiting.set()
        counts = {answer.result(60)[0]["n"] for answer in answers}
    source.close()
    assert len(asked) == len(counts) == 1


def test_an_unknown_filter_finds_nothing_and_says_so(client: TestClient) -> None:
    page = client.get("/fleet?team=nobody")
    assert page.status_code == 200
    assert "no job with these labels in these days" in page.text


def test_a_job_that_is_not_there_does_not_tell_where_the_fleet_lies(
    client: TestClient, folder: Path
) -> None:
    answer = client.get("/job/default/none")
    assert answer.status_code == 404
    assert "default/none: no such job in this fleet" in answer.text
    assert str(folder) not in answer.text


def test_a_job_whose_folder_is_gone_is_shown_by_its_sums(client: TestClient) -> None:
    worst = client.get("/fleet.json").json()["worst"][0]
    data = client.get(f"/job/{worst['key']}.json").json()
    assert sum(seconds for *_, seconds in data["accounts"]) == pytest.approx(
        data["job"]["rank_hours"] * 3600
    )
    assert client.get(f"/job/{worst['key']}").status_code == 200
    assert client.get("/job/default/nobody").status_code == 404


def test_a_job_whose_folder_is_there_is_the_job_page(client: TestClient) -> None:
    data = client.get("/job/default/long.json").json()
    assert data["key"] == "default/long"
    assert "view" in data


def test_alerts_are_acknowledged_and_muted_from_the_page_only(folder: Path) -> None:
    with Fleet.open(folder) as fleet:
        one = Notice(rule="silent", severity="page", text=HOSTILE, value=1, subject={"team": "ads"})
        ((number, *_), _) = Alerts(fleet.state).update([one], END_S)
    form = {"what": "acknowledge", "id": str(number), "who": "ann"}
    own = {"sec-fetch-site": "same-origin"}
    with TestClient(make_app(None, fleet=folder, may_act=True)) as client:
        page = client.get("/alerts")
        assert "\x1b" not in page.text
        assert "<img" not in page.text
        assert client.post("/alerts/act", data=form).status_code == 403
        other = {"sec-fetch-site": "cross-site"}
        assert client.post("/alerts/act", data=form, headers=other).status_code == 403
        assert client.post("/alerts/act", data=form, headers=own).status_code == 200
        mute = {"what": "mute", "id": str(number), "hours": "8"}
        assert client.post("/alerts/act", data=mute, headers=own).status_code == 200
        wrong = {"what": "mute", "id": str(number), "hours": "1e9"}
        assert client.post("/alerts/act", data=wrong, headers=own).status_code == 400
        assert client.post("/alerts/act", content=b"x" * 20_000, headers=own).status_code == 400
        (shown,) = client.get("/alerts.json").json()["open"]
        assert shown["acknowledged"] is True
        assert shown["muted"] is True
    with TestClient(make_app(None, fleet=folder)) as client:
        assert client.post("/alerts/act", data=form, headers=own).status_code == 403
