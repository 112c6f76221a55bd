"""What the hooks see of real loops, compared with what each loop says it did."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchett.ledger import settle
from torchett.ledger.history import History
from torchett.record.plugins import SITE
from torchett.runs.reader import RunReader

LOOPS = Path(__file__).with_name("loops.py")
NAMES = [
    "plain", "fused", "foreach", "workers", "lbfgs", "accumulation", "several_optimizers", "gan",
    "critic_more_often", "scaler_skips", "compiled_optimizer", "compiled_model",
    "wrapped_optimizer", "sanity_check", "evaluation", "predicting", "prefetching", "by_hand",
    "nothing_zeroed",
    "adversarial", "distillation", "state_set_up", "without_autograd", "saving", "two_phases",
    "never_trains", "warmed_up",
    "settled_epochs", "settled_workers", "settled_left_early", "settled_evaluates",
    "settled_evaluates_what_it_trains_on", "settled_saves", "settled_updates_without_work",
    "settled_without_a_loader", "settled_accumulates", "settled_gets_a_second_optimizer",
    "settled_gets_a_scaler", "settled_starts_processes", "settled_pauses",
    "settled_looks_at_data_at_times", "settled_waits_and_works_long",
    "settled_updates_twice", "settled_goes_on_with_copies", "settled_goes_on_by_hand",
    "settled_updates_after_the_last_batch", "settled_fetches_ahead",
]  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """Where the runs are, what each loop says it did, and what was said on stderr."""
    folder = tmp_path_factory.mktemp("runs")
    env = {
        **os.environ,
        "ETT_PLUGINS": "torchett.record.hooks",
        "PYTHONPATH": os.pathsep.join([SITE, os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, LOOPS, folder, *NAMES], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout), done.stderr


def history_of(run: Path) -> History:
    return RunReader(run).poll().history()


def steps(history: History) -> list[int]:
    rows = history.rows
    return [
        int(rows.index[i]) + k
        for i in range(len(rows))
        if rows.is_step[i]
        for k in range(int(rows.count[i]))
    ]


def spans(history: History, account: str) -> int:
    """How many spans of an account; those of short waits may be folded."""
    rows = history.rows
    return sum(
        not rows.is_step[i] and history.accounts.names[rows.account[i]] == account
        for i in range(len(rows))
    )


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_recognised(told: tuple[Path, dict[str, Any], str], name: str) -> None:
    folder, truths, _ = told
    truth = truths[name]
    assert truth, f"{name} did not finish"
    if not truth.get("record", True):
        assert not (folder / name).exists()
        return
    history = history_of(folder / name)
    recognised = sorted(steps(history))
    assert recognised == list(range(len(recognised)))
    untold = truth["steps"] - len(recognised)
    assert 0 <= untold <= truth.get("untold", 0)
    if "evaluations" in truth:
        assert spans(history, "evaluation") == truth["evaluations"]
    if "saves" in truth:
        assert spans(history, "checkpoint_blocked") == truth["saves"]
    if "waited" in truth:
        waited = settle(history).accounts["data_wait"]
        assert truth["waited"] <= waited / 1e9 < truth["waited"] + 0.2
    if "worked" in truth:
        longest = history.rows.most[history.rows.is_step].max()
        assert truth["worked"] <= longest < truth["worked"] + 0.1
    if "paused" in truth:
        other = settle(history).accounts["other_in_loop"]
        assert truth["paused"] <= other / 1e9 < truth["paused"] + 0.1
    if "durable" in truth:
        assert [c.step for c in history.checkpoints] == [truth["durable"]]


def test_nothing_was_said(told: tuple[Path, dict[str, Any], str]) -> None:
    assert "torchett" not in told[2]
