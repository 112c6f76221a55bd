"""Every `ett …` in the documents is a command that there is, with options that it has."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from torchett.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_OVER = re.compile(r"\s+(#|\||&&|;|>|<).*")  # what a shell reads as another command or a comment


def commands(page: Path) -> Iterator[str]:
    """The commands in shell blocks and in backticks, as they stand."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```(?:sh|bash|shell)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.search(r"(?:^|[;&|]\s*|srun |exec )((?:[A-Z_]+=\S+ )*ett .*)", line):
                yield re.sub(r"^(?:[A-Z_]+=\S+ )*", "", found[1])
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"`(ett [^`\n]+)`", text):
        yield line.replace("\\|", "|")


EVERY = [(page, line) for page in PAGES for line in commands(page)]


def plain(line: str) -> list[str]:
    """The words of a command: without what is optional, and the first where one is to choose."""
    line = _OVER.sub("", re.sub(r"\[([^\]]*)\]", r"\1", line) + " ")
    return [word.split("|")[0].strip("…") for word in shlex.split(line) if word != "…"][1:]


def problem(words: list[str]) -> str | None:
    """Why click would refuse these words; not for values that stand for another."""
    command: click.Command = main
    ctx = click.Context(main, info_name="ett")
    while isinstance(command, click.Group):
        if not words or words[0].startswith("-"):
            break
        found = command.get_command(ctx, words[0])
        if found is None:
            return f"no command '{words[0]}'"
        command, words = found, words[1:]
    try:
        command.make_context(command.name, list(words), parent=ctx)
    except click.exceptions.NoSuchOption as error:
        return str(error)
    except (click.exceptions.Exit, click.UsageError):
        pass  # --help; a word that stands for a value, or one that is left out
    return None


def test_there_are_many() -> None:
    assert len(EVERY) > 60


@pytest.mark.parametrize("line", ["ett rum -- x", "ett run --jop x -- y", "ett fleet rolup"])
def test_a_wrong_one_is_seen(line: str) -> None:
    assert problem(plain(line)) is not None


@pytest.mark.parametrize(("page", "line"), EVERY, ids=[f"{p.stem}:{c}" for p, c in EVERY])
def test_a_command_is_there(page: Path, line: str) -> None:
    assert problem(plain(line)) is None, f"{page.name}: {line}"
