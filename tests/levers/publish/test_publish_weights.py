"""Weights are read in bounded memory, shared ones lie once, and small ones stay close."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import small_models
import torch
from publish_shelf import one_rank_saves
from torch import nn

from torchett.levers.publish.errors import ParityError, RecipeError
from torchett.levers.publish.recipe import steps
from torchett.levers.publish.recipe.anchor import Anchor, find_anchor
from torchett.levers.publish.recipe.find_recipe import Found
from torchett.levers.publish.recipe.recipe import Parity, Recipe
from torchett.levers.publish.recipe.small_weights import make_small, write_small
from torchett.levers.publish.recipe.weights import build, filled, write_weights
from torchett.levers.publish.serving.snapshot import read_tensors
from torchett.store import open_store


def anchor_of(folder: Path, model: nn.Module) -> Anchor:
    return find_anchor(one_rank_saves(folder / "checkpoints", model, step=0))


def test_the_file_is_what_safetensors_reads(tmp_path: Path) -> None:
    model = small_models.Bags()
    write_weights(anchor_of(tmp_path, model), small_models.bags(), tmp_path / "w")
    theirs = safetensors.torch.load_file(tmp_path / "w")
    ours = read_tensors(tmp_path / "w")
    assert ours.keys() == theirs.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(theirs[name], value)
        assert torch.equal(ours[name], value)


def test_a_weight_that_two_layers_share_lies_once(tmp_path: Path) -> None:
    model, recipe = small_models.Tied(), small_models.tied()
    aliases = write_weights(anchor_of(tmp_path, model), recipe, tmp_path / "w")
    assert aliases == {"out.weight": "inside.weight"}
    assert set(read_tensors(tmp_path / "w")) == {"inside.weight"}
    again = build(recipe)
    filled(again, read_tensors(tmp_path / "w"), aliases)
    assert again.out.weight is again.inside.weight
    x = torch.ones(2, 8)
    assert torch.equal(again(x), model(x))


def test_a_weight_that_was_not_shared_in_training_is_refused(tmp_path: Path) -> None:
    trained = small_models.Tied()
    trained.out.weight = nn.Parameter(torch.zeros(8, 8))
    with pytest.raises(RecipeError, match=r"shares 'out.weight' with another tensor"):
        write_weights(anchor_of(tmp_path, trained), small_models.tied(), tmp_path / "w")


def test_what_the_model_computes_needs_build_on_cpu(tmp_path: Path) -> None:
    recipe = replace(small_models.tied(), build_on="meta")
    model = build(recipe)
    weight = torch.zeros(8, 8)
    with pytest.raises(RecipeError, match=r"'shift' is not in the checkpoint.*build_on='cpu'"):
        filled(model, {"inside.weight": weight}, {"out.weight": "inside.weight"})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"state": "net"}, "has nothing under 'net': it holds model"),
        ({"rename": lambda name: f"x.{name}"}, "lacks 2 tensors .* 'bias' first"),
        ({"rename": lambda name: "bias"}, "rename gives 'bias' to both"),
        ({"rename": lambda name: name if name == "bias" else None}, "lacks 1 .* 'weight' first"),
    ],
)
def test_an_anchor_that_does_not_fit_is_refused_with_what_to_say(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    anchor = anchor_of(tmp_path, nn.Linear(8, 2))
    with pytest.raises(RecipeError, match=sentence):
        write_weights(anchor, small_models.line(**changes), tmp_path / "w")


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.03), ("fp8", 0.2)])
def test_small_weights_are_a_quarter_and_close(tmp_path: Path, kind: str, most: float) -> None:
    recipe = small_models.bags(embeddings=kind, linears=kind)
    torch.manual_seed(0)
    model = small_models.Bags().eval()
    small = build(recipe)
    write_small(dict(model.state_dict()), make_small(small, recipe), tmp_path / "w")
    filled(small, read_tensors(tmp_path / "w"), {})
    for batch in (1, 3, 16):
        off = (small(*recipe.example(batch)) - model(*recipe.example(batch))).abs().max()
        assert 0 < off < most
    for bad in (-1, 100):
        with pytest.raises((IndexError, RuntimeError)):
            small(torch.tensor([bad]), torch.tensor([0]))
    made = (tmp_path / "w").stat().st_size
    assert made < sum(value.nbytes for value in model.state_dict().values()) / 2


@pytest.mark.parametrize("kind", ["int8", "as trained"])
def test_a_version_further_from_the_anchor_than_the_recipe_says_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate reads the answers that the anchor gave; the served model is played by PyTorch."""
    recipe = small_models.bags(embeddings=kind, parity=Parity(most=1e-4, mean=1e-4))
    found = Found(recipe=replace(recipe, compiled=True), target="t", hash="h")

    def no_code(served: nn.Module, recipe: Recipe, *rest: object) -> None:
        monkeypatch.setattr(steps, "Snapshot", lambda folder: Played(folder, served))

    monkeypatch.setattr(steps, "_write_code", no_code)
    anchor = anchor_of(tmp_path, small_models.Bags())
    (tmp_path / "out").mkdir()

    def run() -> steps.Made:
        return steps.run_steps(found, anchor, tmp_path / "out", open_store(str(tmp_path / "c")))

    if kind == "as trained":
        assert run().parity["max_error"] == 0
    else:
        with pytest.raises(ParityError, match=r"answers are off by .* loosen parity"):
            run()


class Played(steps.Snapshot):
    """A snapshot whose compiled code is a PyTorch model."""

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self.folder, self.model = folder, model
        self.told = json.loads((folder / "snapshot.json").read_text())

    def flat(self, *inputs: object) -> list[torch.Tensor]:
        with torch.no_grad():
            return [self.model(*inputs)]


MEASURE = """
import sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
import small_models
from torchett.levers.publish.recipe.anchor import find_anchor
from torchett.levers.publish.recipe.weights import write_weights
from torch import nn

def private():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) << 10

recipe = small_models.line(build=lambda: nn.Linear(1024, 16384, bias=False))
before, most = private(), [0]
over = threading.Event()
def watch():
    while not over.wait(0.002):
        most[0] = max(most[0], private())
threading.Thread(target=watch, daemon=True).start()
write_weights(find_anchor(sys.argv[2]), recipe, Path(sys.argv[3]))
over.set()
print(most[0] - before)
"""


def test_reading_takes_less_memory_than_one_tensor(tmp_path: Path) -> None:
    """A tensor of 64 MiB; the process's own memory grows by a fraction of it."""
    anchor = anchor_of(tmp_path, nn.Linear(1024, 16384, bias=False))
    done = subprocess.run(
        [
            sys.executable, "-c", MEASURE, str(Path(__file__).parent), anchor.path,
            str(tmp_path / "w"),
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 0.6 * (64 << 20)
