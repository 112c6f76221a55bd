"""`report_to="torchett"` of a Hugging Face Trainer, in an unchanged script.

A plugin of `ett run`, because transformers has no entry point for callbacks; Lightning has one.
"""

from types import ModuleType
from typing import Any

from torchett.record.patches import install
from torchett.record.plugins import when_imported


class Torchett:
    """Becomes the adapter's callback when a Trainer makes one: transformers is imported by then."""

    def __new__(cls) -> Any:
        from torchett.record.adapters.transformers import EttCallback

        return EttCallback()


def install_plugin() -> None:
    """Make the name known once transformers' integrations are imported."""
    when_imported("transformers.integrations.integration_utils", _register)


def _register(_: ModuleType) -> None:
    install(
        "transformers.integrations.integration_utils:INTEGRATION_TO_CALLBACK",
        lambda known: {"torchett": Torchett, **known},
    )
