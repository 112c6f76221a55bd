"""docs/settings.md and docs/commands.md say what the code does."""

import re
import runpy
from pathlib import Path

import pytest

from torchett.launch.settings.switches import SWITCHES
from torchett.launch.settings.variables import VARIABLES

ROOT = Path(__file__).parents[2]
GENERATED = runpy.run_path(str(ROOT / "docs" / "generate.py"))


@pytest.mark.parametrize("name", ["settings.md", "commands.md"])
def test_a_page_is_current(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert page == GENERATED["pages"]()[name], "run: ./dev docs"


def test_every_variable_that_is_read_is_listed_and_the_other_way_round() -> None:
    read: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        if path.name != "variables.py":
            read |= set(re.findall(r"\bETT_[A-Z_]*[A-Z]\b", path.read_text()))
    listed = {one.name for one in VARIABLES}
    assert listed == read - {"ETT_NAME"}, "src/torchett/launch/settings/variables.py lists them"


@pytest.mark.parametrize("switch", [one.switch for one in SWITCHES if one.switch[:2] == "--"])
def test_every_switch_is_an_option_of_ett_run(switch: str) -> None:
    from torchett.cli.main import main

    run = main.commands["run"]
    known = {name for one in run.params for name in (*one.opts, *one.secondary_opts)}
    assert switch.split()[0] in known
