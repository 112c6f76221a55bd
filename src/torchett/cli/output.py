"""How commands speak: plain tables, one JSON object, one line when something is wrong."""

import codecs
import errno
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import click

from torchett.model.errors import EttError

_PLAIN = dict(zip("█▒╳░▂▚▏▎▍▌▋▊▉─·–…→×±µ−", "#+x._%|||####---~>x~u-", strict=True))
# Packages below fsspec: what they raise is about credentials, addresses or the network.
_STORAGE_CLIENTS = frozenset({"adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "gcsfs"})
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
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in _STORAGE_CLIENTS:
                raise
            click.echo(f"ett: storage cannot be used: {type(error).__name__}: {error}", err=True)
            raise SystemExit(2) from None

    return spoken


def _forget_stdout() -> None:
    """Let nothing be said at exit of what stdout did not take."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--json: a command's result as one JSON object."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object.")(command)


def print_result(value: Mapping[str, Any], line: str, as_json: bool) -> None:
    """What a command did: one JSON object on stdout, or one line on stderr."""
    if as_json:
        print_json(value)
    else:
        click.echo(f"ett: {line}", err=True)


def print_json(value: Any) -> None:
    _leave_if_closed()
    click.echo(json.dumps(value, ensure_ascii=False))


def print_rich(renderable: Any) -> None:
    from rich.console import Console

    _leave_if_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):  # whose encoding may know no █
        codecs.register_error(_plainly.__name__, _plainly)
        encoding = "ascii" if _asks_for_ascii(os.environ) else None
        sys.stdout.reconfigure(encoding=encoding, errors=_plainly.__name__)
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    console.print(renderable)


def _asks_for_ascii(env: Mapping[str, str]) -> bool:
    """Whether the locale is C; Python itself writes UTF-8 there (PEP 540)."""
    locale = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or ""
    return locale in ("C", "POSIX") and not {"PYTHONIOENCODING", "PYTHONUTF8"} & env.keys()


def _leave_if_closed() -> None:
    """Exit if stdout is closed (`ett report … >&-`), as with a closed pipe."""
    if sys.stdout is None:
        raise SystemExit(1)


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """What an encoding without these characters shows for them, of the same width."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in missing), error.end
