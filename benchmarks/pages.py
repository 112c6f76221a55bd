"""A real Chromium clicks through every page of a fleet and of a live job.

    python benchmarks/pages.py [--jobs 1500] [--ranks 1024] [--spans 1000000] [--axe axe.min.js]
        [--shots FOLDER] [--parts seen,clicked,timeline,widths] [--quick] [--json]

No console error, no page wider than its window, no serious fault that axe-core finds (fetched by
`npm pack axe-core` unless given), first paint and frames of the timeline, server CPU and size of
each page. Playwright drives /usr/bin/chromium.
"""

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _wide
from _fleets import Regression, fill
from _table import Bar, Column, Report, Sheet, bar, options
from playwright.sync_api import Page, sync_playwright

from torchett.fleet.detector.regressions import Detector
from torchett.fleet.detector.settings import Settings
from torchett.fleet.detector.watch import look

CHROMIUM = "/usr/bin/chromium"
WIDTHS = (400, 1400, 2560)
PARTS = ("seen", "clicked", "timeline", "widths")
HOSTILE = '<img src=x onerror="document.title=1">\x1b[31m' + "y" * 1_000_000
_FRAMES = """() => { window.gaps = []; let last = performance.now(); const next = (now) => {
  window.gaps.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame(next); }"""


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--axe", type=Path, help="axe.min.js, where npm is not at hand")
    parser.add_argument("--shots", type=Path, help="keep screenshots here")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, with commas")
    asked = parser.parse_args()
    if asked.quick:
        asked.jobs, asked.ranks, asked.spans = 200, 64, 20_000
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        axe = (asked.axe or axe_script(folder)).read_text()
        prepared(folder, asked)
        report = Report("pages")
        with served(folder / "fleet") as (url, process):
            walked(url, process, axe, asked, report)
    report.show(asked.json)


