"""The interchange format events/1: JSON lines in (`reader.py`), JSON lines out (`writer.py`)."""

from torchett.runs.events.reader import parse, read
from torchett.runs.events.writer import FORMAT, write

__all__ = ["FORMAT", "parse", "read", "write"]
