"""Which generators a loss draws from, and that the next attempt knows without trying."""

import os
import random
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from torchett.startup import draws as module
from torchett.startup.draws import draws

torch = pytest.importorskip("torch")


def loss(model: Any, batch: Any) -> Any:
    return model(batch["x"]).sum()


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A line for each rehearsal."""
    found: list[Any] = []
    rehearse = module.rehearse

    def counted(*args: Any) -> set[str]:
        found.append(args)
        return rehearse(*args)

    monkeypatch.setattr(module, "rehearse", counted)
    return found


def model(dropout: float = 0.5) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(dropout))


BATCH = {"x": torch.ones(3, 2)}


@pytest.mark.parametrize(("dropout", "found"), [(0.0, set()), (0.5, {"cpu"})])
def test_the_next_attempt_knows_without_trying(
    dropout: float, found: set[str], tried: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("ETT_RUN", str(tmp_path))
    for _ in range(3):
        made = model(dropout)
        before = torch.get_rng_state()
        assert draws(made, loss, BATCH) == found
        assert torch.equal(torch.get_rng_state(), before)
    assert len(tried) == 1


@pytest.mark.parametrize("draw", [lambda: random.uniform(0, 1), lambda: numpy.random.rand()])
def test_what_python_and_numpy_draw_is_found_before_it_is_drawn(draw: Any) -> None:
    """As for stochastic depth."""
    before = random.getstate(), numpy.random.get_state()[1].tolist()
    functions = random.uniform, numpy.random.rand
    assert draws(model(0.0), lambda model, batch: model(batch["x"]) * draw(), BATCH) == {"cpu"}
    assert before == (random.getstate(), numpy.random.get_state()[1].tolist())
    assert functions == (random.uniform, numpy.random.rand)
    other = threading.Thread(target=random.random)  # the script's own go on
    assert draws(model(0.0), lambda model, batch: [other.start(), other.join()], BATCH) == set()
    assert random.getstate() != before[0]


def test_another_model_shape_mode_or_loss_is_tried_anew(
    tried: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETT_RUN", str(tmp_path))
    assert draws(model(), loss, BATCH) == {"cpu"}
    assert draws(model(0.4), loss, BATCH) == {"cpu"}
    assert draws(model().eval(), loss, BATCH) == set()
    assert draws(model(), loss, {"x": torch.ones(4, 2)}) == {"cpu"}
    assert draws(model(), partial(lambda model, batch: model(batch["x"])), BATCH) == {"cpu"}
    assert len(tried) == 5


def test_weights_are_not_printed(
    tried: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`repr` of an EmbeddingBag prints its table: 0.6 s for 26 of them on a GPU."""

    def printed(*args: Any, **kwargs: Any) -> str:
        raise AssertionError("a tensor was printed")

    monkeypatch.setenv("ETT_RUN", str(tmp_path))
    monkeypatch.setattr(torch.Tensor, "__repr__", printed)
    table = torch.nn.Sequential(torch.nn.EmbeddingBag(4, 2))
    for _ in range(2):
        assert draws(table, loss, {"x": torch.zeros(2, 1, dtype=torch.long)}) == set()
    assert len(tried) == 1


def test_changed_code_is_tried_anew(
    tried: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code.py"
    code.write_text("")
    monkeypatch.setitem(sys.modules, "the_code", SimpleNamespace(__file__=str(code)))
    monkeypatch.setattr(loss, "__module__", "the_code")
    monkeypatch.setenv("ETT_RUN", str(tmp_path))
    for text, times in (("", 1), ("a change", 2)):
        code.write_text(text)
        os.utime(code, ns=(times, times))
        for _ in range(2):
            assert draws(model(), loss, BATCH) == {"cpu"}
        assert len(tried) == times


def test_without_a_run_nothing_is_kept(
    tried: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ETT_RUN", raising=False)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert draws(model(), loss, BATCH) == {"cpu"}
    assert len(tried) == 2
    assert not [*tmp_path.iterdir()]
