"""What a launcher asked for comes aboard before the script, and never in its way."""

import os
import subprocess
import sys
from pathlib import Path

from torchett.launch.standby import FRESH
from torchett.record.boarding import SITE


def python(code: str, folder: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    return interpreter(["-c", code], folder, **env)


def interpreter(argv: list[str], folder: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([SITE, str(folder), str(Path(SITE).parents[2])])
    return subprocess.run(
        [sys.executable, *argv],
        env=os.environ | {"PYTHONPATH": path} | env,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_module_comes_aboard_before_the_script(tmp_path: Path) -> None:
    (tmp_path / "aboard.py").write_text("def board(): print('aboard')")
    done = python("print('script')", tmp_path, ETT_BOARD="aboard")
    assert done.stdout.split() == ["aboard", "script"]
    assert done.stderr == ""


def test_nothing_comes_aboard_when_all_is_disabled(tmp_path: Path) -> None:
    (tmp_path / "aboard.py").write_text("def board(): print('aboard')")
    assert python("", tmp_path, ETT_BOARD="aboard", ETT_DISABLE="1").stdout == ""


def test_what_fails_says_so_in_a_line_and_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def board(): raise OSError('no room')")
    done = python("print('script')", tmp_path, ETT_BOARD="broken,missing")
    assert done.stdout.split() == ["script"]
    assert done.stderr.splitlines() == [
        "torchett: broken is off: OSError: no room",
        "torchett: missing is off: ModuleNotFoundError: No module named 'missing'",
    ]


def test_the_users_own_sitecustomize_runs_too_and_ours_is_not_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    code = "import sys, sitecustomize; print(sitecustomize.__file__); print(*sys.path, sep='\\n')"
    done = python(code, tmp_path)
    assert done.stdout.splitlines()[:2] == ["theirs", str(tmp_path / "sitecustomize.py")]
    assert SITE not in done.stdout


def test_a_process_that_is_to_be_a_rank_has_the_users_own_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    (tmp_path / "aboard.py").write_text("def board(): print('aboard')")
    (tmp_path / "script.py").write_text("import sys; print('script', sys.path)")
    script = str(tmp_path / "script.py")
    done = interpreter(["-u", "-m", FRESH, script], tmp_path, ETT_BOARD="aboard")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["theirs", "aboard", "script"]
    assert SITE not in done.stdout


def test_when_imported_waits_for_the_import_and_keeps_the_loader(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("import pack.part")
    (tmp_path / "pack" / "part.py").write_text("x = 1")
    code = """if True:
        from torchett.record.boarding import when_imported
        when_imported("pack.part", lambda module: print("part", module.x))
        when_imported("pack", lambda module: print("pack", module.part.x))
        when_imported("pack", lambda module: 1 / 0)
        when_imported("sys", lambda module: print("early", module.__name__))
        print("before")
        import pack
        print(type(pack.__loader__).__name__, type(pack.__spec__.loader).__name__)
        when_imported("pack", lambda module: print("late"))
    """
    done = python(code, tmp_path)
    assert done.stdout.splitlines() == [
        "early sys",
        "before",
        "part 1",
        "pack 1",
        "SourceFileLoader SourceFileLoader",
        "late",
    ]
    assert "<lambda> of pack is off: ZeroDivisionError" in done.stderr


def test_two_finders_that_look_behind_others_do_not_ask_each_other(tmp_path: Path) -> None:
    """Both are on the path at once where imports are timed and somebody waits for one."""
    (tmp_path / "pack.py").write_text("x = 1")
    code = """if True:
        import sys
        from torchett.record.boarding import when_imported
        from torchett.record.hooks.imports import Imports
        timed = Imports(lambda name, began, ended: print("timed", name))
        when_imported("pack", lambda module: print("announced", module.x))
        timed.watch()
        import pack
        when_imported("missing", lambda module: None)
        sys.meta_path.append(sys.meta_path.pop(0))  # in whatever order
        try:
            import missing
        except ModuleNotFoundError:
            print("not found")
    """
    done = python(code, tmp_path)
    assert done.stdout.splitlines() == ["announced 1", "timed pack", "not found"], done.stderr