def axe_script(folder: Path) -> Path:
    subprocess.run(["npm", "pack", "axe-core@4", "--silent"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    (packed,) = folder.glob("axe-core-*.tgz")
    with tarfile.open(packed) as tar:
        tar.extractall(folder, filter="data")
    return folder / "package" / "axe.min.js"


def prepared(folder: Path, asked: Any) -> None:
    """A fleet of 90 days with a regression, a job of many ranks, a live one, a hostile one."""
    now_s = time.time()
    put = Regression(
        since_s=now_s - 3 * 86400, labels={"team": "ads", "torch": "2.15"},
        account="recompile", points=20.0,
    )  # fmt: skip
    fleet = fill(folder / "fleet", end_s=now_s, days=90, jobs=asked.jobs, regressions=[put])
    wide = _wide.write(folder / "wide", asked.ranks, asked.spans, now_s - 7200)
    bad = _wide.write(folder / "bad", 4, 400, now_s - 86400)
    live = folder / "live"
    shutil.copytree(bad, live)
    log = next(live.glob("attempts-*.jsonl"))
    lines = log.read_text().splitlines()
    log.write_text("\n".join(line for line in lines if '"success"' not in line) + "\n")
    fleet.roll_up([wide, live], labels={"team": "language", "model": "gpt"})
    fleet.roll_up([bad], labels={"team": HOSTILE, "model": HOSTILE[:300]})
    look(fleet, Detector(Settings()), now_s)
    fleet.close()


@contextmanager
def served(fleet: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    code = "from torchett.cli.main import main; main()"
    args = [sys.executable, "-c", code, "serve", "--fleet", str(fleet), "--port", str(port)]
    process = subprocess.Popen(args, stderr=subprocess.DEVNULL, cwd=fleet)
    try:
        for _ in range(300):
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait(20)


def walked(url: str, process: Any, axe: str, asked: Any, report: Report) -> None:
    parts = asked.parts.split(",")
    errors: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1400, "height": 950}, bypass_csp=True)
        page = context.new_page()
        watched(page, errors)
        paths = ["/fleet", "/fleet?team=ads&days=30", "/jobs", "/jobs?q=team%3Aads&sort=-ett",
                 "/job/default/live", "/job/default/bad", "/timeline/default/live",
                 "/compare?a=default/live&b=default/bad", f"/compare?{_weeks(page, url)}",
                 "/alerts"]  # fmt: skip
        if "seen" in parts:
            add_seen(page, url, [*paths, f"/job/{_worst(page, url)}"], axe, process, report)
        if "clicked" in parts:
            clicked(page, url)
        if "timeline" in parts:
            add_timeline(page, url, report)
        if "widths" in parts:
            shown = [*paths, "/timeline/default/wide"]
            widths = fitted(browser, url, shown, errors, asked.shots)
            said = "; ".join(widths[:4]) or "none"
            report.bars.append(Bar("pages wider than their window", "none", said, not widths))
        browser.close()
    report.bars.append(Bar("console errors", "none", "; ".join(errors[:3]) or "none", not errors))


def add_seen(
    page: Page, url: str, paths: list[str], axe: str, process: Any, report: Report
) -> None:
    """Each page: its size, what it costs, and what axe-core says."""
    rows, faults = [], []
    for path in paths:
        row, serious = seen(page, url, path, axe, process)
        rows.append(row)
        faults += serious
    columns = [Column("path", "page"), Column("bytes", "bytes", "{:,}".format),
               Column("cpu_ms", "server CPU ms, first", "{:.0f}".format),
               Column("again_ms", "again", "{:.0f}".format),
               Column("faults", "axe: serious", str)]  # fmt: skip
    report.sheets.append(Sheet("pages", columns, rows))
    largest = max(row["bytes"] for row in rows)
    dearest = max(row["cpu_ms"] for row in rows if row["path"].startswith("/fleet"))
    report.bars += [
        Bar("serious faults of axe-core", "none", "; ".join(faults[:4]) or "none", not faults),
        bar("largest page", "≤ 200 KB", largest / 1000, largest <= 200_000, "KB"),
        bar("fleet page, server CPU", "≤ 300 ms", dearest, dearest <= 300, "ms"),
    ]


def add_timeline(page: Page, url: str, report: Report) -> None:
    timeline = timed_timeline(page, url)
    report.sheets.append(
        Sheet("timeline", [Column("what", "what"), Column("ms", "ms", "{:.0f}".format)], timeline)
    )
    took = {row["what"]: row["ms"] for row in timeline}
    report.bars += [
        bar("timeline, first paint", "≤ 1 s", took["first paint"], took["first paint"] <= 1000,
            "ms"),
        bar("timeline, longest frame", "≤ 100 ms", took["longest frame"],
            took["longest frame"] <= 100, "ms"),
    ]  # fmt: skip


def watched(page: Page, errors: list[str]) -> None:
    page.on("console", lambda m: errors.append(m.text[:200]) if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)[:200]))


def _worst(page: Page, url: str) -> str:
    found = page.request.get(f"{url}/fleet.json").json()["worst"]
    return str(next(one["key"] for one in found if "live" not in one["key"]))


def _weeks(page: Page, url: str) -> str:
    return str(page.request.get(f"{url}/fleet.json").json()["weeks"])


