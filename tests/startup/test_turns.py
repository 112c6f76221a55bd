"""Turns of the interpreter are short while threads work side by side, and then as they were."""

import sys
from collections.abc import Iterator

import pytest

from torchett.startup.turns import short_turns


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_short_inside_and_as_before_outside() -> None:
    sys.setswitchinterval(0.005)
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(0.0005, rel=0.05)
        with short_turns():
            pass
        assert sys.getswitchinterval() == pytest.approx(0.0005, rel=0.05)
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_shorter_ones_are_left_alone() -> None:
    sys.setswitchinterval(0.0001)
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(0.0001, rel=0.05)
    assert sys.getswitchinterval() == pytest.approx(0.0001, rel=0.05)
