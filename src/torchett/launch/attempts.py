"""Attempts at a command, one after the other, and what is recorded about each.

start fact ── command runs ── end fact ── leftovers ended, records sealed ── again?
"""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from torchett.launch.command import AGENT, agent_restarts, with_restarts
from torchett.launch.elastic.error_files import log_folder, log_restarts
from torchett.launch.options import Options
from torchett.launch.restarts import Restarts
from torchett.launch.scheduler.leaving import Leaving
from torchett.launch.scheduler.placement import Placement
from torchett.launch.settings.levers import IN_COMPILE_WORKERS
from torchett.launch.shipping import Shipping
from torchett.launch.supervise import Exit, Supervisor, end_leftovers
from torchett.model.causes import Domain, Outcome
from torchett.model.restarts import LifeEnd
from torchett.record.attempt_log import AttemptLog
from torchett.record.clock import Anchor, now_ns, process_start_ns
from torchett.record.flight.seal import seal_attempt
from torchett.record.identity import KEEPER
from torchett.record.plugins import SITE
from torchett.record.process import crash
from torchett.runs.folder import DUMP
from torchett.runs.launchers import Clocks, read_launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """A command, and the attempts at it that a launcher makes."""

    options: Options
    env: Mapping[str, str]
    plain: tuple[str, ...]  # the command without the restarts that torchrun may be given
    place: Placement
    here: Anchor
    run: Path
    job: str
    log: AttemptLog
    supervisor: Supervisor
    leaving: Leaving
    restarts: Restarts | None
    shipping: Shipping

    def make(self, first: int, shown: Path) -> Exit:
        """Run attempts from number `first` on; returns how the last one ended."""
        left = self.options.max_restarts
        began = process_start_ns() or now_ns()
        for attempt in count(first):
            fresh = attempt == first
            given = self.options.as_is
            command, by_agent, said = with_restarts(self.plain, left, given, self.env)
            place = self.place if fresh else Placement()
            self.log.append(_start_fact(attempt, began, place, self.here))
            say(_start_line(self.job, attempt, self.place, shown))
            if said and fresh:
                say(said)
            ended, outcome, logs = self.attempt(attempt, command, began)
            if outcome == "success" or ended.stopped or (by_agent and ended.code >= 0):
                return ended
            left -= 1 + (_agents_restarts(self.run, attempt) if by_agent else 0)
            if not self.again(attempt, ended, logs, left):
                return ended
            left = max(left, 0)
            began = now_ns()
        raise AssertionError

    def attempt(
        self, attempt: int, command: tuple[str, ...], began: int
    ) -> tuple[Exit, Outcome, Path | None]:
        """Run the command once and record how it ended; returns where its ranks' logs are."""
        environment = self.environment(attempt, began)
        ours = self.run / f"torchelastic-{attempt}"
        errors, told_where = log_folder(command, self.env, ours)
        notice = Path(environment["ETT_NOTICE"])
        give = partial(_give_notice, notice, AGENT in command, self.leaving)
        self.shipping.begin()
        ended = self.supervisor.run(command, environment | told_where, give)
        end_ns = now_ns()
        self.shipping.pause()
        outcome, cause, domain = _judge(ended)
        if errors is not None:
            raised = log_restarts(errors, self.log, attempt, began, self.here)
            if outcome == "failed" and raised and not ended.stopped:
                cause, domain = raised.text, raised.domain
        end = {"outcome": outcome, "cause": cause, "domain": domain, "exit_code": ended.code}
        self.log.append({"event": "end", "attempt": attempt, "t_ns": end_ns, **end})
        if outcome != "success":
            end_leftovers(but=KEEPER)
        seal_attempt(self.run, attempt, end_ns)
        return ended, outcome, errors

    def again(self, attempt: int, ended: Exit, logs: Path | None, left: int) -> bool:
        """Whether the command is started again; waits for the pause of the policy first."""
        if self.restarts is None or not self.options.max_restarts:
            return left >= 0
        word = ended.cause or "exit_0"
        end = LifeEnd(
            attempt=attempt,
            restart=_agents_restarts(self.run, attempt) if AGENT in self.plain else 0,
            limit=self.options.max_restarts,
            exits={} if AGENT in self.plain and ended.code >= 0 else {0: word},
            node=self.place.node,
            nodes=self.place.nodes,
            logs="" if logs is None else str(logs),
        )
        decision = self.restarts.decide(end)
        if decision is None:
            return left >= 0
        say(str(decision))
        notice = self.run / f"notice-{attempt}-{self.place.node}"
        give = partial(_give_notice, notice, False, self.leaving)
        return decision.restarts and self.supervisor.wait(decision.pause_s, give)

    def environment(self, attempt: int, began: int) -> dict[str, str]:
        """The environment of the command in this attempt."""
        options = self.options
        found = _environment(self.env, self.run, self.job, attempt, began, self.here)
        found |= _plugin_settings(options, self.env)
        if not options.as_is:
            found |= _dumps(self.env, self.run, attempt)
        if self.restarts is not None and AGENT in self.plain:
            found |= self.restarts.environment
        return found | {
            "ETT_STANDBY": str(int(options.standby)),
            "ETT_STANDBY_DEVICE": str(int(options.standby_device)),
            "ETT_PRELOAD": options.preload,
            "ETT_NODE": str(self.place.node),
            "ETT_LAUNCHER": str(os.getpid()),
            "ETT_NOTICE": str(self.run / f"notice-{attempt}-{self.place.node}"),
            "ETT_HANG_TIMEOUT": str(options.hang_timeout_s),
        }

    def close(self) -> None:
        if self.restarts is not None:
            self.restarts.close()


