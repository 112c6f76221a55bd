"""A DataLoader that begins in one stage does not change the random numbers of another."""

import logging
import threading

import pytest

from torchett import Plan

torch = pytest.importorskip("torch")


def planned(shuffle: bool) -> tuple[list[float], list[int]]:
    """The draws of a model's stage, with a loader that begins between two of them; and batches."""
    from torch.utils.data import DataLoader

    plan = Plan(seed=3)
    drawn, begun = threading.Event(), threading.Event()

    @plan.stage("train_module_creation")
    def model() -> list[float]:
        first = torch.rand(1).item()
        drawn.set()
        assert begun.wait(10)
        return [first, torch.rand(1).item()]

    @plan.stage("preproc_creation")
    def loader() -> list[int]:
        assert drawn.wait(10)
        batches = iter(DataLoader(range(4), batch_size=None, shuffle=shuffle))
        begun.set()
        return [int(one) for one in batches]

    ready = plan.run(record=lambda *_: None)
    return ready.model, ready.loader


def undisturbed() -> list[float]:
    plan = Plan(seed=3)

    @plan.stage("train_module_creation")
    def model() -> list[float]:
        return [torch.rand(1).item(), torch.rand(1).item()]

    return list(plan.run(record=lambda *_: None).model)


def test_a_loader_begun_beside_a_model_does_not_change_its_weights(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = torch.get_rng_state()
    with caplog.at_level(logging.WARNING, logger="torchett"):
        drawn, batches = planned(shuffle=False)
    assert drawn == undisturbed()
    assert batches == [0, 1, 2, 3]
    assert torch.equal(torch.get_rng_state(), before)
    assert caplog.text == ""


def test_a_loader_that_shuffles_in_such_a_stage_gets_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="torchett"):
        planned(shuffle=True)
    assert "a stage without rng=True shuffles" in caplog.text


def test_outside_a_plan_a_loader_draws_as_without_torchett() -> None:
    from torch.utils.data import DataLoader

    planned(shuffle=False)
    torch.manual_seed(1)
    iter(DataLoader(range(4), batch_size=None))
    after = torch.rand(1)
    torch.manual_seed(1)
    torch.empty((), dtype=torch.int64).random_()
    assert torch.equal(torch.rand(1), after)
