"""Pages from templates: one environment, one style sheet, the colours of the chart of accounts."""

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, FileSystemLoader
from markupsafe import Markup, escape

from torchett.model.accounts import ACCOUNTS, GROUP_COLOURS, GROUPS
from torchett.model.accounts import account as account_of
from torchett.model.durations import duration
from torchett.report.marks import TITLES
from torchett.report.words import plural

HERE = Path(str(files("torchett.report.pages")))
STYLE_SHEET = HERE / "static" / "torchett.css"
_CODE = re.compile(r"`([^`]+)`")
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
_LONGEST = 300


def environment(*folders: Path) -> Environment:
    """Templates of these folders and of this one; whatever they print is escaped and cut short."""
    loader = ChoiceLoader([FileSystemLoader(folder) for folder in (*folders, HERE / "templates")])
    made = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"code": code, "brief": brief, "duration": duration_or_dash, "signed": signed}
    made.globals |= {"groups": GROUPS, "titles": TITLES, "plural": plural}
    return made


@cache
def style() -> str:
    """The style sheet, with a class for the colour of every account and group."""
    own = account_of("x-own").colour
    rules = [f".a-{one.name}{{fill:{one.colour};--c:{one.colour}}}" for one in ACCOUNTS]
    rules += [f".g-{name}{{fill:{colour};--c:{colour}}}" for name, colour in GROUP_COLOURS.items()]
    rules.append(f".a-own{{fill:{own};--c:{own}}}")
    return STYLE_SHEET.read_text() + "\n".join(rules) + "\n"


def brief(value: object, most: int = _LONGEST) -> str:
    """A value as text on one line, without control codes, at most this long."""
    text = str(value)[: 4 * most]  # a megabyte is not worth cleaning
    text = " ".join(_CONTROL.sub("", text).split())
    return text if len(text) <= most and len(str(value)) <= 4 * most else f"{text[: most - 1]}…"


def code(text: str) -> Markup:
    """Escaped text; what stands between back quotes is set as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def duration_or_dash(value: float | None) -> str:
    return "–" if value is None else duration(round(value * 1e9))


def signed(value: float) -> str:
    """A change with its sign, to a tenth."""
    return f"{value:+.1f}".replace("-", "−")
