"""What can be wrong, as one tree.

EttError(Exception)      one line: what was wrong, the value seen, what to do
├── InputError           a file or an argument the user gave: exit code 2
└── RunError             a run folder that is missing, unreadable or in use: exit code 2
"""


class EttError(Exception):
    """Anything torchett says about its own input; never raised inside a training loop."""


class InputError(EttError):
    """A file or argument is not what was expected."""


class RunError(EttError):
    """A run cannot be found, read or written."""
