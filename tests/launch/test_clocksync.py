"""A host's offset to the head is measured to within half a round trip."""

import time

import pytest

from torchett.launch.clocksync import ClockServer, measure, parse_address
from torchett.model.errors import InputError


@pytest.mark.parametrize("ahead_ns", [0, 41_000_000, -3_600_000_000_000])
def test_the_offset_is_found(ahead_ns: int) -> None:
    server = ClockServer(lambda: time.monotonic_ns() + ahead_ns, port=0, host="127.0.0.1")
    found = measure(("127.0.0.1", server.port), time.monotonic_ns)
    server.close()
    assert found is not None
    assert abs(found.offset_ns - ahead_ns) <= found.error_ns


def test_a_head_that_does_not_answer_gives_no_offset() -> None:
    silent = ClockServer(time.monotonic_ns, port=0, host="127.0.0.1")
    silent.close()
    assert measure(("127.0.0.1", silent.port), time.monotonic_ns, 2, timeout_s=0.05) is None


def test_an_address_is_a_host_and_perhaps_a_port() -> None:
    assert parse_address("node0")[0] == "node0"
    assert parse_address("10.0.0.1:99") == ("10.0.0.1", 99)
    with pytest.raises(InputError, match=r"--head: expected HOST"):
        parse_address("node0:port")
