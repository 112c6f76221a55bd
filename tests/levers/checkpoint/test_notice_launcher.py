"""A notice that comes through `ett run`: the launcher passes it on and calls it a preemption."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import time
from torchett.levers.checkpoint.preemption.notice import install
notice = install()
print("ready", flush=True)
while not notice.received():
    time.sleep(0.01)
print("saved", flush=True)
notice.leave()
"""


def test_a_job_that_saved_on_notice_was_preempted_and_ends_by_the_signal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torchett.cli.main", "run", "--job", "j", "--progress", "0"]
    launcher = subprocess.Popen(
        [*command, "--max-restarts", "3", "--", str(tmp_path / "train.py")],
        env=os.environ | {"ETT_RUNS": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    launcher.send_signal(signal.SIGTERM)
    assert launcher.stdout.read() == "saved\n"
    assert launcher.wait(60) == -signal.SIGTERM
    facts = [json.loads(line) for line in (tmp_path / "j" / "attempts-0.jsonl").open()]
    ends = [fact for fact in facts if fact.get("event") == "end"]
    assert [(end["outcome"], end["cause"]) for end in ends] == [("preempted", "external_sigterm")]
