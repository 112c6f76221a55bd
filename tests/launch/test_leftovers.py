"""Processes that a failed child left behind are ended, and none is waited for without end."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from torchett.launch import supervise
from torchett.launch.drill import moments


def test_what_was_left_behind_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["sleep", "600"])
    alive = [child.pid]
    monkeypatch.setattr(supervise, "_children", lambda: [alive.pop()] if alive else [])
    assert supervise.end_leftovers() == 1
    child.returncode = -9  # it is reaped already
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_one_that_waits_inside_the_kernel_is_said_and_left(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """State D, as on a disk that hangs: SIGKILL takes effect when that answers."""
    monkeypatch.setattr(supervise, "_children", lambda: [4711])
    monkeypatch.setattr(supervise, "_send", lambda pid, number: None)
    monkeypatch.setattr(os, "waitpid", lambda pid, options: (0, 0))
    began = time.monotonic()
    assert supervise.end_leftovers(patience_s=0.3) == 0
    assert time.monotonic() - began < 5
    assert capfd.readouterr().err == "ett: killed, but not ended in 0.3 s: pid 4711\n"


def test_a_thread_that_ends_while_children_are_listed_does_not_fail_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = subprocess.Popen(["sleep", "60"])
    glob = Path.glob

    def with_one_that_ended(folder: Path, pattern: str) -> list[Path]:
        return [folder / "0" / "children", *glob(folder, pattern)]

    monkeypatch.setattr(Path, "glob", with_one_that_ended)
    try:
        assert child.pid in supervise._children()
        assert child.pid in moments.children(os.getpid())
    finally:
        child.kill()
        child.wait()
