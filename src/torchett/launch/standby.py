"""A standby: a process that has imported torch and waits to be told which script it is.

    agent    spawns ──────────────── "go": argv, environment, streams ─────────── waits
    standby     imports torch, dynamo, inductor, … (stops when told) ─► runs the script as __main__

To the script it is an ordinary `python -u script.py`: argv, environment, folder, `__main__`,
signals and exit status are what they would be.
"""

import _io
import atexit
import builtins
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable
from functools import partial
from importlib.machinery import SourceFileLoader
from typing import Any, NoReturn

from torchett.launch.imports import bundle, bytecode, shortcuts
from torchett.launch.standbys import ANEW, COOKED, LEFT, PER_RANK, receive
from torchett.record.boarding import board
from torchett.record.clock import anchor, now_ns
from torchett.record.threads import wait_for_none

NO_JOB = 70
COOK = "torchett.startup.cook"
FRESH = "torchett.launch.fresh"
# Read by torch when it is imported: a script that sets one of these came too late for a standby.
_READ_AT_IMPORT = ("TORCH", "PYTORCH", "TRITON", "OMP_", "MKL_", "KMP_", "CUDA_")
_READ_WHEN_ASKED = frozenset({"PYTORCH_NVML_BASED_CUDA_CHECK"})  # Lightning sets it


def main() -> NoReturn:
    """Warm up, wait for the job, run it, leave with its status."""
    control = socket.socket(fileno=int(sys.argv[1]))
    shorten_imports()
    for name in sys.argv[2:]:
        if told(control):
            break
        prepare(name)
    cook_until_told(control, partial(_begin_anew, control), partial(_say, control, COOKED))
    try:
        job = receive(control)
    except (OSError, EOFError, ValueError):
        os._exit(NO_JOB)  # the agent is gone
    control.set_inheritable(False)
    os.register_at_fork(after_in_child=control.close)  # a child that leaves is not the rank
    be(job, partial(_say, control, LEFT))  # the agent need not wait for the kernel


def cook_until_told(
    control: socket.socket,
    begin_anew: Callable[[], NoReturn],
    cooked: Callable[[], None] = lambda: None,
) -> None:
    """Until the agent says something, have the job's model compiled ahead if that was asked for."""
    if os.environ.get("ETT_STANDBY_MODEL") == "1" and not told(control):
        importlib.import_module(COOK).until(partial(told, control), begin_anew, cooked)


def _begin_anew(control: socket.socket) -> NoReturn:
    _say(control, ANEW)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def shorten_imports() -> None:
    """For a process that has imported nothing yet."""
    bytecode.board()
    bundle.board()
    shortcuts.take()


def be(job: dict[str, Any], well: Callable[[], None] = lambda: None) -> NoReturn:
    """Become the rank that this job describes; if that ends well, `well` is called last of all."""
    _become(job)
    _be_fresh(job["argv"])
    be_script(job["argv"], well)


def be_script(argv: list[str], well: Callable[[], None] = lambda: None) -> NoReturn:
    """Run `script args…` or `-m module args…` as this process, whose environment is right."""
    gc.freeze()  # no collection walks through what is there to stay
    prepare("torchett.startup.garbage:rarely_at_first")
    since: list[object] = []  # not frozen, as nothing is from now on
    board()
    _tell_of_models()
    _leave(_run(argv), well, since)


def models_compiled() -> int:
    """How many models of the job this process has compiled ahead."""
    return len(getattr(sys.modules.get(COOK), "followed", ()))


def _tell_of_models() -> None:
    if models := models_compiled():
        from torchett.record.api import note

        note("standby_model", {"models": models})


def _say(control: socket.socket, word: bytes) -> None:
    """Let the agent know."""
    try:
        control.send(word)
    except OSError:
        pass


def prepare(name: str) -> None:
    """Import a module or call `module:function`; what fails is left to the script.

    Nothing is collected meanwhile: imports leave little garbage, and looking for it among all that
    was imported before takes a fifth of their time. What is there to stay is not looked at again.
    """
    module, _, function = name.partition(":")
    gc.disable()
    sys.path.append(os.curdir)  # for modules of the script: nobody else's are hidden by them
    try:
        found = importlib.import_module(module)
        if function:
            getattr(found, function)()
    except Exception:
        if name == "torch":  # half imported it would fail once more, and say something else
            raise
    finally:
        sys.path.remove(os.curdir)
        gc.freeze()
        gc.enable()


