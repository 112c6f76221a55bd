"""What each lever offers to a job: the table that `ett run` and a trainer read.

    levers/compile/lever.py   LEVER = Lever(plugins=(Plugin("pins", "…tuning.pins", "run"), …), …)
    levers/startup/lever.py   LEVER = …
                  │
    all_levers() ─┴─► one Lever for each folder of levers/ that has a `lever.py`

A lever registers itself by having that file. It imports nothing but this module, so reading all of
them takes a few milliseconds, also in a trainer, and needs no installed package.
"""

import os
from functools import cache
from importlib import import_module
from typing import NamedTuple

from torchett.record.patch_table import Default

_PACKAGE = __name__.partition(".")[0]
_WING = os.path.join(os.path.dirname(os.path.dirname(__file__)), "levers")


class Plugin(NamedTuple):
    """A module with a function `install_plugin()`, called in a process before its script."""

    lever: str  # the name that turns it on or off, as in record/patches.py
    module: str
    default: Default


class Lever(NamedTuple):
    """What one folder of levers/ offers."""

    plugins: tuple[Plugin, ...] = ()
    standby_imports: tuple[str, ...] = ()  # what a rank may import: a standby does so ahead
    compile_ahead: str = ""  # the module by which a standby compiles a model: see standby/model.py


RECORD = (  # this room's own
    Plugin("hooks", "torchett.record.hooks", "run"),
    Plugin("hooks", "torchett.record.hooks.saves", "record"),
    Plugin("transformers", "torchett.record.adapters.transformers_plugin", "run"),
    Plugin("healthy-ranks", "torchett.record.adapters.healthy_ranks", "record"),
)


@cache
def all_levers() -> tuple[Lever, ...]:
    """What every lever offers, in the order of their names."""
    names = sorted(os.listdir(_WING))
    folders = [name for name in names if os.path.exists(os.path.join(_WING, name, "lever.py"))]
    return tuple(import_module(f"{_PACKAGE}.levers.{name}.lever").LEVER for name in folders)


def all_plugins() -> tuple[Plugin, ...]:
    """Every plugin, those of this room first."""
    return (*RECORD, *(plugin for lever in all_levers() for plugin in lever.plugins))


def default_plugins() -> tuple[str, ...]:
    """The modules of the plugins that every recorded process has: they only observe."""
    return tuple(plugin.module for plugin in all_plugins() if plugin.default == "record")
