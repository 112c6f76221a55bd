"""Plugins are installed before the script, and never in its way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchett.launch.standby.rank_process import _MODULE
from torchett.record.plugins import SITE


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


def test_a_plugin_is_installed_before_the_script(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text("def install_plugin(): print('plugin')")
    done = python("print('script')", tmp_path, ETT_PLUGINS="plugin")
    assert done.stdout.split() == ["plugin", "script"]
    assert done.stderr == ""


def test_nothing_is_installed_when_all_is_disabled(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text("def install_plugin(): print('plugin')")
    assert python("", tmp_path, ETT_PLUGINS="plugin", ETT_DISABLE="1").stdout == ""


def test_what_fails_says_so_in_a_line_and_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def install_plugin(): raise OSError('no room')")
    done = python("print('script')", tmp_path, ETT_PLUGINS="broken,missing")
    assert done.stdout.split() == ["script"]
    assert done.stderr.splitlines() == [
        "torchett: broken is off: OSError: no room",
        "torchett: missing is off: ModuleNotFoundError: No module named 'missing'",
    ]


THEIRS = "import sys; print('theirs', *sys.path, sep='|')"


def test_the_users_own_sitecustomize_runs_too_on_a_path_without_ours(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(THEIRS)
    code = "import sys, sitecustomize; print(sitecustomize.__file__, *sys.path, sep='|')"
    theirs, script = (line.split("|") for line in python(code, tmp_path).stdout.splitlines())
    assert theirs[0] == "theirs"
    assert SITE not in theirs
    assert script[0] == str(tmp_path / "sitecustomize.py")
    assert script.index(SITE) == script.index(str(tmp_path)) - 1  # as PYTHONPATH has it


def test_a_process_that_is_to_be_a_rank_has_the_users_own_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(THEIRS)
    (tmp_path / "plugin.py").write_text("def install_plugin(): print('plugin')")
    (tmp_path / "script.py").write_text("print('script')")
    script = str(tmp_path / "script.py")
    done = interpreter(["-u", "-m", _MODULE, script], tmp_path, ETT_PLUGINS="plugin")
    assert [line.split("|")[0] for line in done.stdout.splitlines()] == [
        "theirs",
        "plugin",
        "script",
    ]
    assert SITE not in done.stdout.splitlines()[0].split("|")


WORKERS = """if True:
    import sys
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.compile_worker.subproc_pool import SubprocPool
    import tell

    pool = AsyncCompile.process_pool()
    assert isinstance(pool, SubprocPool)
    print(*pool.submit(tell.installed).result(60))
"""


@pytest.mark.parametrize(
    ("standby", "fork"), [("--no-standby", "0"), ("--standby", "0"), ("--standby", "1")]
)
def test_inductors_workers_import_torch_as_ranks_do_and_have_nothing_else(
    tmp_path: Path, standby: str, fork: str
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(WORKERS)
    (tmp_path / "tell.py").write_text(
        "import sys\n"
        "from torchett.record import plugins\n"
        "def installed(): return sorted(name.rpartition('.')[2] for name in plugins._installed)\n"
    )
    env = os.environ | {"ETT_RUNS": str(tmp_path / "runs"), "ETT_STANDBY_FORK": fork}
    env |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    ett = [sys.executable, "-m", "torchett.cli.main", "run", standby, "--progress", "0", "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*ett, *torchrun, "--nproc-per-node", "1", str(tmp_path / "script.py")],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["bytecode"]


def test_when_imported_waits_for_the_import_and_keeps_the_loader(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("import pack.part")
    (tmp_path / "pack" / "part.py").write_text("x = 1")
    code = """if True:
        from torchett.record.plugins import when_imported
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
        from torchett.record.plugins import when_imported
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
