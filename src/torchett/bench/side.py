"""One side of a bench: a job run through its failures to its end, as a scheduler would run it.

    command ──── "fault node" ✗ all killed ─┬─ command ── "fault preempt" ─ SIGTERM … ─┬─ command ──
                                            └ at once, on a fresh node                 └ at once

The launcher (torchrun, or ours) restarts killed ranks and failed starts. After a fault that ends
the launcher too, the same command is run again. A lost node loses its local compile cache. Shared
storage (checkpoints, a library of compiled code) stays.
"""

import compileall
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from torchett.bench.levers import run_options, script_options
from torchett.bench.pulse import Pulse
from torchett.bench.schedule import Schedule
from torchett.bench.workload import Workload
from torchett.model.errors import InputError, RunError
from torchett.runs.output_files import write_text_file

GRACE_S = 30.0
_LOG = "ett-bench.log"  # marks a folder as a bench's
_DONE = "done.json"
_NO_GPU = 3
_FAULT = re.compile(r"fault (node|preempt) at step \d+")
_STEP = re.compile(r"step (\d+) loss")
_DIGEST = re.compile(r"digest (\w{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A name, the levers that are on (None: the stock script), and the folder of its files."""

    name: str
    levers: frozenset[str] | None
    folder: Path

    def make_room(self) -> None:
        """Make the parent folder, and refuse a folder with files that are not a bench's."""
        ours = self.folder
        try:
            ours.parent.mkdir(parents=True, exist_ok=True)
            used = (ours.exists() and not ours.is_dir()) or any(ours.glob("*"))
        except OSError as error:
            place = f"{ours.parent}: {error.strerror}"
            raise InputError(f"ett bench: expected a --folder to write to, found {place}") from None
        if used and not (ours / _LOG).is_file():
            raise InputError(
                f"ett bench: expected a --folder that is new or an earlier bench's, found {ours} of"
                " another kind: name one of its own"
            )

    def clear(self) -> None:
        """Delete the files of an unfinished bench."""
        self.make_room()
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def command(self, workload: Workload, schedule: Schedule | None) -> list[str]:
        """The command line of this side, as a user would type it."""
        failures = schedule.failures if schedule else 0
        ett = [sys.executable, "-m", "torchett", "run", "--job", self.name]
        ett += ["--progress", "0"]
        script = workload.script("train.py" if self.levers is None else "train_ett.py")
        if self.levers is None:
            ett += ["--as-is", "--hooks"]
        else:
            ett += run_options(self.levers, f"{self.folder}/shared", on_gpu=workload.on_gpu)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += ["--nproc-per-node", str(workload.ranks), "--max-restarts", str(failures)]
        options = ["--preset", workload.preset, *workload.options, "--digest"]
        options += ["--steps", str(workload.steps)]
        options += ["--save-every", str(workload.save_every(failures)), "--log-every", "100"]
        options += ["--checkpoint-dir", str(self.folder / "checkpoints")]
        if self.levers is not None:
            options += script_options(self.levers)
            options += ["--mtbf", f"{workload.mtbf_s(failures):.1f}"]
        for word in schedule.words(workload.steps, workload.ranks) if schedule else ():
            options += ["--fault", word]
        return [*ett, "--", *torchrun, str(script), *options]

    def environment(self) -> dict[str, str]:
        """The environment: caches of this side alone, empty at first, kept between starts."""
        return {
            **os.environ,
            "ETT_RUNS": str(self.folder / "runs"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "ETT_BYTECODE": str(self.folder / "bytecode"),
            # Without it a stock restart may wait for the addresses of dead ranks.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A job that has ended: its run, the digest of its weights, and its number of starts.

    `pulse_s` is the speed of the machine meanwhile (`pulse.py`).
    """

    side: Side
    run: Path
    digest: str | None
    starts: int
    pulse_s: float | None


def recalled(side: Side, workload: Workload, schedule: Schedule | None) -> Finished | None:
    """The stored result of this side, if it ended before in the same job with the same faults."""
    try:
        known = json.loads((side.folder / _DONE).read_text())
        if known.pop("what") == _what(workload, schedule):
            return Finished(side=side, run=side.folder / "runs" / side.name, **known)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no usable result: the side is run
    return None


def remember(finished: Finished, workload: Workload, schedule: Schedule | None) -> None:
    """Store the result of a side for `recalled`."""
    known: dict[str, Any] = {"what": _what(workload, schedule), "digest": finished.digest}
    known |= {"starts": finished.starts, "pulse_s": finished.pulse_s}
    write_text_file(finished.side.folder / _DONE, [json.dumps(known)])


def _what(workload: Workload, schedule: Schedule | None) -> dict[str, Any]:
    through = schedule.name if schedule is not None else None
    return {"steps": workload.steps, "schedule": through, "workload": workload.preset}


def make_even(on_gpu: bool) -> None:
    """Fill the caches that both sides share; otherwise the first side would do it for the second.

    This reads the packages' files into the page cache. On a CPU it also compiles the header of C++
    kernels (4.6 s). It compiles torchett's bytecode, which a checkout may lack: its hooks are on in
    both sides. A job for a GPU is refused on a machine without one.
    """
    compileall.compile_dir(Path(__file__).parents[1], quiet=2)
    code = """
import sys, torch.distributed.run, torch.distributed.checkpoint, torch._inductor.compile_fx
from torchett.launch.standby.rehearsal import find_header, hash_sources
hash_sources()
"""
    code += f"torch.cuda.is_available() or sys.exit({_NO_GPU})" if on_gpu else "find_header()"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "ETT_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True)
    if done.returncode == _NO_GPU:
        raise InputError("ett bench: expected a GPU for this size, found none: --quick needs none")


Progress = Callable[[int, int], None]


def _ignore(starts: int, step: int) -> None:
    """Progress that is not shown."""


def drive(
    side: Side, workload: Workload, schedule: Schedule | None, tell: Progress = _ignore
) -> Finished:
    """Run a side to its end; `tell(starts, step)` is called for each logged step."""
    side.folder.mkdir(parents=True, exist_ok=True)
    command, env = side.command(workload, schedule), side.environment()
    most = 2 + (schedule.failures if schedule else 0)
    digest = None
    with (side.folder / _LOG).open("a", buffering=1) as log, Pulse() as pulse:
        for start in range(1, most + 1):
            ended, found, fault = _run(command, env, log, partial(tell, start))
            digest = found or digest
            if fault == "node":  # the next node has never run this job: its caches are empty
                for cache in ("TORCHINDUCTOR_CACHE_DIR", "ETT_BYTECODE"):
                    _move_away(Path(env[cache]), start)
            if ended == 0:
                run = side.folder / "runs" / side.name
                return Finished(
                    side=side, run=run, digest=digest, starts=start, pulse_s=pulse.seconds
                )
            if ended is not None:
                break
    tail = "".join((side.folder / _LOG).read_text().splitlines(keepends=True)[-15:])
    raise RunError(f"ett bench: {side.name} ended with {ended}; its last lines:\n{tail}")


def _move_away(cache: Path, start: int) -> None:
    """Rename the cache of a lost node. Deleting it would cost time that a real loss does not."""
    if cache.exists():
        cache.rename(cache.with_name(f"{cache.name}-lost-{start}"))


def _run(
    command: Sequence[str],
    env: Mapping[str, str],
    log: IO[str],
    tell: Callable[[int], None] = lambda step: None,
) -> tuple[int | None, str | None, str | None]:
    """The exit code (None: a fault ended the job), the digest, and the fault."""
    digest = None
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                digest = found[1] if (found := _DIGEST.search(line)) else digest
                if step := _STEP.match(line):
                    tell(int(step[1]))
                fault = _FAULT.match(line)
                if fault is not None:
                    log.write(_end(process, with_notice=fault[1] == "preempt"))
                    return None, digest, fault[1]
            return process.wait(), digest, None
        finally:
            if process.poll() is None:  # else the pid may belong to another process by now
                kill_all(process.pid)


def _end(process: "subprocess.Popen[str]", with_notice: bool) -> str:
    """End the job from outside; returns its remaining output."""
    note = ""
    if with_notice:
        process.send_signal(signal.SIGTERM)
        try:
            return process.communicate(timeout=GRACE_S)[0]
        except subprocess.TimeoutExpired as late:
            note = f"not gone after {late.timeout:.0f} s: killed\n"
    kill_all(process.pid)
    return note + process.communicate()[0]


def kill_all(root: int) -> None:
    """SIGKILL a process and its descendants. The parent is first, so that it restarts none."""
    for pid in (root, *list(_below(root))):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _below(root: int) -> Iterator[int]:
    for path in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            children = [int(word) for word in path.read_text().split()]
        except OSError:
            continue
        for pid in children:
            yield pid
            yield from _below(pid)
