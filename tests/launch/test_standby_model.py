"""`ett run --standby-model`: after a kill the model is compiled, unless its code has changed."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

LITTLE = """
    import os
    from pathlib import Path
    import torch

    VERSION = 1
    Path(f"imported-{os.getpid()}").touch()

    class Little(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.out = torch.nn.Linear(8, 1)

        def forward(self, x):
            return self.out(torch.relu(x))
"""
SCRIPT = """
    import os, signal, sys, time
    from pathlib import Path
    import torch
    from torch._dynamo.utils import counters
    import little
    import torchett as ett

    def main():
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        torch.manual_seed(0)
        model = torch.compile(little.Little())
        for _ in ett.steps(range(2)):  # standbys come once ranks train
            model(torch.randn(4, 8)).sum().backward()
        graphs = counters["stats"]["unique_graphs"]
        print("attempt", attempt, "graphs", graphs, "version", little.VERSION, flush=True)
        if attempt == 3:
            return
        until = time.monotonic() + 90
        while len(list(Path().glob("imported-*"))) < 2:  # ours, and that of who cooks
            assert time.monotonic() < until, "nobody followed the recipe"
            time.sleep(0.1)
        if os.environ["ETT_STANDBY_FORK"] == "0":  # the next attempt imports nothing
            for path in Path().glob("imported-*"):
                path.unlink()
            Path(f"imported-{attempt}").touch()
        else:  # a template cooks once, and is asked to rehearse once more
            time.sleep(2)
        if attempt == 2:
            source = Path("little.py")
            source.write_text(source.read_text().replace("VERSION = 1", "VERSION = 22"))
        os.kill(os.getpid(), signal.SIGKILL)

    main()
"""


@pytest.mark.parametrize("forks", [0, 1], ids=["standbys", "a template"])
def test_kills_with_a_model_compiled_ahead(forks: int, tmp_path: Path) -> None:
    (tmp_path / "little.py").write_text(textwrap.dedent(LITTLE))
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    run = tmp_path / "runs" / "job"
    recipes = run / "recipes" / "node-0-0"
    recipes.mkdir(parents=True)
    (recipes / "broken.recipe").write_bytes(b"no recipe")
    (recipes / "broken.recipe").chmod(0o600)
    env = {
        **os.environ,
        "ETT_RUNS": str(tmp_path / "runs"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "OMP_NUM_THREADS": "1",
        "ETT_STANDBY_FORK": str(forks),
    }
    ett = [sys.executable, "-m", "torchett.cli.main"]
    command = [*ett, "run", "--job", "job", "--progress", "0", "--standby-model", "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--max-restarts", "3", "script.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "attempt 0 graphs 1 version 1",
        "attempt 1 graphs 0 version 1",
        "attempt 2 graphs 0 version 1",
        "attempt 3 graphs 1 version 22",  # not with a model that is no longer the job's
    ]
    assert done.stderr.count("standbys do without broken.recipe") == 1
    assert (recipes / "broken.failed").exists()
    shown = subprocess.run(
        [*ett, "report", str(run), "--json"], env=env, capture_output=True, text=True, check=True
    )
    asides = json.loads(shown.stdout)["asides"]
    assert "compiled ahead by standbys, attempt 2: the models of 1 rank" in asides
    assert not any("ahead by standbys, attempt 3" in aside for aside in asides)