def restarts_of(
    options: Options, command: tuple[str, ...], env: Mapping[str, str], run: Path
) -> Restarts | None:
    """The server of the restart policy; None if there is nothing to decide."""
    own = AGENT in command and agent_restarts(command, env)
    if options.policy is None or not (options.max_restarts or own):
        return None
    return Restarts(options.policy, run, env, options.max_restarts, shared=not own)


def _start_line(job: str, attempt: int, place: Placement, run: Path) -> str:
    """The line that every start prints: `job gpt, attempt 0, in ett-runs/gpt`."""
    node = f", node {place.node} of {place.nodes}" if place.nodes > 1 else ""
    return f"job {job}, attempt {attempt}{node}, in {run}"


def _agents_restarts(run: Path, attempt: int) -> int:
    """How often the elastic agent of this attempt has started its ranks again."""
    known = read_launches(run, Clocks()).attempts
    return max((restart for number, restart in known if number == attempt), default=0)


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


def _plugin_settings(options: Options, env: Mapping[str, str]) -> dict[str, str]:
    """The variables by which the processes of this job install its plugins."""
    if not options.plugins:
        return dict(options.settings)
    plugins = (*options.plugins, crash.__name__)
    in_workers = [name for name in plugins if name in IN_COMPILE_WORKERS]
    path = [SITE, env["PYTHONPATH"]] if env.get("PYTHONPATH") else [SITE]
    return {
        **options.settings,
        "ETT_PLUGINS": ",".join(plugins),
        "ETT_WORKER_PLUGINS": ",".join(in_workers),
        "PYTHONPATH": os.pathsep.join(path),
    }


def _dumps(env: Mapping[str, str], run: Path, attempt: int) -> dict[str, str]:
    """Variables by which torch's flight recorder writes its dumps into the run folder."""
    names = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    if any(name in env for name in names):
        return {}
    return dict.fromkeys(names, f"{run / f'attempt-{attempt}'}/{DUMP}")


def _give_notice(notice: Path, by_agent: bool, leaving: Leaving, number: signal.Signals) -> bool:
    """Write the file by which ranks know that the job ends: an agent stops them by SIGTERM, too.

    SIGUSR1 would kill the agent: it goes no further. Where the job will be run again, SIGTERM
    follows it, and the job leaves.
    """
    if number not in (signal.SIGTERM, signal.SIGUSR1):
        return False
    try:
        notice.write_text(number.name)
    except OSError:
        pass
    leaving.hear(number, by_agent)
    return by_agent and number == signal.SIGUSR1


def _judge(ended: Exit) -> tuple[Outcome, str | None, Domain | None]:
    """Outcome, cause and domain, as far as an exit status tells."""
    if ended.by_warning:
        return "preempted", "preemption", None
    if signal.SIGTERM in ended.received:
        return "preempted", "external_sigterm", None
    if signal.SIGINT in ended.received:
        return "failed", "user_cancel", None
    return ("success", None, None) if ended.code == 0 else ("failed", ended.cause, None)


def say(text: str) -> None:
    """Print one line on stderr, if stderr is open."""
    try:
        if sys.stderr is not None:
            print(f"ett: {text}", file=sys.stderr, flush=True)
    except OSError:
        pass
