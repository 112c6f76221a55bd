"""The command that `ett run` starts, made of the one it was given."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from torchett.model.errors import InputError

AGENT = "torchett.launch.elastic.agent"
_TORCHRUN = (AGENT, "torch.distributed.run")


def command_of(given: Sequence[str], as_is: bool) -> tuple[str, ...]:
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


def script_of(command: Sequence[str]) -> str:
    """The name of the script that the command runs, else the command's own."""
    scripts = (Path(word).stem for word in command if word.endswith(".py"))
    return next(scripts, Path(command[0]).name)


def with_restarts(
    command: Sequence[str], restarts: int, as_is: bool, env: Mapping[str, str]
) -> tuple[tuple[str, ...], bool, str | None]:
    """The command with its restarts, whether torch's agent makes them, and a line that says so.

    The agent starts its ranks again at once, on standbys; a new torchrun begins from nothing. One
    that has restarts of its own keeps them, and ours start torchrun again after its last.
    """
    at = _torchrun_at(command)
    if not restarts or as_is or at is None:
        return tuple(command), False, None
    own = _own_restarts(command[at + 1 :]) or env.get("PET_MAX_RESTARTS")
    if own:
        said = f"torchrun restarts its ranks up to {own} times, by its own --max-restarts"
        return (
            tuple(command),
            False,
            f"{said}; after that it is started again up to {restarts} times",
        )
    passed = (*command[: at + 1], f"--max-restarts={restarts}", *command[at + 1 :])
    return passed, True, f"torchrun is given --max-restarts={restarts}: its agent restarts ranks"


def agent_restarts(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether the torchrun of this command has --max-restarts above 0."""
    at = _torchrun_at(command)
    if at is None:
        return False
    return (_own_restarts(command[at + 1 :]) or env.get("PET_MAX_RESTARTS") or "0") != "0"


def torchrun_words(command: Sequence[str]) -> Sequence[str] | None:
    """What follows torchrun in this command; None if there is none."""
    at = _torchrun_at(command)
    return None if at is None else command[at + 1 :]


def _torchrun_at(command: Sequence[str]) -> int | None:
    """Where in the command torchrun is named: its options follow."""
    if Path(command[0]).name == "torchrun":
        return 0
    for at, (word, following) in enumerate(pairwise(command)):
        if word == "-m":
            return at + 1 if following in _TORCHRUN else None
    return None


def _own_restarts(words: Sequence[str]) -> str | None:
    """The --max-restarts among torchrun's options; the script's options come after the script."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, given, value = word.replace("_", "-").partition("=")
        if name == "--max-restarts":
            return value if given else following
        if word in ("-m", "--module") or (word.endswith(".py") and not word.startswith("-")):
            return None
    return None
