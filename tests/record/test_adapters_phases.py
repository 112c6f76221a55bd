"""What adapters are made of: phases across callbacks, and hooks that never hurt."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchett.record.adapters.phases import OpenPhases, harmless


def played(tmp_path: Path, script: str) -> list[dict[str, Any]]:
    """The events of a process that runs `script` with `p`, its open phases."""
    head = "import time\nfrom torchett.record.adapters.phases import OpenPhases, open_record\n"
    env = os.environ | {"ETT_RUNS": str(tmp_path), "ETT_JOB": "j"}
    code = f"{head}p = OpenPhases()\nopen_record()\n{script}"
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    from torchett.runs import events
    from torchett.runs.reader import RunReader

    return [json.loads(line) for line in events.write(RunReader(tmp_path / "j").poll().history())]


def test_waiting_for_data_ends_when_a_step_begins(tmp_path: Path) -> None:
    found = played(
        tmp_path,
        "for i in range(3):\n p.idle(); time.sleep(0.01); p.step_begins(i); p.step_ends()\n"
        "p.idle(); p.busy(); p.begin('evaluation'); p.begin('evaluation'); p.end('evaluation')\n"
        "p.end('evaluation'); p.step_begins(3); p.step_is_void(); p.step_ends()",
    )
    accounts = [event["account"] for event in found if event["event"] == "span"]
    assert accounts.count("get_first_batch_data") == 1
    assert accounts.count("data_wait") == 2
    assert accounts.count("evaluation") == 1
    assert [event["step"] for event in found if event["event"] == "step"] == [0, 1, 2]


def test_waits_between_the_batches_of_a_step_are_waits(tmp_path: Path) -> None:
    found = played(
        tmp_path,
        "for i in range(2):\n for batch in range(2):\n"
        "  p.idle(); time.sleep(0.01); p.step_begins(i)\n p.step_ends()\n",
    )
    accounts = [event["account"] for event in found if event["event"] == "span"]
    assert accounts.count("get_first_batch_data") == 1
    assert accounts.count("data_wait") == 3


def test_a_hook_that_breaks_turns_its_adapter_off_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Adapter:
        def __init__(self) -> None:
            self.phases = OpenPhases()
            self.calls = 0

        @harmless
        def hook(self) -> None:
            self.calls += 1
            raise KeyError("gone")

    adapter = Adapter()
    with caplog.at_level(logging.WARNING, "torchett"):
        adapter.hook()
        adapter.hook()
    assert adapter.calls == 1
    assert [record.getMessage() for record in caplog.records] == [
        "torchett: Adapter is off: KeyError: 'gone'"
    ]


def test_lightning_adds_no_callback_outside_of_ett_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchett.record.adapters import lightning

    monkeypatch.delenv("ETT_RUN", raising=False)
    assert lightning.callbacks() == []
    assert lightning.pytorch_lightning_callbacks() == []
