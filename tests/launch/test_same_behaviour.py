"""A script says and returns the same under python, torchrun and `ett run`."""

import os
import pty
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PYTHON = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
ETT = [sys.executable, "-m", "torchett.cli.main", "run", "--progress", "0", "--"]

# What the script does, a word of its that everybody must hear, and its exit code under python.
TABLE = {
    "forks": (
        """
        import os
        pid = os.fork()
        if pid == 0:
            os._exit(5)
        print("SAYS child left with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        "SAYS child left with 5",
        0,
    ),
    "argparse": (
        """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float)
        parser.parse_args()
        """,
        "error: argument --lr: invalid float value: 'oops'",
        2,
    ),
    "stdin": ("import sys; print('SAYS', sys.stdin.read().upper())", "SAYS HELLO", 0),
    "exit_3": ("import sys; print('SAYS leaving'); sys.exit(3)", "SAYS leaving", 3),
    "raises": ("print('SAYS before')\nraise ValueError('broken')", "ValueError: broken", 1),
    "module": ("import sys; print('SAYS', __name__, sys.argv[1:])", "SAYS __main__ [", 0),
    "tty": (
        "import os; print('SAYS', [os.isatty(fd) for fd in (0, 1, 2)])",
        "SAYS [True, True, True]",
        0,
    ),
}


SPAWNED = ["env", "ETT_STANDBY_FORK=0", *ETT]  # forked elsewhere, where OMP_NUM_THREADS is 1
FORKED = ["env", "OMP_NUM_THREADS=1", *ETT]


def run(command: list[str], folder: Path) -> tuple[int, str]:
    """Exit code, and all that was said."""
    env = os.environ | {"ETT_RUNS": str(folder / "runs")}
    done = subprocess.run(
        command, cwd=folder, env=env, input="hello", capture_output=True, text=True, timeout=90
    )
    return done.returncode, done.stdout + done.stderr


def run_in_terminal(command: list[str], folder: Path) -> tuple[int, str]:
    """The same in a terminal of its own."""
    ours, theirs = pty.openpty()
    env = os.environ | {"ETT_RUNS": str(folder / "runs")}
    with subprocess.Popen(
        command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # the last that held the terminal is gone
            pass
        code = process.wait(90)
    os.close(ours)
    return code, said.decode()


@pytest.mark.parametrize("name", TABLE)
def test_it_says_and_returns_the_same(name: str, tmp_path: Path) -> None:
    text, word, code = TABLE[name]
    (tmp_path / f"it_{name}.py").write_text(textwrap.dedent(text))
    script = ["-m", "it_module"] if name == "module" else [f"it_{name}.py"]
    script += ["--lr", "oops"]
    launched = run_in_terminal if name == "tty" else run
    found = {
        "python": launched([*PYTHON, *script], tmp_path),
        "ett run, python": launched([*ETT, *PYTHON, *script], tmp_path),
        "torchrun": launched([*TORCHRUN, *script], tmp_path),
        "ett run, torchrun, spawned": launched([*SPAWNED, *TORCHRUN, *script], tmp_path),
        "ett run, torchrun, forked": launched([*FORKED, *TORCHRUN, *script], tmp_path),
    }
    for how, (_, said) in found.items():
        assert word in said, (how, said)
    # torchrun itself returns 1 for whatever its ranks returned, and names that in its report.
    codes = {how: returned for how, (returned, _) in found.items()}
    assert codes["python"] == codes["ett run, python"] == code
    under_torchrun = [how for how in codes if "torchrun" in how]
    assert {codes[how] for how in under_torchrun} == {min(code, 1)}
    for how in under_torchrun if code else ():
        assert re.findall(r"exitcode +: (-?\d+)", found[how][1])[:1] == [str(code)]
