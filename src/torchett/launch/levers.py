"""The levers a job asked for: what comes aboard its processes, and the settings that it reads.

By name only: a launcher imports none of them.
"""

import os
from dataclasses import dataclass

from torchett.launch.imports.bytecode import usual_folder
from torchett.record.boarding import WATCHES


@dataclass(frozen=True, slots=True, kw_only=True)
class Levers:
    """What `ett run` was asked to bring aboard."""

    hooks: bool = True
    compile_cache: str | None = None  # path or URL
    pins: bool = True
    audit: bool = False
    bytecode: bool = True
    warm_up: bool = False
    light_batches: bool = True
    meeting: bool = True
    standby_model: bool = False

    @property
    def aboard(self) -> tuple[str, ...]:
        """The modules, each with a function `board()`: see record.boarding."""
        chosen = {
            "torchett.launch.imports.bytecode": self.bytecode,
            "torchett.launch.imports.bundle": self.bytecode,
            "torchett.record.hooks": self.hooks,
            "torchett.record.adapters.aboard": self.hooks,
            **dict.fromkeys(WATCHES, self.hooks),
            "torchett.startup.meeting": self.meeting,
            "torchett.startup.audit": self.audit,
            "torchett.startup.recipe": self.standby_model,
            "torchett.startup.remembered": self.warm_up,
            "torchett.compile.board": self.compile_cache is not None,
            "torchett.feed.light": self.light_batches,
            "torchett.feed.pinned": self.light_batches,
        }
        return tuple(name for name, wanted in chosen.items() if wanted)

    @property
    def settings(self) -> dict[str, str]:
        """What those modules read from the environment."""
        found = {"ETT_PINS": str(int(self.pins))}
        found["ETT_STANDBY_MODEL"] = str(int(self.standby_model))
        if self.bytecode:
            found["ETT_BYTECODE"] = os.environ.get("ETT_BYTECODE") or usual_folder()
        if self.compile_cache is not None:
            is_url = "://" in self.compile_cache
            library = self.compile_cache if is_url else os.path.abspath(self.compile_cache)
            found["ETT_COMPILE_CACHE"] = library
            if self.bytecode and not is_url:
                found["ETT_IMPORTS"] = os.path.join(library, f".imports-{os.geteuid()}")
        return found
