"""What a training script calls. The first call of any of these opens the record."""

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torchett.model.accounts import ACCOUNTS
from torchett.model.values import RESUMED_FROM
from torchett.record.clock import anchor, now_ns, process_start_ns, process_start_ticks
from torchett.record.identity import Identity, identify
from torchett.record.recorder import Recorder, Silent, StepTimer

T = TypeVar("T")
log = logging.getLogger("torchett")

_recorder: Recorder | Silent | None = None
_run: Path | None = None
_trainer: int | None = None
_early: list[tuple[str, int, int, bool]] = []
_early_notes: list[tuple[str, dict[str, Any]]] = []
_early_lost = 0
_MOST_EARLY = 100
_when_open: list[Callable[[Recorder | Silent], None]] = []
_lock = threading.RLock()  # held while the record is opened
_opening = False
_life = 0  # how often the training function has begun anew in this process
_OPEN_WITHIN_S = 1.0  # a file system that takes longer is left to a thread
_START = [one.name for one in ACCOUNTS if one.kind == "start"]
_LOOP = [one.name for one in ACCOUNTS if one.kind == "in_loop"]
_warned: set[str] = set()  # accounts that were given to the wrong one of stage and blocked
_first_index: Callable[[], int] = int  # of the first step after a restart: 0


def init(
    *, job: str | None = None, rank: int | None = None, ranks: int | None = None
) -> Path | None:
    """The run folder this process records to; None if it records nothing.

    Job, attempt and rank come from `ett run`, torchrun, Slurm or Kubernetes; arguments win.
    Everything before this call counts as `imports`, so call it once the imports are done.
    """
    _open(job, rank, ranks)
    return _run


def begin(imports_until_ns: int, *, rank: int | None = None, ranks: int | None = None) -> None:
    """Open the record of a process; imports from this time on are recorded by hooks."""
    _open(None, rank, ranks, imports_until_ns)


def when_open(then: Callable[[Recorder | Silent], None]) -> None:
    """Call `then(recorder)` once the record is open, and for each life that follows."""
    _when_open.append(then)
    if _recorder is not None:
        then(_recorder)


def span(account: str, *, background: bool = False) -> AbstractContextManager[None]:
    """Time the body under any account of `ett.ACCOUNTS`, or under one of your own, `x-NAME`.

    A background span runs beside training: it is recorded and takes no time from the accounts.
    An account that does not exist is recorded as x-NAME, with one warning that names the closest.
    """
    return (_recorder or _open()).span(account, background)


def stage(account: str, *, background: bool = False) -> AbstractContextManager[None]:
    """Time the body under a start-up account: `with ett.stage("device_init"): …`."""
    if account in _LOOP:
        _warn_of_other(account, "ett.stage is for start-up: use ett.blocked")
    return (_recorder or _open()).span(account, background)


def blocked(account: str) -> AbstractContextManager[None]:
    """Time in which the loop does not train: `with ett.blocked("checkpoint_blocked"): …`."""
    if account in _START:
        _warn_of_other(account, "ett.blocked is for the training loop: use ett.stage")
    return (_recorder or _open()).span(account)


def _warn_of_other(account: str, why: str) -> None:
    """Warn once for each account; the time is recorded all the same."""
    if account not in _warned:
        _warned.add(account)
        log.warning("torchett: %r: %s, or ett.span for both", account, why)


def step(index: int, count: int = 1) -> StepTimer:
    """Time the body as step `index` (or as `count` steps from there on).

    Each call gives a context manager of its own: they may nest, and threads may have several.
    """
    return (_recorder or _open()).step(index, count)


def steps(batches: Iterable[T], *, start: int | None = None) -> Iterator[T]:
    """The batches; each iteration of the loop is a step, numbered from `start`.

    Without `start` numbers go on from loop to loop, and after a restart from the step that the
    loaded checkpoint was saved at. Waiting for the next batch is data_wait, for the first one
    get_first_batch_data.
    """
    return (_recorder or _open()).steps(batches, start)


def when_resumed(first_index: Callable[[], int]) -> None:
    """Set the function that returns the first step after a restart."""
    global _first_index
    _first_index = first_index


def _resumes_at() -> int:
    try:
        return _first_index()
    except Exception as error:
        log.warning("torchett: steps are numbered from 0: %s", error)
        return 0


