"""Two jobs on one page: both timelines on one scale, every account, nothing from elsewhere."""

import re

from torchett.ledger.history import settle
from torchett.report.pages.two_jobs import Exhibit, page
from torchett.runs import events

JOB = """
{"event":"job","format":"events/1","job":"NAME","ranks":1}
{"event":"attempt_start","attempt":0,"t":0}
{"event":"span","attempt":0,"rank":0,"account":"imports","t0":0,"t1":START}
{"event":"step","attempt":0,"rank":0,"step":0,"t0":START,"t1":END}
{"event":"attempt_end","attempt":0,"t":END,"outcome":"success"}
"""


def exhibit(tmp_path, name: str, start: int, end: int) -> Exhibit:  # type: ignore[no-untyped-def]
    file = tmp_path / f"{name}.jsonl"
    text = JOB.strip().replace("NAME", name)
    file.write_text(text.replace("START", str(start)).replace("END", str(end)) + "\n")
    history = events.read(file)
    return Exhibit(title=name, ledger=settle(history), history=history)


def test_both_jobs_are_drawn_on_one_scale(tmp_path) -> None:  # type: ignore[no-untyped-def]
    before, after = exhibit(tmp_path, "before", 30, 60), exhibit(tmp_path, "after", 10, 40)
    html = page("A < B", ["so & so"], before, after)
    assert "A &lt; B" in html
    assert "so &amp; so" in html
    widths = [
        sum(float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', drawn))
        for drawn in re.findall(r"<svg.*?</svg>", html)
    ]
    assert [round(width) for width in widths] == [1080, 720]
    assert "50.0%" in html
    assert "75.0%" in html
    assert not re.search(r"(src|href)=|@import|url\(", html)


def test_the_last_label_of_the_axis_stays_in_the_picture(tmp_path) -> None:  # type: ignore[no-untyped-def]
    job = exhibit(tmp_path, "job", 30, 60)
    labels = re.findall(r'<text class="axis" ([^>]*)>(\d+) s<', page("A", [], job, job))
    assert ('x="1078.0" text-anchor="end" y="60"', "60") in labels
    assert ('x="2.0" y="60"', "0") in labels
