"""`ett run`: attempts at a command, one after the other, joined into one job.

launcher starts ── child ──────────── exit ─ seal ─ child ─────────────── exit
├─ attempt 0 ────────────────────────┤      ├─ attempt 1 ────────────────┤
  launcher_init, then the ranks' own          restart_gap comes before it
"""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from torchett.launch.clocksync import ClockServer, measure, parse_address
from torchett.launch.elastic import failures, log_folder, restarts
from torchett.launch.scheduler import Placement, asked, placement
from torchett.launch.supervise import Exit, Supervisor, end_leftovers, open_streams
from torchett.model.causes import Domain, Outcome
from torchett.model.errors import InputError, RunError
from torchett.record.attempts import AttemptLog, attempts_path, in_use, last_attempt, last_beat
from torchett.record.boarding import SITE
from torchett.record.clock import Anchor, anchor, now_ns, process_start_ns
from torchett.record.flight import seal
from torchett.record.identity import runs_folder, safe_name
from torchett.runs.launchers import Clocks, read_launches

AGENT = "torchett.launch.agent"
_UNDER_WAY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `ett run` was asked to do."""

    command: tuple[str, ...]
    job: str | None = None
    max_restarts: int = 0
    as_is: bool = False
    standby: bool = True
    standby_device: bool = False
    preload: str = ""  # modules for standbys, comma between
    hang_timeout_s: float = 8.0
    progress_s: float = 30.0
    node: int | None = None
    nodes: int | None = None
    head: str | None = None
    aboard: tuple[str, ...] = ()  # modules to bring aboard every process: see record.boarding
    settings: Mapping[str, str] = field(default_factory=dict)  # what those read: ETT_NAME=value


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The finished job: its run folder, how its last attempt exited, whether it was node 0's."""

    run: Path
    code: int
    node: int


def run_job(options: Options, env: Mapping[str, str]) -> Ended:
    """Run the command, again if it fails and restarts are left."""
    open_streams()
    command = _command(options.command, options.as_is)
    here = anchor()
    born_s = ((process_start_ns() or now_ns()) + here.offset_ns) / 1e9
    place = asked(_placed(options, placement(env)), env, born_s)
    job = safe_name(options.job or env.get("ETT_JOB") or _default_name(command, env))
    run = (runs_folder(env) / job).absolute()
    first = _next_attempt(run, place.node)
    place = _given_anew(place, run) if first else place
    try:
        log = AttemptLog(run, job=job, node=place.node, anchor=here, command=list(command))
    except OSError as error:
        raise InputError(
            f"ett run: expected a folder to write to, found {run}: {error.strerror}: set ETT_RUNS"
        ) from None
    if place.note:
        log.append({"event": "note", "text": place.note})
    server = _sync_clocks(place, here, log)
    supervisor = Supervisor(log.beat)
    over = threading.Event()
    if place.node == 0:
        watcher = (run, options.progress_s, over)
        threading.Thread(target=_watch, args=watcher, name="ett-progress", daemon=True).start()
    try:
        began = process_start_ns() or now_ns()
        for attempt in range(first, first + options.max_restarts + 1):
            fresh = attempt == first
            log.append(_start_fact(attempt, began, place if fresh else Placement(), here))
            environment = _environment(env, run, job, attempt, began, here)
            environment |= _boarding(options, env)
            environment |= {
                "ETT_STANDBY": str(int(options.standby)),
                "ETT_STANDBY_DEVICE": str(int(options.standby_device)),
                "ETT_PRELOAD": options.preload,
                "ETT_NODE": str(place.node),
                "ETT_NOTICE": str(run / f"notice-{attempt}-{place.node}"),
                "ETT_HANG_TIMEOUT": str(options.hang_timeout_s),
            }
            errors, told_where = log_folder(command, env, run / f"torchelastic-{attempt}")
            give = partial(_give_notice, Path(environment["ETT_NOTICE"]), AGENT in command)
            ended = supervisor.run(command, environment | told_where, give)
            end_ns = now_ns()
            outcome, cause, domain = _judge(ended)
            if errors is not None:
                raised = _raised(errors, log, attempt, began, here)
                cause = raised if outcome == "failed" and raised and not ended.stopped else cause
            log.append(
                {
                    "event": "end",
                    "attempt": attempt,
                    "t_ns": end_ns,
                    "outcome": outcome,
                    "cause": cause,
                    "domain": domain,
                    "exit_code": ended.code,
                }
            )
            if outcome != "success":
                end_leftovers()
            _seal_attempt(run, attempt, here, end_ns)
            if outcome == "success" or ended.stopped:
                break
            began = now_ns()
    finally:
        over.set()
        if server is not None:
            server.close()
    return Ended(run=run, code=ended.code, node=place.node)


