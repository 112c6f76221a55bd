"""The process of a standby, and then of a rank: imports, waits for its job, runs the script.

    agent     spawns ──────────────── job: argv, environment, log files ───────── waits
    standby     imports torch, dynamo, inductor, … until the job comes ─► runs it as __main__

To the script it is an ordinary `python -u script.py`: argv, environment, folder, `__main__`,
signals and exit status are what they would be.

    python -m torchett.launch.standby.rank_process --standby FD MODULES…     a standby
    python -m torchett.launch.standby.rank_process SCRIPT ARGS…              a rank that is none
"""

import builtins
import gc
import importlib
import os
import select
import signal
import socket
import sys
import types
from collections.abc import Callable, Collection, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn, Protocol

from torchett.launch.imports import bytecode
from torchett.launch.standby import fast_exit
from torchett.launch.standby.job import ENDED_WELL, PER_RANK, receive
from torchett.record.clock import anchor, now_ns
from torchett.record.levers import all_levers
from torchett.record.patches import Installed, install
from torchett.record.plugins import install_asked

NO_JOB = 70  # the exit status of a standby whose agent is gone
_MODULE = "torchett.launch.standby.rank_process"
# Read by torch when it is imported: a script that sets one of these came too late for a standby.
_READ_AT_IMPORT = ("TORCH", "PYTORCH", "TRITON", "OMP_", "MKL_", "KMP_", "CUDA_")
_READ_WHEN_ASKED = frozenset({"PYTORCH_NVML_BASED_CUDA_CHECK"})  # Lightning sets it


class CompileAhead(Protocol):
    """Compiles a rank's model in its standby: a module that a lever names in its table."""

    followed: Collection[Path]  # the recipes whose models this process has compiled

    def follow_recipe(self, is_over: Callable[[float], bool]) -> None:
        """Compile when there is a recipe for this rank, until `is_over(seconds to wait)`."""

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether a rank with this environment would have imported the same modules."""


def main() -> NoReturn:
    """Be a standby, or run a script at once."""
    read_bytecode()
    if sys.argv[1] != "--standby":
        exec_script(sys.argv[1:])
    control = socket.socket(fileno=int(sys.argv[2]))
    for name in sys.argv[3:]:
        if has_message(control):
            break
        prepare(name)
    ahead = None
    if os.environ.get("ETT_STANDBY_MODEL") == "1" and not has_message(control):
        ahead = compile_ahead()
        if ahead is not None:
            ahead.follow_recipe(lambda s: has_message(control, s))
    try:
        job = receive(control)
    except (OSError, EOFError, ValueError):
        os._exit(NO_JOB)  # the agent is gone
    control.set_inheritable(False)
    os.register_at_fork(after_in_child=control.close)  # a child that exits is not the rank

    def ended_well() -> None:
        try:
            control.send(ENDED_WELL)
        except OSError:
            pass  # the agent is gone

    run(job, ended_well, ahead)


def compile_ahead() -> CompileAhead | None:
    """The lever that compiles a rank's model in its standby."""
    for lever in all_levers():
        if lever.compile_ahead:
            found: Any = importlib.import_module(lever.compile_ahead)
            ahead: CompileAhead = found
            return ahead
    return None


def read_bytecode() -> None:
    """Use the bytecode that torchett keeps; for a process that has imported nothing yet."""
    bytecode.install_plugin()


def prepare(name: str) -> None:
    """Import a module or call `module:function`; what fails is left to the script.

    Without garbage collection: imports leave little garbage, and looking for it takes a fifth of
    their time. What was imported is frozen, so later collections do not look at it either.
    """
    module, _, function = name.partition(":")
    gc.disable()
    sys.path.append(os.curdir)  # for modules of the script; last, so it hides no other module
    try:
        found = importlib.import_module(module)
        if function:
            getattr(found, function)()
    except Exception:
        if name == "torch":  # torch cannot be imported twice: the second error would be another
            raise
    finally:
        sys.path.remove(os.curdir)
        gc.freeze()
        gc.enable()


def has_message(control: socket.socket, within_s: float = 0.0) -> bool:
    """Whether the agent has sent a message, or has exited."""
    return bool(select.select([control], [], [], within_s)[0])


