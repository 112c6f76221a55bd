"""What can be wrong with publishing, as one tree.

EttError
└── PublishError          one line: what was wrong, the value seen, what to do
    ├── RecipeError       the recipe cannot be imported, raises, or does not fit the anchor
    ├── ParityError       the served model differs from the anchor by more than the recipe allows
    ├── RegistryError     a version or an alias is missing, damaged or taken
    └── LostClaim         another worker has the job by now: stop, it will be published there
"""

from torchett.model.errors import EttError


class PublishError(EttError):
    """A model could not be published or served."""


class RecipeError(PublishError):
    """The recipe cannot be imported, raises, or does not fit the anchor."""


class ParityError(PublishError):
    """The served model differs from the anchor by more than the recipe allows."""


class RegistryError(PublishError):
    """A version or an alias is missing, damaged or taken."""


class LostClaim(PublishError):  # noqa: N818  (what happened, not what is wrong)
    """Another worker has the job by now."""


def one_line(error: BaseException) -> str:
    """What an exception says, in one line that names its kind unless it is ours."""
    said = " ".join(str(error).split())
    said = said if len(said) <= 600 else said[:597] + "…"
    return said if isinstance(error, EttError) else f"{type(error).__name__}: {said}"