def last_step(index: int) -> None:
    """Record that the process is about to exit, with the work of step `index` done."""
    if _recorder is not None:
        _recorder.last_step(index)


def checkpoint_durable(step: int) -> None:
    """Record that the checkpoint taken after `step` is durable; from any thread."""
    recorder = _recorder or _open()
    recorder.script_calls.durable = True
    recorder.checkpoint_durable(step)


def resumed(step: int, source: str = "checkpoint") -> None:
    """Say that training goes on with `step`, and where the state came from.

    `source` is checkpoint, memory, peer (a replica group that trained on: nothing was lost by it)
    or nothing.
    """
    if source not in RESUMED_FROM:
        log.warning("torchett: ett.resumed: expected one of %s, found %r", RESUMED_FROM, source)
        return
    note("resumed", {"step": int(step), "from": source})


def new_life(ended_ns: int, error: BaseException | None) -> None:
    """The training function begins anew in this process: the next attempt on record.

    The record so far ended at `ended_ns`: with `error`, or interrupted by another rank's if None.
    """
    global _recorder, _life
    with _lock:
        old = _recorder
        if old is None or isinstance(old, Silent):
            return
        fact: dict[str, Any] = {"exit_ns": ended_ns}
        if error is None:
            fact["interrupted"] = True
        else:
            fact["error"] = f"{type(error).__name__}: {error}"[:500]
        old.close(fact)
        _recorder = None
        _life += 1
    _open()


def past_span(account: str, t0_ns: int, t1_ns: int, *, background: bool = False) -> None:
    """Record a span that is over; one from before the record is open waits for it."""
    global _early_lost
    if _recorder is not None:
        _recorder.past_span(account, t0_ns, t1_ns, background)
    elif len(_early) < _MOST_EARLY:
        _early.append((account, t0_ns, t1_ns, background))
    else:
        _early_lost += 1


def note(kind: str, fact: dict[str, Any]) -> None:
    """Record a fact that is neither a span nor a step, as JSON."""
    global _early_lost
    if _recorder is not None:
        _recorder.note(kind, fact)
    elif len(_early_notes) < _MOST_EARLY:
        _early_notes.append((kind, fact))
    else:
        _early_lost += 1


def recorder() -> Recorder | Silent | None:
    """The recorder, if the record is open."""
    return _recorder


def trainer_thread() -> int:
    """The thread that trains: the one that opened the record, else the main one."""
    return _trainer or threading.main_thread().ident or 0


def _open(
    job: str | None = None,
    rank: int | None = None,
    ranks: int | None = None,
    imports_until_ns: int | None = None,
) -> Recorder | Silent:
    """The recorder; the first call opens it, and other threads wait for that."""
    global _recorder, _run, _trainer, _opening
    with _lock:
        if _recorder is not None:
            return _recorder
        if _opening:
            return Silent()  # what opens the record calls it, or a signal handler does
        _opening = True
        if not threading.current_thread().name.startswith("ett-"):
            _trainer = threading.get_ident()
        try:
            opened, _run = _make(job, rank, ranks, imports_until_ns)
        except Exception as error:  # no error here may stop a training job
            log.warning("torchett: this process is not recorded: %s", error)
            opened = Silent()
        _recorder = opened
        _opening = False
        _take_early(opened)
    for then in _when_open:
        try:
            then(opened)
        except Exception as error:
            log.warning("torchett: %s is off: %s", getattr(then, "__qualname__", then), error)
    if _run is not None:
        from torchett.record.plugins import install_default_plugins  # later: takes 10 ms

        install_default_plugins()
    return opened


def _take_early(opened: Recorder | Silent) -> None:
    """Record what came before the record was open."""
    for span in _early:
        opened.past_span(*span)
    for kind, fact in _early_notes:
        opened.note(kind, fact)
    _early.clear()
    _early_notes.clear()
    if _early_lost and not isinstance(opened, Silent):
        text = f"{_early_lost} spans and facts from before ett.init() were not kept"
        log.warning("torchett: %s: more than %d came", text, _MOST_EARLY)
        opened.note("hint", {"says": text})


