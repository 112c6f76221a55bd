"""The levers that a job asked for: the plugins of its processes, and the settings they read.

Which plugins there are is in the table of `record/levers.py`; a launcher imports none of them.
"""

import os
from dataclasses import dataclass

from torchett.launch.imports import bytecode
from torchett.record.levers import all_plugins

# Inductor's compile workers get these, too: they import torch while a rank waits for kernels.
IN_COMPILE_WORKERS = (bytecode.__name__,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Levers:
    """What `ett run` installs for a job."""

    hooks: bool = True
    compile_cache: str | None = None  # path or URL
    pins: bool = True
    audit: bool = False
    bytecode: bool = True
    light_batches: bool = False
    standby_model: bool = False
    without: tuple[str, ...] = ()  # levers and targets to leave alone

    @property
    def plugins(self) -> tuple[str, ...]:
        """The modules of the plugins, each with a function `install_plugin()`."""
        wanted = {
            "audit": self.audit,
            "compile-cache": self.compile_cache is not None,
            "light-batches": self.light_batches,
            "pins": self.hooks and self.pins,
            "standby-model": self.standby_model,
        }
        own = (bytecode.__name__,) if self.bytecode else ()
        table = all_plugins()
        return (*own, *(each.module for each in table if wanted.get(each.lever, self.hooks)))

    @property
    def on(self) -> tuple[str, ...]:
        """The names of those that are on, for the job's log: advice passes them over."""
        chosen = {
            "bytecode": self.bytecode,
            "pins": self.hooks and self.pins,
            "compile-cache": self.compile_cache is not None,
            "light-batches": self.light_batches,
            "standby-model": self.standby_model,
        }
        return tuple(name for name, on in chosen.items() if on and name not in self.without)

    @property
    def settings(self) -> dict[str, str]:
        """What those modules read from the environment."""
        found = {"ETT_PINS": str(int(self.pins))}
        found["ETT_STANDBY_MODEL"] = str(int(self.standby_model))
        without = [*self.without, os.environ.get("ETT_WITHOUT", "")]
        if named := ",".join(filter(None, without)):
            found["ETT_WITHOUT"] = named
        if self.bytecode:
            found["ETT_BYTECODE"] = os.environ.get("ETT_BYTECODE") or bytecode.usual_folder()
        if self.compile_cache is not None:
            is_url = "://" in self.compile_cache
            library = self.compile_cache if is_url else os.path.abspath(self.compile_cache)
            found["ETT_COMPILE_CACHE"] = library
        return found