def told(control: socket.socket, within_s: float = 0.0) -> bool:
    """Whether the agent has said something."""
    return bool(select.select([control], [], [], within_s)[0])


def _be_fresh(argv: list[str]) -> None:
    """Be a new interpreter where this one has modules that are not right for this rank."""
    cook: Any = sys.modules.get(COOK)
    if cook is not None and not cook.fits(os.environ):
        os.execv(sys.executable, [sys.executable, "-uP", "-m", FRESH, *argv])


def _become(job: dict[str, Any]) -> None:
    """Take on the environment and the streams of the job."""
    os.environ.clear()
    os.environ.update(job["env"])
    os.environ["ETT_BEGAN"] = f"{now_ns()}@{anchor().clock}@{os.getpid()}"
    os.chdir(job["cwd"])
    for path, fd in ((job["stdout"], 1), (job["stderr"], 2)):
        if path:
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(opened, fd)
            os.close(opened)
    putenv = os.putenv

    def watched(key: Any, value: Any) -> None:
        name = os.fsdecode(key)
        setter = sys._getframe(2).f_globals.get("__name__", "")  # around os.environ's own frame
        if (
            name.startswith(_READ_AT_IMPORT)
            and name not in PER_RANK | _READ_WHEN_ASKED
            and os.fsdecode(value) != job["env"].get(name)  # put back, as Accelerate does with all
            and not setter.startswith(("torch", "triton"))
        ):
            print(
                f"torchett: the script sets {name}, which torch reads when it is imported: in a"
                " standby that was earlier. If it matters, use ett run --no-standby",
                file=sys.stderr,
            )
            os.putenv = putenv
        putenv(key, value)

    os.putenv = watched


def _run(argv: list[str]) -> int:
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
        return _fail(error)
    return 0


def _put_first(folder: str) -> None:
    """Have modules looked for here first, as an interpreter that was started for a script does."""
    sys.path[: 1 - sys.flags.safe_path] = [folder]


def _exit_code(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return int(leave.code or 0) & 0xFF
    print(leave.code, file=sys.stderr)
    return 1


def _fail(error: BaseException) -> int:
    """Report an exception as the interpreter would, without this module's frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def _leave(code: int, well: Callable[[], None], since: object) -> NoReturn:
    """Do what the interpreter does at its end that others can see, and no more.

    Threads are joined, exit handlers run, streams and files written; modules are not torn down, and
    the compiler's workers not waited for.
    """
    at_once = os.environ.get("ETT_FAST_EXIT") != "0"
    if at_once:
        wait_for_none()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        _end_compile_workers()
        atexit._run_exitfuncs()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = code or 1
    for stream in (sys.stdout, sys.stderr):
        if stream is None or getattr(stream, "closed", False):
            continue
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            code = code or 120  # as the interpreter does when a stream cannot be flushed
    _write_files(since)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    if not at_once:
        sys.exit(code)
    if code == 0:
        well()
    os._exit(code)


def _write_files(since: object) -> None:
    """Write what files hold that nobody has closed: a teardown would have closed them.

    Theirs are the objects that gc looks at; if `since` is not among them, the script has frozen it
    and perhaps files, too. (To count what is frozen takes as long as to look at all of it.)
    """
    found = gc.get_objects()
    if not any(one is since for one in found):
        gc.unfreeze()
        found = gc.get_objects()
    files = [one for one in found if issubclass(type(one), _io._IOBase)]  # isinstance wakes proxies
    layers = [file for file in files if type(file).__module__ != "_io"]  # gzip's need an end
    for act, among in (("flush", files), ("close", layers), ("flush", files)):
        for file in among:
            try:
                getattr(file, act)()
            except Exception:
                pass  # it is closed, or cannot be written: the interpreter passes over that, too
    ctypes.CDLL(None).fflush(None)  # what C's streams hold


def _end_compile_workers() -> None:
    """End inductor's workers: nobody needs them any more, and asked to leave they take seconds."""
    module = sys.modules.get("torch._inductor.async_compile")
    for pool in tuple(getattr(module, "_pool_set", ())):
        process = getattr(pool, "process", None)
        if process is not None:
            pool.running = False  # its shutdown has nothing left to do
            process.kill()


if __name__ == "__main__":
    main()
