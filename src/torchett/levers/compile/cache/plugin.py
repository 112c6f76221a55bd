"""The plugin of `ett run --compile-cache URL`: see record/plugins.py."""

import os
from types import ModuleType

from torchett.record.plugins import when_imported


def install_plugin() -> None:
    """Use the library at ETT_COMPILE_CACHE for all compiles of this process."""
    if os.environ.get("ETT_COMPILE_CACHE"):
        when_imported("torch._dynamo", _start)


def _start(_: ModuleType) -> None:
    from torchett.levers.compile.cache.session import start

    start(os.environ["ETT_COMPILE_CACHE"])
