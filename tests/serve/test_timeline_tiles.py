"""A tile says of every cell which account holds most of it, at any level."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient
from test_serve_pages import history

from torchett.ledger.metrics.spread import RankSpread, Straggler
from torchett.ledger.timeline import timeline
from torchett.report.pages.job_view import slowest
from torchett.runs.imported import write_run
from torchett.runs.reader import RunReader
from torchett.serve.app import make_app
from torchett.serve.timeline.tiles import CELLS, LANES, Lanes


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(history("wide", ranks=300), folder / "wide")
    return folder


@pytest.fixture(scope="module")
def lanes(run: Path) -> Lanes:
    reader = RunReader(run / "wide").poll()
    ledger = reader.ledger()
    segments = timeline(ledger, reader.history())
    return Lanes(segments, ledger.window.start_ns, ledger.window.end_ns, 300)


@pytest.fixture
def client(run: Path) -> Iterator[TestClient]:
    with TestClient(make_app(run)) as made:
        yield made


def cells(lanes: Lanes, z: int, x: int, y: int) -> np.ndarray:
    return np.frombuffer(lanes.tile(z, x, y), dtype=np.uint8).reshape(-1, CELLS)


@pytest.mark.parametrize(("z", "x"), [(0, 0), (1, 1), (5, 9), (12, 2000)])
def test_a_cell_is_what_lies_under_it(lanes: Lanes, z: int, x: int) -> None:
    found = cells(lanes, z, x, 0)
    span = (lanes.end_ns - lanes.start_ns) / 1e9 / 2**z
    rng = np.random.default_rng(0)
    for lane, cell in zip(rng.integers(LANES, size=60), rng.integers(CELLS, size=60), strict=True):
        edges = [x * span + (cell + part) * span / CELLS for part in (0.02, 0.25, 0.5, 0.75, 0.98)]
        under = [lanes.under(int(lane), at) for at in edges]
        names = Counter((one.account, one.group) if one else None for one in under)
        value = int(found[lane, cell])
        paint = lanes.palette[value - 1] if value else None
        said = (paint.account, paint.group) if paint else None
        assert names[said] >= 2


def test_ranks_go_on_in_the_next_row_of_tiles(lanes: Lanes) -> None:
    assert cells(lanes, 0, 0, 0).shape == (LANES, CELLS)
    assert cells(lanes, 0, 0, 1).shape == (300 - LANES, CELLS)
    assert lanes.tile(0, 0, 2) == b""


def test_zoomed_tiles_cover_what_the_whole_covers(lanes: Lanes) -> None:
    whole = cells(lanes, 0, 0, 0)
    halves = np.hstack([cells(lanes, 1, 0, 0), cells(lanes, 1, 1, 0)])
    pairs = halves.reshape(LANES, CELLS, 2)
    assert ((pairs[:, :, 0] == whole) | (pairs[:, :, 1] == whole)).mean() > 0.99


def test_the_page_its_tiles_and_what_is_under_the_pointer(client: TestClient) -> None:
    data = client.get("/timeline/wide.json").json()
    assert (data["ranks"], data["cells"], data["lanes"]) == (300, CELLS, LANES)
    assert {one["account"] for one in data["colours"]} >= {"effective", "pt2_compile", "detect"}
    assert [one["state"] for one in data["attempts"]] == ["failed", "success"]
    tile = client.get("/timeline/wide/tile?z=0&x=0&y=0")
    assert len(tile.content) == LANES * CELLS
    under = client.get("/timeline/wide/at.json?rank=7&t=50.5").json()
    assert (under["account"], under["step"], under["seconds"]) == ("effective", 6, 1.0)
    assert client.get("/timeline/wide/at.json?rank=7&t=-5").json() is None
    assert client.get("/timeline/wide").status_code == 200


@pytest.mark.parametrize(
    "query", ["z=99&x=0&y=0", "z=1&x=2&y=0", "z=0&x=-1&y=0", "z=a&x=0&y=0", "", "z=0&x=0"]
)
def test_a_tile_that_cannot_be_is_refused(client: TestClient, query: str) -> None:
    assert client.get(f"/timeline/wide/tile?{query}").status_code == 400


@pytest.mark.parametrize("query", ["rank=0&t=nan", "rank=0&t=inf", "rank=0&t=x", "rank=1e3&t=0"])
def test_a_time_that_is_none_is_refused(client: TestClient, query: str) -> None:
    assert client.get(f"/timeline/wide/at.json?{query}").status_code == 400


def test_a_job_without_time_has_an_empty_timeline(run: Path) -> None:
    empty = timeline(*_read(run / "wide"), ranks=[])
    lanes = Lanes(empty, 0, 0, 0)
    assert lanes.tile(0, 0, 0) == b""
    assert lanes.under(0, 1.0) is None


def _read(path: Path):  # type: ignore[no-untyped-def]
    reader = RunReader(path).poll()
    return reader.ledger(), reader.history()


def test_the_page_of_a_live_job_renews_its_figures(tmp_path: Path) -> None:
    whole = history("live")
    last = replace(whole.job.attempts[1], end_ns=None, outcome=None)
    job = replace(whole.job, attempts=(whole.job.attempts[0], last))
    write_run(replace(whole, job=job), tmp_path / "live")
    write_run(history("over"), tmp_path / "over")
    with TestClient(make_app(tmp_path)) as client:
        live, over = (client.get(f"/timeline/{name}").text for name in ("live", "over"))
    for part in ('hx-get="/timeline/live"', 'hx-select="#facts"', 'id="tables"'):
        assert part in live
    assert "hx-get" not in over


def test_the_rank_that_delays_the_group_is_the_first_in_the_table() -> None:
    spreads = [
        RankSpread(rank=rank, steps=9, least_s=1.0, median_s=median, longest_s=1.0, late_s=late)
        for rank, median, late in ((0, 0.91, 0.01), (1, 0.92, 0.02), (2, 0.85, 0.05))
    ]
    delays = Straggler(rank=2, by_s=0.07, begins_late=True)
    assert [one.rank for one in slowest(spreads, delays)] == [2, 1, 0]
    assert [one.rank for one in slowest(spreads, None)] == [1, 0, 2]
