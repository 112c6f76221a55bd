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
    import torch.distributed as dist

    VERSION = 1
    Path(f"imported-{os.getpid()}").touch()

    class Little(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.out = torch.nn.Linear(8, 1)

        def forward(self, x):
            rank = dist.get_rank() if dist.is_initialized() else 0
            return self.out(torch.relu(x)) + 1000 * rank
"""
SCRIPT = """
    import os, signal, sys, time
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from torch._dynamo.utils import counters
    import little
    import torchett as ett

    def main():
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch._dynamo.config.optimize_ddp = False
        model = little.Little()
        if size > 1:
            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(model)
        model = torch.compile(model)
        for _ in ett.steps(range(3)):  # standbys come once ranks train
            result = model(torch.zeros(4, 8))
            result.sum().backward()
        graphs, thousands = counters["stats"]["unique_graphs"], round(result[0].item() / 1000)
        Path(f"said-{attempt}-{rank}").write_text(f"{graphs} {thousands} {little.VERSION}")
        if attempt == 3:
            return
        until = time.monotonic() + 120
        while len(list(Path().glob("imported-*"))) < 2 * size:  # ours, and the standbys'
            assert time.monotonic() < until, "nobody followed the recipe"
            time.sleep(0.1)
        if rank != size - 1:
            time.sleep(60)
        for path in Path().glob("imported-*"):  # the next attempt imports nothing
            path.unlink()
        for n in range(size):
            Path(f"imported-{attempt}-{n}").touch()
        if attempt == 2:
            source = Path("little.py")
            source.write_text(source.read_text().replace("VERSION = 1", "VERSION = 22"))
        os.kill(os.getpid(), signal.SIGKILL)

    main()
"""


@pytest.mark.parametrize("ranks", [1, 2], ids=["one", "two in DDP"])
def test_kills_with_a_model_compiled_ahead(ranks: int, tmp_path: Path) -> None:
    (tmp_path / "little.py").write_text(textwrap.dedent(LITTLE))
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    run = tmp_path / "runs" / "job"
    env = {
        **os.environ,
        "ETT_RUNS": str(tmp_path / "runs"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "OMP_NUM_THREADS": "1",
    }
    ett = [sys.executable, "-m", "torchett.cli.main"]
    command = [*ett, "run", "--job", "job", "--progress", "0", "--standby-model", "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "--max-restarts", "3", "script.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    for rank in range(ranks):
        said = [(tmp_path / f"said-{attempt}-{rank}").read_text() for attempt in range(4)]
        # Graphs compiled in the rank, its number as compiled in, the model's version:
        assert said == [f"1 {rank} 1", f"0 {rank} 1", f"0 {rank} 1", f"1 {rank} 22"]
    assert "standbys do without" not in done.stderr
    shown = subprocess.run(
        [*ett, "report", str(run), "--json"], env=env, capture_output=True, text=True, check=True
    )
    asides = json.loads(shown.stdout)["asides"]
    those = "the models of 2 ranks" if ranks == 2 else "the models of 1 rank"
    assert f"compiled ahead by standbys, attempt 2: {those}" in asides
    assert not any("ahead by standbys, attempt 3" in aside for aside in asides)


FOLLOWS = """
from torchett.levers.startup.first_compile.precompile import follow_recipe
looks = iter([False, True])
follow_recipe(lambda seconds: next(looks))
print("over")
"""


def test_a_standby_puts_a_broken_recipe_aside_and_begins_anew(tmp_path: Path) -> None:
    recipe = tmp_path / "recipes" / "node-0-0.recipe"
    recipe.parent.mkdir(parents=True)
    recipe.write_bytes(b"no recipe")
    recipe.chmod(0o600)
    env = os.environ | {"ETT_RUN": str(tmp_path), "ETT_NODE": "0", "ETT_PLACE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", FOLLOWS], env=env, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr
    assert done.stderr.count("standbys do without node-0-0.recipe") == 1
    assert not recipe.exists()
    assert recipe.with_suffix(".failed").exists()
