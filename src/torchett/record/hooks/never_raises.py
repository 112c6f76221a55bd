"""Hooks never raise into a training script: if one fails, all are disabled."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def never_raises(act: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T | None]:
    """The method, which calls `self.disable(error)` where it fails, and returns None once disabled.

    What is called in every step says the same in its own words, without a call more.
    """

    @wraps(act)
    def safe(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        if self.disabled:
            return None
        try:
            return act(self, *args, **kwargs)
        except Exception as error:
            self.disable(error)
            return None

    return safe
