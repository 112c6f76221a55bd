"""How commands speak: plain tables, one JSON object, one line when something is wrong."""

import errno
import io
import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from torchett.model.errors import EttError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def speaks_plainly(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what torchett says is wrong into one line on stderr and exit code 2."""

    @wraps(command)
    def spoken(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except EttError as error:
            click.echo(f"ett: {error}", err=True)
            raise SystemExit(2) from None
        except BrokenPipeError:  # `ett report … | head`
            _forget_stdout()
            raise SystemExit(1) from None
        except OSError as error:  # `ett report … > /dev/full`
            if error.errno not in _NO_ROOM:
                raise
            click.echo(f"ett: {error.filename or 'output'} not written: {error.strerror}", err=True)
            _forget_stdout()
            raise SystemExit(2) from None

    return spoken


def _forget_stdout() -> None:
    """Let nothing be said at exit of what stdout did not take."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def print_rich(renderable: Any) -> None:
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):  # whose encoding may know no █
        sys.stdout.reconfigure(errors="replace")
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    console.print(renderable)
