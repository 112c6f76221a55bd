"""Plain English: words and phrases that this project does not use, because readers stumble.

Each has a plain one: `whoever asks` is `the caller`, `brought aboard` is `installed`, `it hears` is
`it receives`, `buried` is `waited for`, `whence` is `from where`.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MANNERED = re.compile(
    r"\b(aboard|boarding|bury|buried|cooked|whoever|whom|whosoever|hears|hither|thither|lest|begot"
    r"|perchance|betwixt|thereof|whereupon|heretofore|toll|breathes|last breath|stands? aside"
    r"|for the eye|who asks|takes? its word|is suffered|nobody asked|in the midst of)\b",
    re.IGNORECASE,
)
PAGES = [
    *(path for end in ("py", "toml", "html", "js") for path in (ROOT / "src").rglob(f"*.{end}")),
    *(ROOT / "examples").rglob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
]


def mannered(text: str) -> list[str]:
    return [
        f"line {number}: {found[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for found in MANNERED.finditer(line)
    ]


@pytest.mark.parametrize("line", ["Whoever asks gets it.", "brought aboard", "it hears nothing"])
def test_they_are_seen(line: str) -> None:
    assert mannered(line)


def test_plain_words_are_let_through() -> None:
    assert not mannered("A reader that asks gets it; somebody else's object; overboarding")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_mannered_word(page: Path) -> None:
    assert mannered(page.read_text(encoding="utf-8")) == []
