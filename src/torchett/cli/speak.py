"""How commands speak: plain tables, one JSON object, one line when something is wrong."""

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from torchett.model.errors import EttError


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
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None

    return spoken


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def print_rich(renderable: Any) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    console.print(renderable)
