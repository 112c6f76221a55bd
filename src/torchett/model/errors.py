"""The errors that torchett raises, as one tree. A script can catch `ett.EttError` and its branches.

EttError(Exception)      one line: what was wrong, the value seen, what to do
├── InputError           a file or an argument the user gave: exit code 2
├── RunError             a run folder that is missing, unreadable or in use: exit code 2
├── CheckpointError      a checkpoint that could not be made, found or loaded
│   ├── CorruptCheckpoint    bytes on storage are not the bytes that were written
│   └── StateMismatch        a sound checkpoint that does not fit this job
└── PublishError         a model that could not be published or served
"""


class EttError(Exception):
    """The base of all errors about torchett's input; never raised inside a training loop."""


class InputError(EttError):
    """A file or argument is not what was expected."""


class RunError(EttError):
    """A run cannot be found, read or written."""
