"""One job on one page: every account, a row per rank, nothing from elsewhere."""

import re
from pathlib import Path

from torchett.ledger.history import settle
from torchett.ledger.pixels import boxes
from torchett.ledger.timeline import timeline
from torchett.report.pages.job import job_page
from torchett.runs import events

JOB = """
{"event":"job","format":"events/1","job":"<job>","ranks":2}
{"event":"attempt_start","attempt":0,"t":0}
{"event":"span","attempt":0,"rank":0,"account":"imports","t0":0,"t1":20}
{"event":"span","attempt":0,"rank":1,"account":"x-own","t0":0,"t1":20}
{"event":"step","attempt":0,"rank":0,"step":0,"t0":20,"t1":60}
{"event":"step","attempt":0,"rank":1,"step":0,"t0":20,"t1":50}
{"event":"attempt_end","attempt":0,"t":60,"outcome":"failed","cause":"<cause>"}
{"event":"attempt_start","attempt":1,"t":70}
{"event":"step","attempt":1,"rank":0,"step":0,"t0":80,"t1":100}
{"event":"attempt_end","attempt":1,"t":100,"outcome":"success"}
"""


def test_the_page_shows_every_account_and_escapes_what_users_wrote(tmp_path: Path) -> None:
    file = tmp_path / "job.jsonl"
    file.write_text(JOB.strip() + "\n")
    history = events.read(file)
    ledger = settle(history)
    html = job_page(ledger, history)
    assert "<job>" not in html
    assert "&lt;cause&gt;" in html
    for name in ledger.accounts:
        assert name in html
    assert not re.search(r"(src|href)=|@import|url\(|<script", html)
    assert re.findall(r'aria-label="rank (\d+)"', html) == ["0", "1"]  # a timeline of each rank


def test_a_rank_is_drawn_from_the_begin_of_the_window_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "job.jsonl"
    file.write_text(JOB.strip() + "\n")
    history = events.read(file)
    ledger = settle(history)
    rows = []
    for rank in (0, 1):
        mine = timeline(ledger, history, [rank])
        rows.append(list(boxes(mine, ledger.window.start_ns, ledger.window.end_ns, 100)))
    assert [(box.begin, box.end, box.account) for box in rows[0]] == [
        (0, 20, "imports"),
        (20, 60, "unsaved"),
        (60, 70, "restart_gap"),
        (70, 80, "unattributed"),
        (80, 100, "effective"),
    ]
    named = {box.account for box in rows[1]}
    assert named == {"x-own", "unsaved", "detect", "restart_gap", "unattributed"}