def _make(
    job: str | None, rank: int | None, ranks: int | None, imports_until_ns: int | None
) -> tuple[Recorder | Silent, Path | None]:
    from torchett import __version__
    from torchett.record.flight.writer import FlightWriter

    env = os.environ
    worker = _is_loader_worker() and rank is None
    if env.get("ETT_DISABLE") == "1" or worker:
        return Silent(), None
    here = anchor()
    began = now_ns() if _life else _began_ns(env, here.clock)
    who = identify(
        env,
        script=Path(sys.argv[0] if sys.argv and sys.argv[0] else "python").stem or "python",
        started=_job_start(env),
        job=job,
        rank=rank,
        ranks=ranks,
    )
    who = replace(who, run=who.run.absolute())  # the script may change its folder later
    if _recorded_above(who):
        return Silent(), None
    writer = FlightWriter(
        who.run,
        attempt=who.attempt,
        restart=who.restart,
        rank=who.rank,
        facts={
            "job": who.job,
            "attempt": who.attempt,
            "restart": who.restart,
            "life": _life,
            "rank": who.rank,
            "ranks": who.ranks,
            "local_rank": who.local_rank,
            "launched": who.launched,
            "pid": os.getpid(),
            "began_ns": began,
            "anchor": here.to_json(),
            "torchett": __version__,
        },
    )
    writer.begin(_OPEN_WITHIN_S)
    if not who.launched:
        threading.Thread(
            target=_seal_left_behind, args=(who.run,), name="ett-seal", daemon=True
        ).start()
    recorder = Recorder(writer, _resumes_at)
    if _life:
        return recorder, who.run
    launched_ns = _launched_ns(env, here.clock, who.restart)
    if launched_ns is not None and writer.is_first:
        recorder.past_span("launcher_init", launched_ns, began)
    recorder.past_span("imports", began, imports_until_ns or now_ns())
    atexit.register(_leave, os.getpid())
    return recorder, who.run


def _is_loader_worker() -> bool:
    """Whether this is a daemonic child of multiprocessing: a loader's worker, not a rank."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and bool(processes.current_process().daemon)


def _job_start(env: "os._Environ[str]") -> str:
    """What distinguishes two unnamed jobs of one script: the process that started them.

    That is the agent under torchrun, so that its ranks agree, else this one. Told by the kernel's
    clock ticks, which no step of the wall clock changes.
    """
    pid = os.getppid() if "TORCHELASTIC_RUN_ID" in env else os.getpid()
    return f"{process_start_ticks(pid) or 0}-{pid}"


def _recorded_above(who: Identity) -> bool:
    """Whether a process above this one records the same rank; else mark that this one does."""
    mine = f"{who.run}:{who.attempt}.{who.restart}:{who.rank}"
    pid, _, claimed = os.environ.get("ETT_RECORDER", "").partition(":")
    if claimed == mine and pid != str(os.getpid()):
        return True
    os.environ["ETT_RECORDER"] = f"{os.getpid()}:{mine}"
    return False


def _began_ns(env: "os._Environ[str]", clock: str) -> int:
    """When this process began its job: at its start, or when its standby was given the job."""
    text, _, rest = env.get("ETT_BEGAN", "").partition("@")
    if text.isdigit() and rest == f"{clock}@{os.getpid()}":
        return int(text)
    return process_start_ns() or now_ns()


def _launched_ns(env: "os._Environ[str]", clock: str, restart: int) -> int | None:
    """When the launcher began this attempt (and its agent this restart), on our clock."""
    text, _, rest = env.get("ETT_ATTEMPT_BEGAN", "").partition("@")
    return int(text) if text.isdigit() and rest == f"{clock}@{restart}" else None


def _seal_left_behind(run: Path) -> None:
    """Seal the rings of killed ranks, on a thread of its own: another disk may hang."""
    from torchett.record.flight.seal import seal_left_behind

    seal_left_behind(run)


def _be_silent() -> None:
    """In a forked child: the record is the parent's."""
    global _recorder, _run, _lock, _opening
    _lock = threading.RLock()  # another thread may have held it
    if _recorder is not None:
        _recorder.abandon()
    if _recorder is not None or _opening:
        _recorder, _run, _opening = Silent(), None, False


os.register_at_fork(after_in_child=_be_silent)


def _leave(pid: int) -> None:
    """At the interpreter's exit: fold what is left and record how the process ended."""
    if _recorder is None or os.getpid() != pid:
        return
    fact: dict[str, Any] = {"exit_ns": now_ns()}
    error = getattr(sys, "last_value", None)
    if error is not None:
        fact["error"] = f"{type(error).__name__}: {error}"[:500]
    _recorder.close(fact)
