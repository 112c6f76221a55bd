"""Jobs side by side as one HTML page: timelines above each other on one scale, then the accounts.

The page needs nothing but itself: no script, no font, no picture from elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.ledger.pixels import Box, boxes, shown_ranks
from torchett.ledger.timeline import timeline
from torchett.model.accounts import GROUP_COLOURS, GROUPS, account
from torchett.model.durations import duration
from torchett.report.comparison import moves
from torchett.report.grid import Grid
from torchett.report.marks import TITLES
from torchett.report.words import percent

_WIDTH = 1080  # of a timeline, in its own units
_HEIGHT = 46
_STRIP_RANKS = 16  # that a timeline is drawn from
_LABEL = 45  # as wide as a tick's may be
_TICKS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 6 * 3600, 24 * 3600)
STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #667085; --paper: #fff; --line: #e4e7ec }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --dim: #98a2b3; --paper: #14181f; --line: #2b313c } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1080px; margin: 2.5rem auto; padding: 0 1.2rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.05rem; margin: 2.2rem 0 .4rem }
p { color: var(--dim); margin: .3rem 0 1rem }
.big { font-size: 2.6rem; font-weight: 650; color: #2e9e5b; line-height: 1.1 }
.was { font-size: 1.4rem; color: var(--dim) }
svg { width: 100%; height: auto; display: block; border-radius: 4px }
.axis { fill: var(--dim); font: 11px system-ui } .tick { stroke: var(--line) }
small { font-weight: 400; color: var(--dim) } .gone { fill: #c93535 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { text-align: right; font-weight: 500; color: var(--dim); border-bottom: 1px solid var(--line) }
td { text-align: right; padding: .16rem .5rem; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
tr.group td { font-weight: 600 }
.bar { display: inline-block; height: .7em; border-radius: 2px; vertical-align: baseline }
.legend span { margin-right: 1.1rem; white-space: nowrap; color: var(--dim) }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px;
  margin-right: .35em; vertical-align: -.05em }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """One job to show."""

    title: str
    ledger: Ledger
    history: History


def page(
    title: str,
    said: Sequence[str],
    before: Exhibit,
    after: Exhibit,
    tables: Mapping[str, Grid] | None = None,
) -> str:
    """The whole page; `said` are paragraphs under the title, `tables` stand at the end by title."""
    whole_ns = max(before.ledger.window_ns, after.ledger.window_ns)
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in said),
        f'<div><span class="was">{before.ledger.ett_percent:.1f}%&nbsp;→&nbsp;</span>'
        f'<span class="big">{after.ledger.ett_percent:.1f}%</span>'
        ' <span class="was">of the time trained</span></div>',
        legend(),
        *(_timeline(exhibit, whole_ns) for exhibit in (before, after)),
        "<h2>Where the rank-seconds went</h2>",
        _accounts(before, after),
        *(f"<h2>{escape(name)}</h2>{table.to_html()}" for name, table in (tables or {}).items()),
    ]
    return document(title, STYLE, parts)


def document(title: str, style: str, parts: Sequence[str]) -> str:
    """An HTML document with these parts, one after the other."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{style}</style><body>{''.join(parts)}</body></html>\n"
    )


def legend() -> str:
    marks = (
        f'<span><i style="background:{GROUP_COLOURS[group]}"></i>{TITLES[group]}</span>'
        for group in GROUPS
    )
    return f'<p class="legend">{"".join(marks)}</p>'


