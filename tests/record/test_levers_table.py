"""The table in which levers register themselves: whole, cheap to read, and right."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from torchett.launch.settings.levers import Levers
from torchett.launch.standby.pool import standby_imports
from torchett.record import levers

WING = Path(levers.__file__).parents[1] / "levers"


def test_every_lever_has_a_row() -> None:
    folders = {path.name for path in WING.iterdir() if (path / "__init__.py").exists()}
    rows = {path.parent.name for path in WING.glob("*/lever.py")}
    assert rows == folders - {"publish"}  # which needs nothing in a trainer
    assert len(levers.all_levers()) == len(rows)


@pytest.mark.parametrize("plugin", levers.all_plugins(), ids=lambda plugin: plugin.module)
def test_every_plugin_can_be_installed(plugin: levers.Plugin) -> None:
    assert callable(import_module(plugin.module).install_plugin)


def test_what_a_standby_imports_is_there() -> None:
    pytest.importorskip("torch")
    from importlib.util import find_spec

    ours = [name.partition(":")[0] for name in standby_imports() if name.startswith("torchett.")]
    assert len(ours) > 5
    assert [name for name in ours if find_spec(name) is None] == []


def test_options_choose_from_the_table() -> None:
    plain, more = Levers().plugins, Levers(audit=True, light_batches=True, compile_cache="/c")
    asked = {each.module for each in levers.all_plugins() if each.default == "asked"}
    assert not asked & set(plain)
    added = {"communication.audit", "batches.light", "compile.cache.plugin"}
    assert set(more.plugins) - set(plain) == {f"torchett.levers.{name}" for name in added}


def test_reading_the_table_imports_no_lever_and_needs_only_the_path(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(WING.parents[1])!r})\n"
        "from torchett.record.levers import all_plugins\n"
        "assert all_plugins()\n"
        "ours = [name for name in sys.modules if name.startswith('torchett.levers.')]\n"
        "print(*ours, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-I", "-S", "-c", code]  # without installed packages
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    *modules, has_torch = done.stdout.split()
    assert has_torch == "False"
    parts = {name.split(".")[3] for name in modules if name.count(".") > 2}
    assert parts <= {"lever", "errors"}  # an error tree that a room exports
