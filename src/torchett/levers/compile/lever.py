"""The plugins of this lever that `ett run` may install: see record/levers.py."""

from torchett.record.levers import Lever, Plugin

LEVER = Lever(
    plugins=(
        Plugin("compile-watch", "torchett.levers.compile.observe.watch", "record"),
        Plugin("pins", "torchett.levers.compile.tuning.pins", "run"),
        Plugin("compile-cache", "torchett.levers.compile.cache.plugin", "asked"),
    ),
    standby_imports=(
        "torchett.levers.compile.cache.session",
        "torchett.levers.compile.observe.watch",
        "torchett.levers.compile.tuning.pins",
    ),
)