def _command(given: Sequence[str], as_is: bool) -> tuple[str, ...]:
    """The command to start: torchrun by our agent, a Python script by this interpreter."""
    if not given:
        raise InputError("ett run: expected a command after --, found none")
    head, *rest = given
    found = shutil.which(head)
    if found is not None and not as_is:
        ours = Path(os.path.abspath(found)).parent == Path(sys.executable).parent
        # -P: a folder that is called like a module, torch's sources for one, is not to be imported.
        if ours and Path(head).name == "torchrun":
            return (sys.executable, "-uP", "-m", AGENT, *rest)
        if ours and rest[:2] == ["-m", "torch.distributed.run"]:
            return (sys.executable, "-uP", "-m", AGENT, *rest[2:])
    if head.endswith(".py") and Path(head).is_file():
        return (sys.executable, head, *rest)
    if shutil.which(head) is None:
        raise InputError(f"ett run: expected a command that exists, found '{head}'")
    return tuple(given)


def _default_name(command: Sequence[str], env: Mapping[str, str]) -> str:
    """The script's name (else the command's) and the time.

    Under Slurm the job's number instead: all its nodes agree on it, and it outlives a requeue.
    """
    script = next((Path(word).stem for word in command if word.endswith(".py")), None)
    if env.get("SLURM_JOB_ID"):
        return f"{script or Path(command[0]).name}-{env['SLURM_JOB_ID']}"
    return f"{script or Path(command[0]).name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _placed(options: Options, found: Placement) -> Placement:
    node = found.node if options.node is None else options.node
    if options.nodes is not None and node >= options.nodes:
        raise InputError(
            f"ett run: expected a node from 0 to {options.nodes - 1}, found node {node}"
        )
    return replace(
        found,
        node=node,
        nodes=found.nodes if options.nodes is None else options.nodes,
        head=options.head or found.head,
    )


def _next_attempt(run: Path, node: int) -> int:
    """The number of the next attempt: a job of the same name goes on where it was."""
    if not os.path.exists(attempts_path(run, node)):
        return 0
    if node:  # node 0's log may tell of the coming attempt already
        return last_attempt(run, node) + 1
    launches = read_launches(run, Clocks())
    if launches.imported:
        raise RunError(f"{run}: an imported run cannot be continued; choose another --job")
    last = max((number for number, _ in launches.attempts), default=-1)
    if in_use(run):
        pid, _ = last_beat(run) or (0, 0)
        raise RunError(f"{run}: in use by the launcher with pid {pid}; choose another --job")
    return last + 1


def _given_anew(place: Placement, run: Path) -> Placement:
    """The placement without its times if the last attempt ran in the same allocation."""
    known = read_launches(run, Clocks())
    seen = [launch.start_ns for launch in known.attempts.values()]
    seen += [launch.end_ns for launch in known.ends.values()]
    over = max((t_ns for t_ns in seen if t_ns is not None), default=None)
    if over is None or place.allocated_s is None or place.allocated_s * 1e9 >= over:
        return place
    return replace(place, allocated_s=None, submitted_s=None)


def _raised(errors: Path, log: AttemptLog, attempt: int, began: int, here: Anchor) -> str | None:
    """What the last restart of a stock torchrun raised; restarts before it are written down."""
    since = began + here.offset_ns
    texts = {failure.restart: failure for failure in failures(errors, since)}
    starts = restarts(errors, since)
    last = max(starts, default=0)
    for restart in range(1, last + 1):
        if restart not in starts:
            continue
        lane = {"attempt": attempt, "restart": restart - 1}
        failure = texts.get(restart - 1)
        over = starts[restart] if failure is None else min(failure.wall_ns, starts[restart])
        cause = None if failure is None else failure.text
        end = {"t_ns": over - here.offset_ns, "outcome": "failed", "cause": cause}
        log.append({"event": "end", **lane, **end})
        lane["restart"] = restart
        log.append({"event": "start", **lane, "t_ns": starts[restart] - here.offset_ns})
    return texts[last].text if last in texts else None


