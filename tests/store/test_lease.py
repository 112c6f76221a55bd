"""A lease has one holder at a time, and is released when the work is done."""

import os
import signal
import time
from pathlib import Path

import pytest

from torchett.store import BusyError, lease


def test_it_is_released_although_a_forked_child_has_the_file_open(tmp_path: Path) -> None:
    """The child is a loader's worker, forked while another thread holds the lease."""
    with lease(tmp_path / "lease", timeout_s=1):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with lease(tmp_path / "lease", timeout_s=0.2):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_process_that_waits_too_long_gets_an_error(tmp_path: Path) -> None:
    with (
        lease(tmp_path / "lease", timeout_s=1),
        pytest.raises(BusyError, match="held by another"),
        lease(tmp_path / "lease", timeout_s=0.1),
    ):
        pass


def test_a_holder_that_raises_releases_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lease(tmp_path / "lease", timeout_s=1):
        1 / 0  # noqa: B018
    with lease(tmp_path / "lease", timeout_s=0.1):
        pass
