"""Causes of failed attempts under a stock torchrun, from its workers' error files.

    ett run --as-is -- torchrun --max-restarts 2 train.py         (main is decorated with @record)
    ETT_RUN/torchelastic-0/<id>/attempt_0/1/error.json      → the cause of restart 0's end
    ETT_RUN/torchelastic-0/<id>/attempt_1/                  made when restart 1 began

A restart writes nothing else down. Where the user chose a log folder, that one is read.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchett.model.causes import Domain
from torchett.record.attempt_log import AttemptLog
from torchett.record.clock import Anchor

_FLAGS = ("--log-dir", "--log_dir")
_REDIRECTS = ("-r", "--redirects", "-t", "--tee")
_LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The first error of one restart: what was raised, on which local rank, when it was written."""

    restart: int
    local_rank: int
    text: str
    wall_ns: int

    @property
    def domain(self) -> Domain | None:
        """The domain, if it is an exception: torch writes a signal as `Signal 9 (…)`."""
        from torchett.failures.classifier import domain_of_exception

        return None if self.text.upper().startswith("SIG") else domain_of_exception(self.text)


def log_folder(
    command: Sequence[str], env: Mapping[str, str], ours: Path
) -> tuple[Path | None, dict[str, str]]:
    """The folder of torchrun's error files, and the environment that sets it.

    Nothing is changed where the user named a folder, or wants logs redirected into torchrun's own.
    """
    if not any(
        Path(word).name == "torchrun" or word == "torch.distributed.run" for word in command
    ):
        return None, {}
    for word, value in zip(command, [*command[1:], ""], strict=True):
        if word in _FLAGS:
            return Path(value), {}
        if word.startswith(tuple(f"{flag}=" for flag in _FLAGS)):
            return Path(word.split("=", 1)[1]), {}
    if env.get("PET_LOG_DIR"):
        return Path(env["PET_LOG_DIR"]), {}
    redirected = any(word.split("=")[0] in _REDIRECTS for word in command)
    if redirected or env.get("PET_REDIRECTS") or env.get("PET_TEE"):
        return None, {}
    return ours, {"PET_LOG_DIR": str(ours)}


def failures(folder: Path, since_ns: int = 0) -> list[Failure]:
    """The first failure of each restart, of error files written after `since_ns` (wall time)."""
    first: dict[int, Failure] = {}
    for failure in _error_files(folder):
        known = first.get(failure.restart)
        if failure.wall_ns >= since_ns and (known is None or failure.wall_ns < known.wall_ns):
            first[failure.restart] = failure
    return [first[restart] for restart in sorted(first)]


def restarts(folder: Path, since_ns: int = 0) -> dict[int, int]:
    """When each restart began (wall time): torchrun makes a folder for it and its workers then."""
    began: dict[int, int] = {}
    for path in folder.glob("*/attempt_*"):
        number = path.name.removeprefix("attempt_")
        try:
            wall_ns = path.stat().st_mtime_ns
        except OSError:
            continue
        if number.isdigit() and wall_ns >= since_ns:
            began[int(number)] = min(wall_ns, began.get(int(number), wall_ns))
    return began


def log_restarts(
    errors: Path, log: AttemptLog, attempt: int, began: int, here: Anchor
) -> Failure | None:
    """The failure of a stock torchrun's last restart; those before it are written to the log."""
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
        end["domain"] = None if failure is None else failure.domain
        log.append({"event": "end", **lane, **end})
        lane["restart"] = restart
        log.append({"event": "start", **lane, "t_ns": starts[restart] - here.offset_ns})
    return texts.get(last)


def _error_files(folder: Path) -> Iterator[Failure]:
    for path in folder.glob("*/attempt_*/*/error.json"):
        rank, restart = path.parent.name, path.parent.parent.name.removeprefix("attempt_")
        if not (rank.isdigit() and restart.isdigit()):
            continue
        try:
            text = _text(json.loads(path.read_bytes()))
            wall_ns = path.stat().st_mtime_ns
        except (OSError, ValueError, RecursionError):
            continue
        if text:
            yield Failure(restart=int(restart), local_rank=int(rank), text=text, wall_ns=wall_ns)


def _text(said: Any) -> str | None:
    """The message of an error file, on one line."""
    message = said.get("message") if isinstance(said, dict) else None
    if isinstance(message, dict):
        message = message.get("message")
    if not isinstance(message, str):
        return None
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
