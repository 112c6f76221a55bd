"""A process that has followed a recipe compiles nothing more, and is unchanged otherwise."""

import json
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

MODEL = """
    import torch
    import torch.distributed as dist

    class Little(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = torch.nn.EmbeddingBag(50, 8, mode="sum")
            self.out = torch.nn.Linear(8, 1)
            self.out.tied = self.rows.weight
            self.register_buffer("scale", torch.ones(8))

        def forward(self, ids, *, twice=False):
            x = self.out(torch.relu(self.rows(ids) * self.scale))
            if dist.is_initialized():
                x = x + 100 * dist.get_rank() + 1000 * dist.get_world_size()
            return 2 * x if twice else x
"""
TRAINER = """
    import os, sys, threading, time
    from torchett.levers.startup.first_compile import recipe
    recipe._LATER_S = 0.0
    recipe.install_plugin()
    import torch
    torch.set_num_threads(1)
    {settings}
    from little import Little
    model = torch.compile({wrap}(Little()){options})
    ids = torch.arange(12).view(3, 4)
    for _ in range({calls}):
        model(ids, twice=True).sum().backward()
    for thread in threading.enumerate():
        if thread.name == "ett-recipe":
            thread.join()
"""
STANDBY = """
    import json, logging, os, random, sys
    from pathlib import Path
    import torch, torch.distributed
    import torch._dynamo, torch._inductor.compile_fx
    from torch._dynamo.utils import counters
    from torchett.levers.startup.first_compile import precompile

    def state():
        found = [random.getstate(), torch.get_rng_state().tolist(), sys.path, dict(os.environ)]
        found += [torch.get_num_threads(), torch.get_float32_matmul_precision()]
        found += [torch.get_default_dtype(), torch._dynamo.config.get_config_copy()]
        found += [sys.excepthook, logging.root.manager.disable]
        groups = torch.distributed.distributed_c10d._world
        found += [torch.distributed.is_initialized(), groups.group_count]
        return repr(found)

    path, = Path(os.environ["ETT_RUN"], "recipes").glob("*")
    before = state()
    error = None
    try:
        precompile.follow(path)
    except Exception as raised:
        error = str(raised).partition("\\n")[0]
    same = state() == before
    fits = precompile.fits(os.environ)
    away = precompile.fits({**os.environ, "RANK": "7"})
    Path("little.py").write_text(Path("little.py").read_text() + "# another line")
    told = {"error": error, "same": same, "fits": [fits, away, precompile.fits(os.environ)]}
    told["workers"] = len(torch._inductor.async_compile._pool_set)
    if error:
        print(json.dumps(told))
        return
    # As the script would:
    {settings}
    torch.set_num_threads(1)
    sys.path.insert(0, os.getcwd())
    from little import Little
    torch.manual_seed(1)
    model = torch.compile({wrap}(Little()){options})
    loss = model(torch.arange(12).view(3, 4), twice=True).sum()
    loss.backward()
    told |= {"graphs": counters["stats"]["unique_graphs"], "loss": loss.item()}
    print(json.dumps(told))
"""


