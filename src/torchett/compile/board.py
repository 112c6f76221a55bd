"""What `ett run --compile-cache URL` brings aboard a process: see record.boarding."""

import os
from types import ModuleType

from torchett.record.boarding import when_imported


def board() -> None:
    """Use the library at ETT_COMPILE_CACHE for whatever this process compiles."""
    if os.environ.get("ETT_COMPILE_CACHE"):
        when_imported("torch._dynamo", _start)


def _start(_: ModuleType) -> None:
    from torchett.compile.session import start

    start(os.environ["ETT_COMPILE_CACHE"])
