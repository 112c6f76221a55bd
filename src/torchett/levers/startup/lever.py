"""The plugins of this lever that `ett run` may install: see record/levers.py."""

from torchett.record.levers import Lever, Plugin

LEVER = Lever(
    plugins=(Plugin("standby-model", "torchett.levers.startup.first_compile.recipe", "asked"),),
    standby_imports=("torchett.levers.startup.first_compile.fast_batch",),
    compile_ahead="torchett.levers.startup.first_compile.precompile",
)
