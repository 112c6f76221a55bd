"""The reference workloads train, and a killed one ends with the weights of an unbroken one."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.e2e


def run(*command: str) -> str:
    """What the command printed, once it has ended well."""
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=80, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def torchrun(*command: str) -> str:
    """What the ranks of a two-rank job printed."""
    return run("-m", "torch.distributed.run", "--nproc-per-node", "2", *command)


def digest_of(output: str) -> str:
    """The fingerprint of the final weights."""
    return re.search(r"^digest (\w{64})$", output, re.MULTILINE)[1]


@pytest.mark.parametrize("workload", ["gpt", "dlrm"])
def test_one_process_trains_and_leaves_a_checkpoint(workload: str, tmp_path: Path) -> None:
    script = str(EXAMPLES / workload / "train.py")
    output = run(
        script, "--no-compile", "--steps", "6", "--save-every", "2", "--log-every", "1",
        "--digest", "--checkpoint-dir", str(tmp_path),
    )  # fmt: skip
    assert [int(step) for step in re.findall(r"^step (\d+) loss", output, re.M)] == [*range(6)]
    assert digest_of(output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000005"]


def test_killed_run_resumes_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    options = ["--no-compile", "--steps", "24", "--save-every", "8", "--digest"]
    script = str(EXAMPLES / "gpt" / "train.py")
    unbroken = torchrun(script, *options, "--checkpoint-dir", str(tmp_path / "unbroken"))
    killed = torchrun(
        "--max-restarts", "1", script, *options, "--kill-at", "1:20",
        "--checkpoint-dir", str(tmp_path / "killed"),
    )  # fmt: skip
    resumed_at = [int(step) for step in re.findall(r"^at step (\d+) of 24", killed, re.M)]
    # The save after step 15 waits for the one after step 7; its own upload may be cut off.
    assert resumed_at in ([0, 8], [0, 16])
    assert digest_of(killed) == digest_of(unbroken)


@pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="needs TorchRec")
def test_tables_that_torchrec_shards_end_with_the_same_weights(tmp_path: Path) -> None:
    """Whole in one run, or stopped and restored half-way, by DCP or by torchett."""
    stock, ours = (str(EXAMPLES / "dlrm" / name) for name in ("train.py", "train_ett.py"))
    options = ["--sharded", "--no-compile", "--save-every", "8", "--digest"]
    digests = []
    for script, lengths in ((stock, ["24"]), (stock, ["16", "24"]), (ours, ["16", "24"])):
        folder = str(tmp_path / f"{len(digests)}")
        for steps in lengths:
            said = torchrun(script, *options, "--steps", steps, "--checkpoint-dir", folder)
        assert f"at step {16 if lengths[1:] else 0} of 24" in said
        digests.append(digest_of(said))
    assert len(set(digests)) == 1


def test_tables_are_not_sharded_over_one_rank() -> None:
    command = [sys.executable, str(EXAMPLES / "dlrm" / "train.py"), "--sharded"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=80, check=False)
    assert done.returncode == 2
    assert "--sharded needs two ranks or more: torchrun --nproc-per-node 2" in done.stderr