def _timeline(exhibit: Exhibit, whole_ns: int) -> str:
    """A job as one strip, attempt after attempt; ▾ where one ended in failure."""
    ledger, history = exhibit.ledger, exhibit.history
    scale = _WIDTH / whole_ns if whole_ns else 0.0
    window = ledger.window
    segments = timeline(ledger, history, shown_ranks(ledger.ranks, _STRIP_RANKS))
    cells = max(1, round(ledger.window_ns * scale))
    drawn = [_rect(box) for box in boxes(segments, window.start_ns, window.end_ns, cells)]
    for attempt in ledger.attempts:
        if attempt.tenure.failed:
            x = (attempt.tenure.hi_ns - window.start_ns) * scale
            drawn.append(f'<text class="gone" x="{x - 5:.1f}" y="9" font-size="11">▾</text>')
    facts = f"{duration(ledger.window_ns)}, {ledger.ett_percent:.1f}% effective"
    return (
        f"<h2>{escape(exhibit.title)} <small>{facts}</small></h2>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 18}" role="img">'
        f"{''.join(drawn)}{axis(whole_ns, scale, _HEIGHT)}</svg>"
    )


def _rect(box: Box) -> str:
    return (
        f'<rect x="{box.begin}" y="12" width="{box.end - box.begin}" height="{_HEIGHT - 12}"'
        f' fill="{colour(box)}"><title>{escape(box.account)}</title></rect>'
    )


def colour(box: Box) -> str:
    """The colour of a box on a page: one for all of recovery, else its account's."""
    return GROUP_COLOURS["recover"] if box.group == "recover" else account(box.account).colour


def axis(whole_ns: int, scale: float, top: int) -> str:
    """Ticks and labels of the wall time, below a drawing of this height."""
    step_s = next((s for s in _TICKS_S if whole_ns / 1e9 / s < 14), _TICKS_S[-1])
    ticks = []
    for i in range(int(whole_ns / 1e9 / step_s) + 1):
        x = i * step_s * 1e9 * scale
        at_edge = x > _WIDTH - _LABEL  # there it stands left of its tick, not beyond the picture
        place = f'x="{x - 2:.1f}" text-anchor="end"' if at_edge else f'x="{x + 2:.1f}"'
        ticks.append(
            f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + 4}"/>'
            f'<text class="axis" {place} y="{top + 14}">{i * step_s} s</text>'
        )
    return "".join(ticks)


def _accounts(before: Exhibit, after: Exhibit) -> str:
    a, b = before.ledger, after.ledger
    most = max((max(move.a_s, move.b_s) for move in moves(a, b)), default=1.0)
    by_group = {group: [m for m in moves(a, b) if m.group == group] for group in GROUPS}
    rows = []
    for group in GROUPS:
        ours, theirs = a.groups[group] / 1e9, b.groups[group] / 1e9
        if max(ours, theirs) < 0.05:
            continue
        rows.append(_row(TITLES[group], GROUP_COLOURS[group], ours, theirs, most, "group", a, b))
        if [move.account for move in by_group[group]] != [group]:
            shown = [m for m in by_group[group] if max(m.a_s, m.b_s) >= 0.05]
            for move in sorted(shown, key=lambda m: -max(m.a_s, m.b_s)):
                shade = GROUP_COLOURS[group] if group == "recover" else account(move.account).colour
                name = "\u2003" + move.account
                rows.append(_row(name, shade, move.a_s, move.b_s, most, "leaf", a, b))
    head = "".join(
        f"<th>{escape(word)}</th>"
        for word in ("account", before.title, "", after.title, "", "change", "share")
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _row(
    name: str, colour: str, ours: float, theirs: float, most: float, kind: str, a: Ledger, b: Ledger
) -> str:
    def cell(value: float) -> str:
        wide = 0 if most == 0 else 110 * value / most
        bar = f'<span class="bar" style="width:{wide:.1f}px;background:{colour}"></span>'
        return f"<td>{value:,.1f}</td><td style='text-align:left;width:120px'>{bar}</td>"

    shares = f"{percent(int(ours * 1e9), a.rank_ns)} → {percent(int(theirs * 1e9), b.rank_ns)}"
    return (
        f'<tr class="{kind}"><td>{escape(name)}</td>{cell(ours)}{cell(theirs)}'
        f"<td>{theirs - ours:+,.1f}</td><td>{shares}</td></tr>"
    )
