"""Two nodes, one lost whole with its memory: its rank is restored from the other one's copy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("ranks", [1, 2])  # of a node: two divide what they hold alike
def test_a_lost_node_comes_back_from_its_neighbours_copy(ranks: int) -> None:
    every = 10 * ranks
    probe = subprocess.run(
        [sys.executable, "-c", "import checkpoint_node_loss as b\nwith b.two_nodes(): pass"],
        cwd=ROOT / "benchmarks",
        capture_output=True,
    )
    if probe.returncode:
        pytest.skip("network namespaces cannot be made here")
    command = [sys.executable, str(ROOT / "benchmarks" / "checkpoint_node_loss.py")]
    command += ["--times", "1", "--mib", "2", "--json"]
    command += ["--every", str(every), "--ranks", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.stdout.strip(), done.stderr
    (row,) = json.loads(done.stdout)["tables"]["losses"]
    assert row["right"]
    assert row["tiers"] == ["neighbour"] * 2 * ranks
    assert row["resumed at"] > 0
    # Of two intervals at most one is lost; copies beside other tests take longer than one.
    assert row["lost steps"] <= 3 * every