class Place:
    """A folder with a module that defines a model, a run, and a cache of compiled code."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.cache = cache
        (folder / "little.py").write_text(textwrap.dedent(MODEL))

    @property
    def recipes(self) -> list[Path]:
        return sorted((self.folder / "run").glob("recipes/*"))

    def run(self, code: str, **changes: str) -> str:
        words = {"settings": "", "wrap": "", "options": "", "calls": "2", **changes}
        for name, word in words.items():
            code = code.replace("{" + name + "}", word)
        env = {
            **os.environ,
            "ETT_RUN": str(self.folder / "run"),
            "LOCAL_RANK": "0",
            "RANK": "0",
            "TORCHINDUCTOR_CACHE_DIR": str(self.cache),
            "OMP_NUM_THREADS": "1",
        }
        # In a function: torch's keys of compiled code name a main module that has torch in it, and
        # a standby's has not.
        body = textwrap.indent(textwrap.dedent(code), "    ")
        script = self.folder / "script.py"
        script.write_text(f"def main():\n{body}\nmain()\n")
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    def precompiled(self, **changes: str) -> Any:
        return json.loads(self.run(STANDBY, **changes))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture
def place(tmp_path: Path, cache: Path) -> Place:
    return Place(tmp_path, cache)


def test_a_process_that_ends_before_leaves_no_thread_to_its_teardown(place: Place) -> None:
    """A thread that returns from torch during the teardown would end it by SIGABRT."""
    until_over, _, _ = TRAINER.partition("for thread in")
    look = """
    import atexit
    alive = lambda: [thread.name for thread in threading.enumerate()]
    atexit.register(lambda: print("at last", "ett-recipe" in alive()))  # called last of all
    """
    said = place.run(
        textwrap.dedent(look)
        + textwrap.dedent(until_over).replace("_LATER_S = 0.0", "_LATER_S = 60.0")
        + 'print("before", "ett-recipe" in alive())\n'
    )
    assert said.split("\n")[:2] == ["before True", "at last False"]
    assert not place.recipes


def test_a_followed_recipe_leaves_nothing_to_compile(place: Place) -> None:
    plain = 'torch.set_float32_matmul_precision("high"); torch._dynamo.config.cache_size_limit = 5'
    place.run(TRAINER, settings=plain)
    (path,) = place.recipes
    assert path.stat().st_mode & 0o777 == 0o600
    told = place.precompiled(settings=plain)
    assert told["error"] is None
    assert told["graphs"] == 0  # the script's own model
    assert told["same"]  # settings, paths, environment, generators
    assert told["workers"] == 0
    # At another place; and when a line has been added to the module:
    assert told["fits"] == [True, False, False]
    assert told["loss"] == pytest.approx(_eager(place), rel=1e-5)


def _eager(place: Place) -> float:
    code = """
        import torch
        torch.set_float32_matmul_precision("high")
        from little import Little
        torch.manual_seed(1)
        print(Little()(torch.arange(12).view(3, 4), twice=True).sum().item())
    """
    return float(place.run(code))


@pytest.mark.parametrize(
    ("at_import", "in_forward", "what"),
    [
        ("torch.manual_seed(7)", "", "importing its modules changes the generator of torch"),
        ("TABLE = torch.rand(3)", "", "importing its modules changes the generator of torch"),
        (
            "torch.set_float32_matmul_precision('high')",
            "",
            "importing its modules changes torch's settings",
        ),
        (
            "import os; os.environ['LITTLE'] = '1'",
            "",
            "importing its modules changes the environment",
        ),
        (
            "torch._dynamo.config.cache_size_limit = 5",
            "",
            "importing its modules changes torch._dynamo.config",
        ),
        ("SEEN = []", "SEEN.append(1)", "a call of the model changes little.SEEN"),
        ("CALLS = 0", "global CALLS; CALLS += 1", "a call of the model changes little.CALLS"),
        ("CACHE = {}", "CACHE['x'] = 1", "a call of the model changes little.CACHE"),
    ],
)
def test_a_model_whose_modules_have_side_effects_is_not_compiled_ahead(
    place: Place, at_import: str, in_forward: str, what: str
) -> None:
    """The rank does not import them again, so it would train differently."""
    source = place.folder / "little.py"
    text = source.read_text().replace("class Little", f"{at_import}\n\nclass Little")
    source.write_text(
        text.replace("        x = self.out", f"        {in_forward}\n        x = self.out")
    )
    place.run(TRAINER, options=', backend="aot_eager"')
    assert place.precompiled(options=', backend="aot_eager"')["error"] == what


def test_a_graph_that_is_not_in_the_cache_is_not_compiled(place: Place, tmp_path: Path) -> None:
    place.run(TRAINER)
    place.cache = tmp_path / "another"
    told = place.precompiled()
    assert "not in the cache" in told["error"]
    assert told["same"]


def test_a_model_in_ddp_is_made_as_its_rank(place: Place) -> None:
    """The compiled code contains `dist.get_rank()` as a constant, without a guard."""
    ddp = {"wrap": "torch.nn.parallel.DistributedDataParallel"}
    ddp["options"] = ', backend="aot_eager"'
    ddp["settings"] = (
        "import torch.distributed as dist\n"
        "    from torch.testing._internal.distributed.fake_pg import FakeStore\n"
        "    dist.init_process_group('fake', store=FakeStore(), rank=1, world_size=2)\n"
        "    torch._dynamo.config.optimize_ddp = False"
    )
    silent = "model.require_backward_grad_sync = False\n    "
    place.run(TRAINER.replace("for _ in range", f"{silent}for _ in range"), **ddp)
    assert len(place.recipes) == 1
    told = json.loads(place.run(STANDBY.replace("loss =", f"{silent}loss ="), **ddp))
    assert told["error"] is None
    assert told["same"]
    assert told["graphs"] == 0
    assert told["loss"] == pytest.approx(6 * (2000 + 100), abs=20)


@pytest.mark.parametrize(
    ("settings", "wrap"),
    [
        ("", ""),
        ("model = None", "calls=1"),
        ("global Own\n    class Own(torch.nn.Sequential):\n        pass\n", "Own"),
        (
            "def hooked(model):\n        model.register_forward_hook(lambda *a: None)\n"
            "        return model\n",
            "hooked",
        ),
        ("torch.set_grad_enabled(False)\n    torch.Tensor.backward = lambda t: None\n", ""),
    ],
    ids=["one", "not called again", "the script's own class", "a hook", "no training"],
)
def test_which_models_get_a_recipe(place: Place, settings: str, wrap: str) -> None:
    code = TRAINER.replace("model(ids, twice=True)", "model(ids)") if wrap == "Own" else TRAINER
    changes = {"calls": "1"} if wrap == "calls=1" else {"wrap": wrap}
    place.run(code, settings=settings, options=', backend="aot_eager"', **changes)
    assert len(place.recipes) == (not settings)


def test_a_file_that_others_can_write_is_not_read(tmp_path: Path) -> None:
    from torchett.levers.startup.first_compile import precompile

    path = tmp_path / "model.recipe"
    path.write_bytes(b"")
    path.chmod(0o666)
    with pytest.raises(PermissionError, match="others can write to it"):
        precompile.follow(path)


def test_it_waits_for_a_recipe_and_ends_with_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchett.levers.startup.first_compile import precompile, recipe

    monkeypatch.setenv("ETT_RUN", str(tmp_path))
    tried: list[str] = []
    monkeypatch.setattr(precompile, "follow", lambda path: tried.append(path.name))
    path = recipe.recipe_path(os.environ, "0")
    turns = 0

    def is_over(within_s: float) -> bool:
        nonlocal turns
        turns += 1
        if turns == 2:
            path.parent.mkdir(parents=True)
            path.write_bytes(b"")
        return turns == 5

    precompile.follow_recipe(is_over)
    assert tried == ["node-0-0.recipe"]  # once


@pytest.mark.parametrize(("written_s", "is_followed"), [(99.0, False), (100.0, True)])
def test_a_recipe_older_than_the_agent_is_ignored(
    written_s: float, is_followed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node may have written it: this node's cache may lack its code."""
    from torchett.levers.startup.first_compile import precompile
    from torchett.levers.startup.first_compile.recipe import Recipe

    monkeypatch.setenv("ETT_AGENT_BEGAN", "100.0")
    monkeypatch.setattr(precompile, "followed", set())
    monkeypatch.setattr(precompile, "compile_model", lambda recipe: None)
    facts: dict[str, Any] = dict.fromkeys(Recipe.__slots__) | {"on_device": False}
    path = tmp_path / "a.recipe"
    path.write_bytes(pickle.dumps(Recipe(**facts | {"written_s": written_s})))
    path.chmod(0o600)
    precompile.follow(path)
    assert bool(precompile.followed) == is_followed


def test_a_setting_that_only_few_scripts_make_is_refused(place: Place) -> None:
    unusual = "torch.use_deterministic_algorithms(True)"
    place.run(TRAINER, settings=unusual, options=', backend="aot_eager"')
    found = place.precompiled(options=', backend="aot_eager"')
    assert found["error"] == "the script sets deterministic algorithms"
    assert found["same"]


def test_tied_weights_stay_one_tensor() -> None:
    import torch

    from torchett.levers.startup.first_compile.recipe import TensorPickler, ZerosUnpickler

    weight = torch.nn.Parameter(torch.randn(4, 6).t())
    part = torch.randn(10)[::3]
    made = TensorPickler.of([weight, weight, part, 7])
    assert made.nbytes == weight.nbytes + part.nbytes
    assert made.devices == {"cpu"}
    first, again, other, number = ZerosUnpickler.of(made.data)
    assert first is again
    assert type(first) is torch.nn.Parameter
    assert first.stride() == weight.stride()
    assert other.stride() == (3,)
    assert number == 7
    assert not first.any()