def run(
    job: dict[str, Any],
    ended_well: Callable[[], None] = lambda: None,
    ahead: CompileAhead | None = None,
) -> NoReturn:
    """Become the rank of this job; if its script ends well, `ended_well` is called last of all."""
    _apply(job)
    if ahead is not None and not ahead.fits(os.environ):
        # This process has imported modules that are not right for this rank.
        os.execv(sys.executable, [sys.executable, "-uP", "-m", _MODULE, *job["argv"]])
    exec_script(job["argv"], ended_well, models=len(ahead.followed) if ahead is not None else 0)


def _apply(job: dict[str, Any]) -> None:
    """Apply the environment, working folder and log files of the job."""
    os.environ.clear()
    os.environ.update(job["env"])
    os.environ["ETT_BEGAN"] = f"{now_ns()}@{anchor().clock}@{os.getpid()}"
    os.chdir(job["cwd"])
    for path, fd in ((job["stdout"], 1), (job["stderr"], 2)):
        if path:
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(opened, fd)
            os.close(opened)
    _warn_of_late_settings(job["env"])


def _warn_of_late_settings(given: dict[str, str]) -> None:
    """Warn once when the script sets a variable that torch has read when it was imported."""
    installed: list[Installed | None] = []

    def watch(putenv: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def watched(key: Any, value: Any) -> None:
            name = os.fsdecode(key)
            setter = sys._getframe(2).f_globals.get("__name__", "")  # behind os.environ's own frame
            if (
                name.startswith(_READ_AT_IMPORT)
                and name not in PER_RANK | _READ_WHEN_ASKED
                and os.fsdecode(value) != given.get(name)  # Accelerate puts all back as it was
                and not setter.startswith(("torch", "triton"))
            ):
                print(
                    f"torchett: the script sets {name}, which torch reads when it is imported. This"
                    " standby has already imported torch. If it matters, use ett run --no-standby",
                    file=sys.stderr,
                )
                if installed and installed[0] is not None:
                    installed[0].remove()
            putenv(key, value)

        return watched

    installed.append(install("os:putenv", watch))


def exec_script(
    argv: list[str], ended_well: Callable[[], None] = lambda: None, models: int = 0
) -> NoReturn:
    """Run `script args…` or `-m module args…` as this process, and exit with its status."""
    gc.freeze()  # later collections do not look at objects that stay alive anyway
    made_after: list[object] = []  # the oldest object that is not frozen
    fast_exit.keep_process_groups()
    install_asked()
    if models:
        _note_models(models)
    fast_exit.leave(_run_main(argv), ended_well, made_after)


def _note_models(models: int) -> None:
    """Record how many models of the job this process has compiled ahead."""
    from torchett.record.api import note

    note("standby_model", {"models": models})


def _run_main(argv: list[str]) -> int:
    """Run `script args…` or `-m module args…` as __main__; the exit code."""
    as_module = argv[0] == "-m"
    target, sys.argv = argv[int(as_module)], argv[int(as_module) :]
    fresh = types.ModuleType("__main__")
    fresh.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = fresh
    try:
        if as_module:
            import runpy

            _put_first(os.getcwd())
            runpy._run_module_as_main(target)  # type: ignore[attr-defined]
        else:
            _put_first(os.path.dirname(os.path.realpath(target)))
            target = os.path.join(os.getcwd(), target)
            loader = SourceFileLoader("__main__", target)
            fresh.__dict__.update(__file__=target, __loader__=loader, __cached__=None)
            if os.path.isdir(target):  # a folder with a __main__.py
                import runpy

                runpy.run_path(target, run_name="__main__")
                return 0
            with open(target, "rb") as file:
                code = compile(file.read(), target, "exec")
            exec(code, fresh.__dict__)
    except SystemExit as leave:
        return _exit_code(leave)
    except BaseException as error:
        return _report(error)
    return 0


def _put_first(folder: str) -> None:
    """Search for modules here first, as an interpreter that was started for a script does."""
    sys.path[: 1 - sys.flags.safe_path] = [folder]


def _exit_code(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return int(leave.code or 0) & 0xFF
    print(leave.code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> int:
    """Report an exception as the interpreter would, without this module's frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


if __name__ == "__main__":
    main()
