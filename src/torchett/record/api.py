"""What a training script calls. The first call of any of these opens the record."""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from torchett.record.clock import anchor, now_ns, process_start_ns, process_start_ticks
from torchett.record.identity import Identity, identify
from torchett.record.recorder import Recorder, Silent

T = TypeVar("T")
log = logging.getLogger("torchett")

_recorder: Recorder | Silent | None = None
_run: Path | None = None
_trainer: int | None = None
_early: list[tuple[str, int, int, bool]] = []
_early_notes: list[tuple[str, dict[str, Any]]] = []
_when_open: list[Callable[[Recorder | Silent], None]] = []


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
    """Open the record of a process whose imports were told otherwise from this time on."""
    _open(None, rank, ranks, imports_until_ns)


def when_open(then: Callable[[Recorder | Silent], None]) -> None:
    """Call `then(recorder)` once the record is open."""
    _when_open.append(then)


def stage(account: str, *, background: bool = False) -> AbstractContextManager[None]:
    """Time the body under a start-up account: `with ett.stage("device_init"): …`."""
    return (_recorder or _open()).span(account, background)


def blocked(account: str) -> AbstractContextManager[None]:
    """Time in which the loop does not train: `with ett.blocked("checkpoint_blocked"): …`."""
    return (_recorder or _open()).span(account)


def step(index: int, count: int = 1) -> AbstractContextManager[None]:
    """Time the body as step `index` (or as `count` steps from there on)."""
    return (_recorder or _open()).step(index, count)


def steps(batches: Iterable[T], *, start: int = 0) -> Iterator[T]:
    """The batches; each turn of the loop is a step, numbered from `start`.

    Waiting for the next batch is data_wait, for the first one get_first_batch_data.
    """
    return (_recorder or _open()).steps(batches, start)


def last_step(index: int) -> None:
    """Say that the process is about to end, with the work of step `index` done."""
    if _recorder is not None:
        _recorder.last_step(index)


def checkpoint_durable(step: int) -> None:
    """Say that the checkpoint taken after `step` is safe; from any thread."""
    (_recorder or _open()).checkpoint_durable(step)


def past_span(account: str, t0_ns: int, t1_ns: int, *, background: bool = False) -> None:
    """Record a span that is over; one from before the record is open waits for it."""
    if _recorder is not None:
        _recorder.past_span(account, t0_ns, t1_ns, background)
    elif len(_early) < 100:
        _early.append((account, t0_ns, t1_ns, background))


def note(kind: str, fact: dict[str, Any]) -> None:
    """Keep a fact that is neither span nor step with the record, as JSON."""
    if _recorder is not None:
        _recorder.note(kind, fact)
    elif len(_early_notes) < 100:
        _early_notes.append((kind, fact))


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
    global _recorder, _run, _trainer
    if _recorder is not None:
        return _recorder
    if not threading.current_thread().name.startswith("ett-"):
        _trainer = threading.get_ident()
    try:
        _recorder, _run = _make(job, rank, ranks, imports_until_ns)
    except Exception as error:  # whatever is wrong here must not stop a training job
        log.warning("torchett: this process is not recorded: %s", error)
        _recorder = Silent()
    for span in _early:
        _recorder.past_span(*span)
    for kind, fact in _early_notes:
        _recorder.note(kind, fact)
    _early.clear()
    _early_notes.clear()
    for then in _when_open:
        try:
            then(_recorder)
        except Exception as error:
            log.warning("torchett: %s is off: %s", getattr(then, "__qualname__", then), error)
    if _run is not None:
        from torchett.record.boarding import WATCHES, bring  # not at `import torchett`: 10 ms

        bring(WATCHES)
    return _recorder


def _make(
    job: str | None, rank: int | None, ranks: int | None, imports_until_ns: int | None
) -> tuple[Recorder | Silent, Path | None]:
    from torchett import __version__
    from torchett.record.flight import FlightWriter

    env = os.environ
    worker = _is_loader_worker() and rank is None
    if env.get("ETT_DISABLE") == "1" or worker:
        return Silent(), None
    here = anchor()
    began = _began_ns(env, here.clock)
    who = identify(
        env,
        script=Path(sys.argv[0] if sys.argv and sys.argv[0] else "python").stem or "python",
        started=_job_start(env),
        job=job,
        rank=rank,
        ranks=ranks,
    )
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
    recorder = Recorder(writer)
    launched_ns = _launched_ns(env, here.clock, who.restart)
    if launched_ns is not None and writer.is_first:
        recorder.past_span("launcher_init", launched_ns, began)
    recorder.past_span("imports", began, imports_until_ns or now_ns())
    threading.Thread(target=_beat, args=(writer.beat,), name="ett-beat", daemon=True).start()
    atexit.register(_leave, os.getpid())
    os.register_at_fork(after_in_child=_be_silent)
    return recorder, who.run


def _is_loader_worker() -> bool:
    """Whether this is a daemonic child of multiprocessing: a loader's worker, not a rank."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and bool(processes.current_process().daemon)


def _job_start(env: "os._Environ[str]") -> str:
    """What tells two unnamed jobs of one script apart: the process that began them.

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
    """When this process began its job: at its start, or when a standby was told to go."""
    text, _, rest = env.get("ETT_BEGAN", "").partition("@")
    if text.isdigit() and rest == f"{clock}@{os.getpid()}":
        return int(text)
    return process_start_ns() or now_ns()


def _launched_ns(env: "os._Environ[str]", clock: str, restart: int) -> int | None:
    """When the launcher began this attempt (and its agent this restart), on our clock."""
    text, _, rest = env.get("ETT_ATTEMPT_BEGAN", "").partition("@")
    return int(text) if text.isdigit() and rest == f"{clock}@{restart}" else None


def _beat(beat: Callable[[], None]) -> None:
    """Beat once a second for as long as the process lives."""
    while True:
        beat()
        time.sleep(1.0)


def _be_silent() -> None:
    """In a forked child: the record is the parent's."""
    global _recorder, _run
    if _recorder is not None:
        _recorder.abandon()
    _recorder, _run = Silent(), None


def _leave(pid: int) -> None:
    """At the interpreter's exit: fold what is left and say how it went."""
    if _recorder is None or os.getpid() != pid:
        return
    fact: dict[str, Any] = {"exit_ns": now_ns()}
    error = getattr(sys, "last_value", None)
    if error is not None:
        fact["error"] = f"{type(error).__name__}: {error}"[:500]
    _recorder.close(fact)
