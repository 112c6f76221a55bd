"""A helper of a trainer gives way to it, whatever the kernel groups processes by."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GROUP = Path("/proc/self/autogroup")
CHILD = """
import os
from torchett.record.priority import lower_priority
before = open("/proc/self/autogroup").read()  # empty for a process that is in no group
lower_priority(7)
after = open("/proc/self/autogroup").read()
print(os.nice(0), (after.split() or ["none"])[-1], before == after)
"""


@pytest.mark.skipif(not GROUP.exists(), reason="the kernel groups no processes by session")
@pytest.mark.parametrize("leads", [True, False])
def test_a_process_that_leads_a_session_lowers_that_as_well(leads: bool) -> None:
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=leads)
    assert done.returncode == 0, done.stderr
    nice, of_group, unchanged = done.stdout.split()
    assert int(nice) == min(19, os.nice(0) + 7)
    if leads:
        assert of_group == "7"
    else:
        assert unchanged == "True"
