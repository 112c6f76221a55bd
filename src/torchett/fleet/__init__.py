"""Ledgers of many jobs as rows: rolled up once, read by SQL."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchett.fleet.fleet import Fleet, fleet_folder

__all__ = ["Fleet", "fleet_folder"]


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: reading run folders alone needs neither DuckDB nor Arrow."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchett.fleet import fleet

    return getattr(fleet, name)