def _sync_clocks(place: Placement, here: Anchor, log: AttemptLog) -> ClockServer | None:
    """On the head node serve its clock; on others measure the offset to it."""
    if place.nodes < 2 or place.head is None:
        return None
    address = parse_address(place.head)

    def clock() -> int:
        return now_ns() + here.offset_ns

    if place.node == 0:
        try:
            return ClockServer(clock, port=address[1])
        except OSError as error:
            print(f"ett: clocks are not compared: {error.strerror}", file=sys.stderr)
            return None
    found = measure(address, clock)
    if found is None:
        print(f"ett: clocks are not compared: no answer from {place.head}", file=sys.stderr)
    else:
        offsets = {"offset_ns": found.offset_ns, "error_ns": found.error_ns}
        log.append({"event": "clock", **offsets})
    return None


def _start_fact(attempt: int, began: int, place: Placement, here: Anchor) -> dict[str, object]:
    def mono(wall_s: float | None) -> int | None:
        return None if wall_s is None else int(wall_s * 1e9) - here.offset_ns

    return {
        "event": "start",
        "attempt": attempt,
        "t_ns": began,
        "submitted_ns": mono(place.submitted_s),
        "allocated_ns": mono(place.allocated_s),
        "scheduler": place.said,
    }


def _environment(
    env: Mapping[str, str], run: Path, job: str, attempt: int, began: int, here: Anchor
) -> dict[str, str]:
    kept = {key: value for key, value in env.items() if key not in ("ETT_RECORDER", "ETT_RESTART")}
    return kept | {
        "ETT_RUN": str(run),
        "ETT_JOB": job,
        "ETT_ATTEMPT": str(attempt),
        "ETT_ATTEMPT_BEGAN": f"{began}@{here.clock}@0",
    }


def _boarding(options: Options, env: Mapping[str, str]) -> dict[str, str]:
    """What brings the levers of this job aboard its processes."""
    if not options.aboard:
        return dict(options.settings)
    path = [SITE, env["PYTHONPATH"]] if env.get("PYTHONPATH") else [SITE]
    return {
        **options.settings,
        "ETT_BOARD": ",".join(options.aboard),
        "PYTHONPATH": os.pathsep.join(path),
    }


def _give_notice(notice: Path, by_agent: bool, number: signal.Signals) -> bool:
    """Tell the ranks that they will be ended, by a file: their agent stops them by SIGTERM, too.

    SIGUSR1 is a warning only, and would kill the agent: it goes no further.
    """
    if number not in (signal.SIGTERM, signal.SIGUSR1):
        return False
    try:
        notice.write_text(number.name)
    except OSError:
        pass
    return by_agent and number == signal.SIGUSR1


def _judge(ended: Exit) -> tuple[Outcome, str | None, Domain | None]:
    """Outcome, cause and domain, as far as an exit status tells."""
    if signal.SIGTERM in ended.told:
        return "preempted", "external_sigterm", None
    if signal.SIGINT in ended.told:
        return "failed", "user_cancel", None
    return ("success", None, None) if ended.code == 0 else ("failed", ended.cause, None)


def _seal_attempt(run: Path, attempt: int, here: Anchor, ended_ns: int) -> None:
    """Fold what ranks of this host left in their rings: they are dead."""
    for folder in (run / f"attempt-{attempt}", *run.glob(f"attempt-{attempt}.*")):
        for live in folder.glob("rank-*.live"):
            seal(live.with_suffix(".ett"), here, ended_ns)


def _watch(run: Path, every_s: float, over: threading.Event) -> None:
    """Print how the job is doing; what that needs is imported once the job is under way."""
    if over.wait(_UNDER_WAY_S):
        return
    from torchett.launch.progress import watch

    if every_s > 0 and not over.wait(max(every_s - _UNDER_WAY_S, 0)):
        watch(run, every_s, over)
