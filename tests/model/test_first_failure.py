"""Which of several ranks' ends caused the others."""

import pytest

from torchett.model.first_failure import RankEnd, first_failure

RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"


def end(rank: int, cause: str, t_ns: int = 0) -> RankEnd:
    return RankEnd(rank=rank, cause=cause, t_ns=t_ns, raised=": " in cause)


def first(*ends: RankEnd) -> tuple[int, str]:
    found = first_failure(ends)
    assert found is not None
    return found.rank, found.cause


def test_without_ends_there_is_no_first() -> None:
    assert first_failure([]) is None


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSEGV", "SIGBUS", "hang"])
def test_a_kill_comes_before_the_exit_of_a_peer_found_in_the_same_poll(signal: str) -> None:
    """Ranks are polled in order: rank 0, which failed as a consequence, is found first."""
    assert first(end(0, "exit_1"), end(1, signal)) == (1, signal)
    assert first(end(0, "SIGABRT"), end(1, signal)) == (1, signal)
    assert first(end(0, RESET, 5), end(0, "exit_1", 9), end(1, signal, 9)) == (1, signal)


def test_an_error_of_its_own_comes_before_one_at_a_lost_peer() -> None:
    mine = "ValueError: bad loss"
    assert first(end(0, RESET, 3), end(1, mine, 5)) == (1, mine)
    assert first(end(0, "SIGABRT", 3), end(1, mine, 5)) == (1, mine)
    assert first(end(0, "DistBackendError: NCCL error", 3), end(1, mine, 5)) == (1, mine)
    assert first(end(0, "SIGTERM", 3), end(1, "exit_1", 5)) == (1, "exit_1")


def test_of_two_alike_the_earlier_is_the_first() -> None:
    assert first(end(0, "ValueError: a", 9), end(1, "ValueError: b", 5)) == (1, "ValueError: b")
    assert first(end(3, "exit_1", 5), end(1, "exit_1", 5)) == (1, "exit_1")


def test_an_exception_of_a_rank_replaces_its_exit_status() -> None:
    for ends in ([end(0, "exit_1", 9), end(0, "KeyError: 'x'", 5)],) * 2:
        assert first(*ends) == first(*reversed(ends)) == (0, "KeyError: 'x'")
    assert first(end(0, RESET, 2), end(0, "SIGKILL", 3)) == (0, "SIGKILL")


def test_the_last_exception_of_a_rank_counts() -> None:
    """The command is a shell script, and its first program may fail."""
    assert first(end(0, "OSError: a", 1), end(0, "KeyError: b", 5)) == (0, "KeyError: b")
