"""Puts the helpers of the neighbouring rooms within reach."""

import sys
from pathlib import Path

for room in ("ledger", "record"):
    sys.path.insert(0, str(Path(__file__).parent.parent / room))
