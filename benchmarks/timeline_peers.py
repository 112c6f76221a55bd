"""The same timeline in torchett's page and in a Plotly page, in Chromium: first paint and frames.

    python benchmarks/timeline_peers.py [--ranks 1024] [--spans 1000000] [--quick] [--json]

Plotly is `pip install plotly`: one WebGL line trace an account, its JavaScript inside the page.
Perfetto's UI is on no package registry; what is measured of it is the trace that it would open.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _wide
import pages
from _table import Column, Report, Row, Sheet, options
from playwright.sync_api import Page, TimeoutError, sync_playwright

import torchett as ett
from torchett.fleet import Fleet
from torchett.runs.reader import RunReader
from torchett.sinks import perfetto_protobuf

_PATIENCE_S = 90


def plotly_page(run: Path, target: Path) -> Row:
    """The page with every segment as a line, and what making it took."""
    import numpy as np
    import plotly.graph_objects as go

    began = time.process_time()
    table = ett.load(run).timeline()
    rank = table["rank"].to_numpy()
    account = np.asarray(table["account"].to_pylist())
    t0, t1 = (table[name].to_numpy() / 1e9 for name in ("t0_ns", "t1_ns"))
    figure = go.Figure()
    for name in sorted(set(account.tolist())):
        mine = account == name
        x = np.stack([t0[mine], t1[mine], np.full(mine.sum(), np.nan)], axis=1).ravel()
        y = np.repeat(rank[mine].astype(float), 3)
        y[2::3] = np.nan
        figure.add_trace(go.Scattergl(x=x, y=y, mode="lines", name=name, line={"width": 2}))
    figure.write_html(target, include_plotlyjs=True)
    return {"make_s": time.process_time() - began, "mb": target.stat().st_size / 1e6}


def measured(page: Page, what: str, url: str, painted: str, box: str) -> Row:
    """First paint in ms, then the gaps between frames while zooming and panning."""
    began = time.monotonic()
    row: Row = {"what": what, "first_ms": None, "median_ms": None, "worst_ms": None}
    try:
        page.goto(url, timeout=1000 * _PATIENCE_S)
        page.wait_for_function(painted, timeout=1000 * _PATIENCE_S)
    except TimeoutError:
        return row
    row["first_ms"] = 1000 * (time.monotonic() - began)
    place = page.locator(box).first.bounding_box()
    assert place
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 3
    page.mouse.move(x, y)
    page.evaluate(pages._FRAMES)
    for _ in range(10):
        page.mouse.wheel(0, -120)
        page.wait_for_timeout(20)
    page.mouse.down()
    for i in range(12):
        page.mouse.move(x - 12 * i, y)
        page.wait_for_timeout(16)
    page.mouse.up()
    page.wait_for_timeout(500)
    gaps = sorted(page.evaluate("window.gaps"))
    row |= {"median_ms": gaps[len(gaps) // 2], "worst_ms": gaps[-1]}
    return row


def browsed(folder: Path, run: Path, plotly: Path) -> list[Row]:
    with (
        pages.served(folder / "fleet") as (url, _),
        sync_playwright() as play,
    ):
        browser = play.chromium.launch(
            executable_path=pages.CHROMIUM,
            args=["--no-sandbox", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"],
        )
        page = browser.new_context(viewport={"width": 1400, "height": 950}).new_page()
        ours = "() => document.getElementById('lanes')?.dataset.painted"
        key = f"{url}/timeline/default/{run.name}"
        rows = [
            measured(page, what, key, ours, "#lanes-canvas")
            for what in ("torchett, run not read yet", "torchett, run read")
        ]
        drawn = "() => document.querySelector('.gl-canvas, .main-svg .plot') && window.Plotly"
        page.close()
        page = browser.new_context(viewport={"width": 1400, "height": 950}).new_page()
        page.set_default_timeout(1000 * _PATIENCE_S)
        rows.append(measured(page, "Plotly, WebGL", plotly.as_uri(), drawn, ".nsewdrag"))
        browser.close()
    return rows


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--spans", type=int, default=1_000_000)
    asked: Any = parser.parse_args()
    if asked.quick:
        asked.ranks, asked.spans = 64, 20_000
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run = _wide.write(folder / "wide", asked.ranks, asked.spans, time.time() - 7200)
        with Fleet.open(folder / "fleet") as fleet:
            fleet.roll_up([run])
        plotly = folder / "plotly.html"
        files = [{"what": "Plotly page", **plotly_page(run, plotly)}]
        trace = folder / "trace.perfetto"
        began = time.process_time()
        reader = RunReader(run).poll()
        with trace.open("wb") as file:
            file.writelines(perfetto_protobuf.write(reader.ledger(), reader.history()))
        files.append({"what": "Perfetto trace", "make_s": time.process_time() - began,
                      "mb": trace.stat().st_size / 1e6})  # fmt: skip
        rows = browsed(folder, run, plotly)
    ms = "{:.0f}".format
    report = Report("timeline_peers", [
        Sheet("made beforehand", [Column("what", "what"),
              Column("make_s", "CPU s", "{:.1f}".format),
              Column("mb", "MB", "{:.1f}".format)], files),
        Sheet("in Chromium", [Column("what", "page"), Column("first_ms", "first paint ms", ms),
              Column("median_ms", "median frame ms", ms),
              Column("worst_ms", "longest frame ms", ms)], rows),
    ])  # fmt: skip
    report.show(asked.json)


if __name__ == "__main__":
    sys.exit(main())
