"""One process at a time, and no longer than it needs."""

import os
import signal
import time
from pathlib import Path

import pytest

from torchett.store import BusyError, lease


def test_it_is_given_back_although_a_forked_child_has_the_file_open(tmp_path: Path) -> None:
    """A loader's worker that is forked while another thread holds the lease."""
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


def test_whoever_waits_too_long_is_told(tmp_path: Path) -> None:
    with (
        lease(tmp_path / "lease", timeout_s=1),
        pytest.raises(BusyError, match="held by another"),
        lease(tmp_path / "lease", timeout_s=0.1),
    ):
        pass


def test_a_holder_that_fails_gives_it_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lease(tmp_path / "lease", timeout_s=1):
        1 / 0  # noqa: B018
    with lease(tmp_path / "lease", timeout_s=0.1):
        pass
