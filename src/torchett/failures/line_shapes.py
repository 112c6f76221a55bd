"""Which lines of a log contain a text, found among lines that are equal but for their digits.

    step 811 loss 2.31        one shape: "step  loss ."
    step 812 loss 2.29

A log of a training repeats few shapes many times. Only the shapes are searched, and only for texts
whose longest word is part of a word of the log. Without digits, every line that contains a text
still contains it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

_NO_DIGITS: Final = str.maketrans("", "", "0123456789")


class LineShapes:
    """The shapes of a text's lines."""

    def __init__(self, lines: Sequence[str]) -> None:
        shapes = "\n".join(lines).lower().translate(_NO_DIGITS).split("\n")
        self._lines_of: dict[str, list[int]] = {}
        for index, shape in enumerate(shapes):
            self._lines_of.setdefault(shape, []).append(index)
        self._shapes = list(self._lines_of)
        self._whole = "\n".join(self._shapes)
        self._words = "\n".join(set(self._whole.split()))
        self._starts: list[int] = []
        start = 0
        for shape in self._shapes:
            self._starts.append(start)
            start += len(shape) + 1

    def with_text(self, text: str) -> list[int]:
        """Indices of the lines that may contain the text, in lower case; all for an empty one."""
        text = text.translate(_NO_DIGITS)
        found: list[int] = []
        if max(text.split(), key=len, default="") not in self._words:
            return found
        at = self._whole.find(text)
        while at >= 0:
            number = bisect_right(self._starts, at) - 1
            found += self._lines_of[self._shapes[number]]
            if number + 1 >= len(self._starts):
                break
            at = self._whole.find(text, self._starts[number + 1])
        return sorted(found)
