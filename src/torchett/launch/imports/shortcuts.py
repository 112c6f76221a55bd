"""What torch does while it is imported that nobody needs yet, done faster or later.

    import torch, dynamo, inductor    ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒
    with these                        ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓      an eighth less

Whoever asks gets what he would have got; so they stay when the imports are over.
"""

import inspect
import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib.util import find_spec
from types import FrameType, ModuleType
from typing import Any

from torchett.launch.imports.hashes import recall
from torchett.launch.imports.instructions import ask_for_the_best
from torchett.record.boarding import when_imported


def take() -> None:
    """For a process that is about to import torch."""
    name_modules_of_frames()
    when_imported("torch._inductor.codegen.common", compile_templates_late)
    when_imported("torch._inductor.cpu_vec_isa", ask_for_the_best)
    when_imported("torch._inductor.codecache", recall)


def name_modules_of_frames() -> None:
    """Have `inspect.getmodule` find the module of a frame by its name.

    torch asks for it with every operator that is registered, and is told after a look at the files
    of all modules there are.
    """
    search = inspect.getmodule

    @wraps(search)
    def getmodule(object: Any, _filename: str | None = None) -> ModuleType | None:
        if isinstance(object, FrameType):
            module = sys.modules.get(object.f_globals.get("__name__", ""))
            if (
                module is not None
                and vars(module) is object.f_globals
                and getattr(module, "__file__", None) == object.f_code.co_filename
            ):
                return module
        return search(object, _filename)

    inspect.getmodule = getmodule


def compile_templates_late(common: ModuleType) -> None:
    """Have inductor's templates (of products, convolutions, flexible attention) compiled when used.

    They are kernels to choose from in max-autotune; most jobs render none of the two dozen.
    """
    at_once = common.KernelTemplate._template_from_string
    if find_spec("jinja2") is not None:  # without it there are no templates
        common.KernelTemplate._template_from_string = staticmethod(partial(_Late, at_once))


class _Late:
    """A template that is compiled when something of it is first asked for."""

    def __init__(self, compiled: Callable[[str], Any], source: str) -> None:
        self._compiled, self._source = compiled, source

    def __getattr__(self, name: str) -> Any:
        if "_source" not in self.__dict__:  # it is being copied
            raise AttributeError(name)
        if "_template" not in self.__dict__:
            self._template = self._compiled(self._source)
        return getattr(self._template, name)
