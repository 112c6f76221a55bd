"""Publishing from an anchor checkpoint, on CPU, after the devices are given back."""

from torchett.levers.publish.errors import (
    LostClaim,
    ParityError,
    PublishError,
    RecipeError,
    RegistryError,
)
from torchett.levers.publish.recipe.recipe import Parity, Recipe

__all__ = [
    "LostClaim",
    "Parity",
    "ParityError",
    "PublishError",
    "Recipe",
    "RecipeError",
    "RegistryError",
]
