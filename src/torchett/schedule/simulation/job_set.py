"""A set of job numbers whose members are one slice of a numpy array: what policies read."""

import numpy as np

from torchett.schedule.values import Ints


class JobSet:
    """Adds and removes in O(1): the last member takes the place of the removed one.

    numbers   7 2 9 | 2 5 …      members 7, 2, 9; what follows them is left over
    """

    def __init__(self, most: int) -> None:
        self._numbers = np.zeros(most, dtype=np.int64)
        self._place = [-1] * most
        self._count = 0

    def add(self, job: int) -> None:
        self._numbers[self._count] = job
        self._place[job] = self._count
        self._count += 1

    def remove(self, job: int) -> None:
        place = self._place[job]
        self._count -= 1
        moved = int(self._numbers[self._count])
        self._numbers[place] = moved
        self._place[moved] = place
        self._place[job] = -1

    def sorted(self) -> Ints:
        return np.sort(self._numbers[: self._count])
