"""A host's offset to the head is measured to within half a round trip."""

import signal
import threading
import time
from pathlib import Path

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


def test_the_server_takes_no_signals() -> None:
    """They are for the launcher's main thread, which may be busy with something else."""
    server = ClockServer(lambda: 0, port=0, host="127.0.0.1")
    try:
        assert measure(("127.0.0.1", server.port), lambda: 0, pings=1) is not None
        [thread] = [t for t in threading.enumerate() if t.name == "ett-clock" and t.is_alive()][-1:]
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        blocked = int(next(x for x in status.splitlines() if x.startswith("SigBlk")).split()[1], 16)
        assert blocked >> (signal.SIGTERM - 1) & 1
    finally:
        server.close()
