"""Python tracebacks in a log: which lines are source code, and which function raised an exception.

Traceback (most recent call last):
  File "/app/train.py", line 40, in main              code
    dist.broadcast(x, src=0)                          code
  File "…/torch/distributed/c10d.py", line 9, in run  code, the innermost frame
    work.wait()                                       code
RuntimeError: the peer is gone                        raised in …/torch/distributed/c10d.py run
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from torchett.failures.lines import parse_line

_FRAME: Final = re.compile(r'^\s*File "([^"]*)", line \d+(?:, in (\S+))?')
_ERROR: Final = re.compile(r"[\w.]+(?:Error|Exception)\b")
_UNTIL: Final = 6  # lines after a frame in which the exception is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracebacks:
    """Indices of lines with frames and source, and where the exception of a line was raised."""

    code: frozenset[int] = frozenset()
    raised_in: dict[int, str] = field(default_factory=dict)


def read_tracebacks(lines: Sequence[str], at: Sequence[int]) -> Tracebacks:
    """The tracebacks among the lines, of which those `at` contain `File "`."""
    code: set[int] = set()
    frames: dict[int, str] = {}
    for index in at:
        frame = _FRAME.match(parse_line(lines[index], 0).message)
        if frame is None:
            continue
        code.add(index)
        frames[index] = f"{frame[1]} {frame[2] or ''}"
        indent = len(lines[index]) - len(lines[index].lstrip())
        after = lines[index + 1 : index + 2]
        if after and not after[0].lstrip().startswith('File "'):
            shown = parse_line(after[0], 0).message
            deeper = len(after[0]) - len(after[0].lstrip()) > indent
            if deeper or not _ERROR.match(shown):
                code.add(index + 1)
    raised_in: dict[int, str] = {}
    for index, path in frames.items():
        for line in range(index + 1, min(index + _UNTIL, len(lines))):
            if line in frames:
                break
            if line not in code:
                raised_in[line] = path
    return Tracebacks(code=frozenset(code), raised_in=raised_in)
