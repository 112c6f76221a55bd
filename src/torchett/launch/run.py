"""`ett run`: attempts at a command, one after the other, joined into one job.

launcher starts ── child ──────────── exit ─ seal ─ child ─────────────── exit
├─ attempt 0 ────────────────────────┤      ├─ attempt 1 ────────────────┤
  launcher_init, then the ranks' own          restart_gap comes before it
"""

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchett.launch.attempts import Attempts, restarts_of, say
from torchett.launch.clocksync import ClockServer, measure, parse_address
from torchett.launch.command import command_of, script_of
from torchett.launch.labels import labels_of
from torchett.launch.naming import Choice, choose_run, series_facts
from torchett.launch.options import Options
from torchett.launch.scheduler.beacon_watch import look_s, watch_beacon
from torchett.launch.scheduler.leaving import Leaving
from torchett.launch.scheduler.placement import Placement, asked, placement
from torchett.launch.scheduler.rendezvous import placed_by, rendezvous_of
from torchett.launch.shipping import Shipping
from torchett.launch.supervise import Supervisor, end_leftovers, open_streams
from torchett.model.errors import InputError, RunError
from torchett.record.attempt_log import AttemptLog, attempts_path, in_use, last_attempt, last_beat
from torchett.record.clock import Anchor, anchor, now_ns, process_start_ns
from torchett.record.identity import group_suffix, runs_folder, slurm_name
from torchett.runs.launchers import Clocks, read_launches

_UNDER_WAY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The finished job: its run folder, how its last attempt exited, whether it was node 0's."""

    run: Path
    code: int
    node: int


def run_job(options: Options, env: Mapping[str, str]) -> Ended:
    """Run the command, again if it fails and restarts are left."""
    open_streams()
    command = command_of(options.command, options.as_is)
    here = anchor()
    born_s = ((process_start_ns() or now_ns()) + here.offset_ns) / 1e9
    rendezvous = rendezvous_of(command, env) if options.node is None else None
    found = placement(env)
    if rendezvous is not None:
        found = placed_by(rendezvous, found, runs_folder(env), options.spares)
    place = asked(_placed(options, found), env, born_s)
    if rendezvous is not None and not (options.job or env.get("ETT_JOB")):
        options = replace(options, job=rendezvous.series)
    name, chosen = _chosen(options, command, env, place.node)
    job, shown = chosen.name, runs_folder(env) / chosen.name
    run = shown.absolute()
    first = _next_attempt(run, place.node)
    place = _given_anew(place, run) if first else place
    facts = series_facts(name, env, place.nodes) | _ways(options, env)
    facts["labels"] = labels_of(env, options.labels, Path.cwd())
    facts |= {"levers": list(options.levers)}
    log = _open_log(run, job=job, node=place.node, anchor=here, command=list(command), **facts)
    if place.note:
        log.append({"event": "note", "text": place.note})
    if chosen.ended_well:
        say(f"{chosen.ended_well} ended well, so this is a new run (--resume goes on with {name})")
    server = _sync_clocks(place, here, log)
    attempts = Attempts(
        options=options,
        env=env,
        plain=command,
        place=place,
        here=here,
        run=run,
        job=job,
        log=log,
        supervisor=Supervisor(log.beat),
        leaving=Leaving(env, place.node),
        restarts=restarts_of(options, command, env, run),
        shipping=Shipping(options.ship or env.get("ETT_SHIP"), run, place.node, env),
    )
    over = threading.Event()
    if place.node == 0:
        _watch(run, options.progress_s, env, over)
    try:
        ended = attempts.make(first, shown)
    finally:
        over.set()
        attempts.close()
        if server is not None:
            server.close()
    if ended.code:
        end_leftovers()
    attempts.leaving.ended(ended.code)
    attempts.shipping.finish()
    return Ended(run=run, code=ended.code, node=place.node)


def _open_log(run: Path, **facts: Any) -> AttemptLog:
    """The log of attempts of this run; InputError if nothing can be written there."""
    try:
        return AttemptLog(run, **facts)
    except OSError as error:
        raise InputError(
            f"ett run: expected a folder to write to, found {run}: {error.strerror}: set ETT_RUNS"
        ) from None


def _chosen(
    options: Options, command: Sequence[str], env: Mapping[str, str], node: int
) -> tuple[str, Choice]:
    """The requested name, and the run that it stands for."""
    given = options.job or env.get("ETT_JOB")
    if options.resume and not given and not env.get("SLURM_JOB_ID"):
        raise InputError("ett run: --resume goes on with a job by its name: add --job NAME")
    name = given or _default_name(command, env)
    chosen = choose_run(
        runs_folder(env), name, env, node=node, resume=options.resume, named=bool(given)
    )
    return name, chosen


def _default_name(command: Sequence[str], env: Mapping[str, str]) -> str:
    """The script's name (else the command's) and the time.

    Under Slurm the job's number instead: all its nodes agree on it, and it outlives a requeue.
    In a replica group the script's name alone: the launchers of all groups agree on it.
    """
    if env.get("SLURM_JOB_ID"):
        return f"{script_of(command)}-{slurm_name(env)}"
    if group_suffix(env):
        return script_of(command)
    return f"{script_of(command)}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _ways(options: Options, env: Mapping[str, str]) -> dict[str, bool]:
    """Why the ranks will not be recorded."""
    ways = {"as_is": options.as_is, "disabled": env.get("ETT_DISABLE") == "1"}
    return {way: True for way, taken in ways.items() if taken}


def _placed(options: Options, found: Placement) -> Placement:
    node = found.node if options.node is None else options.node
    nodes = found.nodes if options.nodes is None else options.nodes + options.spares
    if options.nodes is not None and node >= nodes:
        raise InputError(f"ett run: expected a node from 0 to {nodes - 1}, found node {node}")
    return replace(
        found,
        node=node,
        nodes=nodes,
        head=options.head or found.head,
    )


def _next_attempt(run: Path, node: int) -> int:
    """The number of the next attempt: a job of the same name continues."""
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


def _watch(run: Path, every_s: float, env: Mapping[str, str], over: threading.Event) -> None:
    """Print progress, and publish what is saved, on threads that end with the event."""
    watcher = (run, every_s, over)
    threading.Thread(target=_print, args=watcher, name="ett-progress", daemon=True).start()
    if (look_every_s := look_s(env)) > 0:
        looks = (run, env, look_every_s, over)
        threading.Thread(target=watch_beacon, args=looks, name="ett-beacon", daemon=True).start()


def _print(run: Path, every_s: float, over: threading.Event) -> None:
    """Print how the job is doing; what that needs is imported once the job is under way."""
    if over.wait(_UNDER_WAY_S):
        return
    from torchett.launch.progress import watch

    if every_s > 0 and not over.wait(max(every_s - _UNDER_WAY_S, 0)):
        watch(run, every_s, over)
