"""Where torch has no bytecode, a job keeps its own; elsewhere Python is left alone."""

import os
import py_compile
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from torchett.launch.imports import bytecode
from torchett.launch.imports.ahead import sources
from torchett.launch.settings.levers import Levers
from torchett.record.plugins import SITE

TELL = "import sys, torch; print(torch.answer, sys.pycache_prefix, torch.__spec__.cached)"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An installation without bytecode."""
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("answer = 42\n")
    return package


def with_plugin(image: Path, folder: Path, **more: str) -> str:
    """What a boarded process says that imports torch from that installation."""
    src = str(Path(bytecode.__file__).parents[2])
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "PYTHONDONT"))}
    env |= {"PYTHONPATH": os.pathsep.join((SITE, str(image.parent), src))}
    env |= {"ETT_PLUGINS": "torchett.launch.imports.bytecode", "ETT_BYTECODE": str(folder), **more}
    command = [sys.executable, "-c", TELL]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("forbidden", ["", "1"])
def test_an_image_without_bytecode_gets_it_in_the_folder(
    image: Path, tmp_path: Path, forbidden: str
) -> None:
    folder = tmp_path / "kept"
    said = with_plugin(image, folder, PYTHONDONTWRITEBYTECODE=forbidden).split()
    assert said[:2] == ["42", str(folder)]
    assert Path(said[2]).is_file()
    assert folder in Path(said[2]).parents
    assert not list(image.rglob("*.pyc"))


def test_what_was_kept_is_read_again_and_not_if_the_source_has_changed(
    image: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    kept = Path(with_plugin(image, folder).split()[2])
    written = kept.stat().st_mtime_ns
    with_plugin(image, folder)
    assert kept.stat().st_mtime_ns == written
    (image / "__init__.py").write_text("answer = 4711\n")
    assert with_plugin(image, folder).startswith("4711 ")


def test_python_is_left_alone_where_torch_has_bytecode(image: Path, tmp_path: Path) -> None:
    py_compile.compile(str(image / "__init__.py"))
    assert " None " in with_plugin(image, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_it_can_be_turned_off(image: Path, tmp_path: Path) -> None:
    assert " None " in with_plugin(image, tmp_path / "kept", ETT_BYTECODE="0")


def test_a_folder_that_others_can_write_to_is_not_used(image: Path, tmp_path: Path) -> None:
    """What lies there is run."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert " None " in with_plugin(image, folder)


def test_many_cores_compile_ahead_and_only_once(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (image / "nn").mkdir()
    (image / "nn" / "__init__.py").write_text("")
    (image / "nn" / "of_a_python_to_come.py").write_text("no such = statement")
    (image / "tests").mkdir()
    (image / "tests" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "path", [str(image.parent)])
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(8)})
    ahead = bytecode.compile_ahead()
    assert ahead is not None
    assert ahead.wait(60) == 0
    below = Path(cache_from_source(str(image / "__init__.py"))).parent
    found = sorted(path.parent.name for path in below.rglob("*.pyc"))
    assert found == ["nn", "torch"]
    assert not [*image.rglob("*.pyc")]
    assert bytecode.compile_ahead() is None


def test_what_torch_imports_first_is_compiled_first(tmp_path: Path) -> None:
    sizes = {"_inductor/ir.py": 9, "nn/a.py": 1, "nn/b.py": 2, "_C/x.py": 3, "__init__.py": 1}
    for name, size in sizes.items():
        path = tmp_path / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#" * size)
    found = [Path(path).relative_to(tmp_path / "torch") for path in sources([f"{tmp_path}/torch"])]
    wanted = ["__init__.py", "nn/b.py", "nn/a.py", "_inductor/ir.py", "_C/x.py"]
    assert [*map(str, found)] == wanted


def test_few_cores_are_left_to_whoever_imports(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(image.parent)])
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert bytecode.compile_ahead() is None


def test_a_job_has_it_unless_its_command_is_to_stay_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ETT_BYTECODE", "/chosen")
    assert Levers().settings["ETT_BYTECODE"] == "/chosen"
    assert "torchett.launch.imports.bytecode" in Levers().plugins
    off = dict.fromkeys(("hooks", "pins", "bytecode"), False)
    as_is = Levers(**off)
    assert as_is.plugins == ()
    assert "ETT_BYTECODE" not in as_is.settings
