"""Compile once, reuse everywhere, recompile never."""

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """This room is also what a script calls: `model = ett.compile(model, cache=…)`."""

    def __call__(self, model: Any = None, **options: Any) -> Any:
        from torchett.compile.compiled import compile as compile_

        return compile_(model, **options)


sys.modules[__name__].__class__ = _Room
