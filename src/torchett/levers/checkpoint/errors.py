"""What can be wrong with checkpoints, as one tree.

EttError
└── CheckpointError          one line: what was wrong, the value seen, what to do
    ├── CorruptCheckpoint    bytes on storage are not the bytes that were written
    └── StateMismatch        a sound checkpoint that does not fit this job
"""

from torchett.model.errors import EttError


class CheckpointError(EttError):
    """A checkpoint could not be made, found or loaded."""


class CorruptCheckpoint(CheckpointError):  # noqa: N818  (what it is, not what happened)
    """Bytes on storage are not the bytes that were written."""


class StateMismatch(CheckpointError):  # noqa: N818
    """A sound checkpoint does not fit the state, or the number of ranks, of this job."""
