"""A function of somebody else's, wrapped in place and put back."""

import functools
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("torchett")

_MARK = "_torchett_original"


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Have `around(original, *args)` called in place of a function; once only, if there is one."""
    original = getattr(owner, name, None)
    if original is None:
        log.debug("torchett: there is no %s in %s", name, owner)
        return
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(wrapped, _MARK, original)
    setattr(owner, name, wrapped)


def unwrap(owner: Any, name: str) -> None:
    """Put the original back."""
    if is_wrapped(owner, name):
        setattr(owner, name, getattr(getattr(owner, name), _MARK))


def is_wrapped(owner: Any, name: str) -> bool:
    return hasattr(getattr(owner, name, None), _MARK)
