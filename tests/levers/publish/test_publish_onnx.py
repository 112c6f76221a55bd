"""An ONNX file is published if the recipe asks for it, and only if its answers are close enough."""

import sys
from pathlib import Path

import pytest
import small_models
import torch
from publish_shelf import one_rank_saves
from torch import nn

from torchett.levers.publish.errors import ParityError, PublishError
from torchett.levers.publish.recipe import onnx_file
from torchett.levers.publish.recipe.anchor import find_anchor
from torchett.levers.publish.recipe.find_recipe import Found
from torchett.levers.publish.recipe.recipe import Recipe
from torchett.levers.publish.recipe.steps import Made, run_steps
from torchett.store import open_store


def made(folder: Path, model: nn.Module, recipe: Recipe) -> Made:
    anchor = find_anchor(one_rank_saves(folder / "checkpoints", model, step=0))
    (folder / "out").mkdir()
    found = Found(recipe=recipe, target="a.py:recipe", hash="0" * 64)
    return run_steps(found, anchor, folder / "out", open_store(str(folder / "cache")))


def test_what_is_missing_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(PublishError, match=r"pip install 'torchett\[onnx\]'"):
        made(tmp_path, nn.Linear(8, 2), small_models.line(onnx=True))


@pytest.mark.parametrize("kind", ["line", "bags"])
def test_the_file_answers_as_the_anchor_at_every_batch_size(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = nn.Linear(8, 2) if kind == "line" else small_models.Bags()
    recipe = getattr(small_models, kind)(onnx=True)
    found = made(tmp_path, model, recipe)
    assert found.parity["onnx_max_error"] <= recipe.parity.most
    session = onnxruntime.InferenceSession(str(found.files["model.onnx"]))
    for batch in (1, 2, 5, 16):
        inputs = recipe.example(batch)
        given = {name: one.numpy() for name, one in zip(recipe.inputs, inputs, strict=True)}
        (answer,) = session.run(None, given)
        theirs = model(*inputs).detach().numpy()
        assert answer.shape == theirs.shape
        assert abs(answer - theirs).max() <= 1e-5


def test_a_file_that_answers_otherwise_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    write = onnx_file.write_onnx

    def another_model(program: object, recipe: Recipe, path: Path) -> None:
        torch.manual_seed(1)
        inputs = recipe.example(3)
        write(torch.export.export(nn.Linear(8, 2), inputs), recipe, path)

    monkeypatch.setattr(onnx_file, "write_onnx", another_model)
    one_size = small_models.line(onnx=True, dims={"batch": (3, 3)})
    with pytest.raises(ParityError, match="ONNX answers are off by"):
        made(tmp_path, nn.Linear(8, 2), one_size)
