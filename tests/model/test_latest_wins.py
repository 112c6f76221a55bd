"""Which interval gets an instant that several cover: the one that began last."""

from hypothesis import given
from hypothesis import strategies as st

from torchett.model.overlap import Interval, latest_wins


def whole(t0: int, t1: int) -> Interval:
    return t0, t1, t0, t1


def owners(intervals: list[Interval]) -> str:
    """The owner of each instant from 0 on: interval a, b, c …, or a dot for none."""
    drawn: list[str] = []
    for begin, end, which in latest_wins(intervals):
        assert len(drawn) <= begin < end, "pieces are in order, apart, and not empty"
        drawn += ["."] * (begin - len(drawn)) + [chr(ord("a") + which)] * (end - begin)
    return "".join(drawn)


def test_the_drawing_of_the_docstring() -> None:
    """
    outer  ├──────────────────────┤
    inner       ├──────┤
    late            ├───────┤
    """
    assert owners([whole(0, 12), whole(2, 7), whole(4, 9)]) == "aabbcccccaaa"


def test_nothing_is_owned_where_nothing_is() -> None:
    assert owners([]) == ""
    assert owners([whole(3, 3)]) == ""
    assert owners([whole(1, 2), whole(4, 5)]) == ".a..b"


def test_ties() -> None:
    """Same begin: the interval that ends first. Same begin and end: the later in the sequence."""
    assert owners([whole(0, 4), whole(0, 2)]) == "bbaa"
    assert owners([whole(0, 2), whole(0, 4)]) == "aabb"
    assert owners([whole(0, 2), whole(0, 2)]) == "bb"


def test_order_is_by_recorded_times() -> None:
    """
    clipped   a 0──4   b 0──4      recorded   a −1──4   b −2──4
    """
    assert owners([(0, 4, -1, 4), (0, 4, -2, 4)]) == "aaaa"
    assert owners([(0, 4, -2, 9), (0, 4, -2, 5)]) == "bbbb"


TIMES = st.integers(0, 12)
INTERVALS = st.lists(
    st.builds(
        lambda t0, length, before, after: (t0, t0 + length, t0 - before, t0 + length + after),
        TIMES,
        TIMES,
        st.sampled_from((0, 0, 1, 2)),
        st.sampled_from((0, 0, 1, 2)),
    ),
    max_size=9,
)


@given(INTERVALS)
def test_it_agrees_with_a_search_instant_by_instant(intervals: list[Interval]) -> None:
    found = owners(intervals).ljust(30, ".")
    for t in range(30):
        claims = [i for i, (begin, end, _, _) in enumerate(intervals) if begin <= t < end]
        winner = max(claims, key=lambda i: (intervals[i][2], -intervals[i][3], i), default=None)
        assert found[t] == ("." if winner is None else chr(ord("a") + winner))