def _cpu_s(process: Any) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seen(
    page: Page, url: str, path: str, axe: str, process: Any
) -> tuple[dict[str, Any], list[str]]:
    """One page: its size and cost, and what axe-core says of it in light and dark."""
    costs = []
    for _ in range(2):
        before = _cpu_s(process)
        body = page.request.get(f"{url}{path}").body()
        costs.append(1000 * (_cpu_s(process) - before))
    faults: list[str] = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(f"{url}{path}")
        page.wait_for_timeout(500)
        page.evaluate(axe)
        found = page.evaluate("axe.run().then((r) => r.violations)")
        faults += [
            f"{path} {scheme}: {one['id']} ({len(one['nodes'])}) {one['nodes'][0]['html'][:80]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
    row = {"path": path, "bytes": len(body), "cpu_ms": costs[0], "again_ms": costs[1],
           "faults": len(faults)}  # fmt: skip
    return row, faults


def clicked(page: Page, url: str) -> None:
    """Every control once."""
    page.goto(f"{url}/fleet")
    page.wait_for_selector("#band canvas")
    for unit in ("losses", "hours", "share"):
        page.click(f"[data-unit={unit}]")
    page.hover("#band")
    page.click("#band-table > summary")
    page.select_option("select[name=team]", "ads")
    page.wait_for_url("**team=ads**")
    for _ in range(3):
        page.click("#theme")
    page.click("nav a[href='/jobs']")
    page.fill("#q", "gpt")
    page.wait_for_url("**q=gpt**")
    page.click("thead a >> nth=1")
    page.wait_for_url("**sort=**")
    page.wait_for_timeout(300)
    page.keyboard.press("g")
    page.keyboard.press("a")
    page.wait_for_url("**/alerts")
    first = page.locator("article.alert").first
    if first.locator("details").count():
        first.locator("details summary").click()
    page.fill("input[name=who] >> nth=0", "ann")
    page.click("text=Acknowledge >> nth=0")
    page.wait_for_selector("text=acknowledged by ann")
    page.click("button:has-text('Mute') >> nth=0")
    page.wait_for_selector("text=muted now")
    page.click("button:has-text('End')")
    page.goto(f"{url}/job/default/live")
    for summary in page.locator(".fall details > summary").all():
        summary.click()
    page.click("text=Timeline")
    page.wait_for_selector("#lanes[data-painted]")
    page.focus("#lanes-canvas")
    for key in ("+", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "-", "0"):
        page.keyboard.press(key)
    for button in page.locator(".lanes-tools button").all():
        button.click()
    page.goto(f"{url}/compare")
    page.fill("input[name=a]", "default/live")
    page.fill("input[name=b]", "default/bad")
    page.click("button:has-text('Compare')")
    page.click("text=Swap")
    page.wait_for_timeout(300)


def timed_timeline(page: Page, url: str) -> list[dict[str, Any]]:
    """First paint with the run read already and not, then the gaps between frames."""
    path = f"{url}/timeline/default/wide"
    painted = []
    for _ in range(3):
        page.goto(path)
        page.wait_for_selector("#lanes[data-painted]", timeout=60_000)
        painted.append(float(page.get_attribute("#lanes", "data-painted") or 0))
    box = page.locator("#lanes-canvas").bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + 100
    page.mouse.move(x, y)
    page.evaluate(_FRAMES)
    for _ in range(25):
        page.mouse.wheel(0, -120)
        page.wait_for_timeout(20)
    page.mouse.down()
    for i in range(30):
        page.mouse.move(x - 12 * i, y)
        page.wait_for_timeout(16)
    page.mouse.up()
    page.mouse.move(x - 300, y + 20)
    page.wait_for_selector("#lanes-hover:not([hidden])", timeout=10_000)
    gaps = sorted(page.evaluate("window.gaps"))
    return [
        {"what": "first paint, the run not read yet", "ms": painted[0]},
        {"what": "first paint", "ms": min(painted[1:])},
        {"what": "median frame, zooming and panning", "ms": gaps[len(gaps) // 2]},
        {"what": "95% frame", "ms": gaps[int(0.95 * len(gaps))]},
        {"what": "longest frame", "ms": gaps[-1]},
    ]


def fitted(
    browser: Any, url: str, paths: list[str], errors: list[str], shots: Path | None
) -> list[str]:
    """Pages that must be scrolled sideways, at each width; with the policy in force."""
    wide = []
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": width, "height": 950}, color_scheme=scheme
            )
            page = context.new_page()
            watched(page, errors)
            for path in paths:
                page.goto(f"{url}{path}")
                page.wait_for_timeout(400)
                if path.startswith("/timeline"):
                    page.wait_for_selector("#lanes[data-painted]", timeout=60_000)
                if page.evaluate("document.documentElement.scrollWidth") > width:
                    wide.append(f"{path} at {width}")
                if shots is not None:
                    shots.mkdir(parents=True, exist_ok=True)
                    name = path.split("?")[0].strip("/").replace("/", "-")
                    page.screenshot(path=shots / f"{name}-{width}-{scheme}.png", full_page=True)
            context.close()
    return wide


if __name__ == "__main__":
    main()
