"""The plugins of this lever that `ett run` may install: see record/levers.py."""

from torchett.record.levers import Lever, Plugin

LEVER = Lever(plugins=(Plugin("light-batches", "torchett.levers.batches.light", "asked"),))
