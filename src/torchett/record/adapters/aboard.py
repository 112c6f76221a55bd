"""Aboard a job: `report_to="torchett"` of a Hugging Face Trainer works in a script nobody changed.

Brought by a launcher through `record.boarding`; Lightning needs no more than its entry point.
"""

from types import ModuleType
from typing import Any

from torchett.record.boarding import when_imported


class Torchett:
    """Becomes the adapter's callback when a Trainer makes one: transformers is imported by then."""

    def __new__(cls) -> Any:
        from torchett.record.adapters.transformers import EttCallback

        return EttCallback()


def board() -> None:
    """Make the name known once transformers' integrations are imported."""
    when_imported("transformers.integrations.integration_utils", _register)


def _register(module: ModuleType) -> None:
    module.INTEGRATION_TO_CALLBACK.setdefault("torchett", Torchett)
