"""What is collected of a state: all of it, as it is now, under DCP's own names."""

import io
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from torchett.levers.checkpoint.state.pieces import Collector, Pieces, leaves

T = torch.arange(6.0)

NESTED: list[dict[str, Any]] = [
    {},
    {"a": T, "b": {"c": 1, "d": None}},
    {"a": [1, 2, [3]], "b": [1, T], "c": [{"x": 1}, 2], "d": [[1, [T]]], "e": []},
    {"a": OrderedDict(x=T, y=(T, 1)), "b": {"z": {}}, "c": {1: T, "2": 3}},
    {"a": torch.nn.Parameter(T), "b": {"f": "text", "g": b"bytes", "h": {1, 2}}},
]


class Job:
    """A model with a buffer, and AdamW that has taken a step."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.5)
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        self.state["extra"] = {"a": {"x": T.clone()}, "b": T.clone(), "count": 1}
        self.step()

    def step(self) -> None:
        self.model(torch.randn(8, 4)).sum().backward()
        self.optimizer.step()


def contents(pieces: Pieces) -> dict[str, Any]:
    """Name → value, as the checkpoint will have it."""
    items = pieces.plan.items
    tensors, blobs = iter(pieces.tensors), iter(pieces.blobs)
    return {
        item.index.fqn: torch.load(io.BytesIO(next(blobs)), weights_only=False)
        if item.type.name == "BYTE_IO"
        else next(tensors).clone()
        for item in items
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    def told(value: Any) -> Any:
        return (value.tolist(), value.dtype) if isinstance(value, torch.Tensor) else value

    return [(name, told(a[name])) for name in a] == [(name, told(b[name])) for name in b]


@pytest.mark.parametrize("nested", NESTED)
def test_leaves_are_dcps_in_its_order(nested: dict[str, Any]) -> None:
    official, _ = flatten_state_dict(nested)
    assert list(map(id, leaves(nested)[0])) == list(map(id, official.values()))


def test_a_state_that_only_trained_keeps_its_plan_and_is_collected_as_it_is() -> None:
    job = Job()
    collector = Collector(0)
    first = collector.collect(job.state)
    job.step()
    job.optimizer.param_groups[0]["lr"] = 0.25
    job.state["extra"]["count"] = 2
    second = collector.collect(job.state)
    assert second.plan_id == first.plan_id
    found = contents(second)
    (rate,) = (name for name in found if name.endswith(".lr"))
    assert found[rate] == 0.25
    assert found["extra.count"] == 2
    assert same(found, contents(Collector(0).collect(job.state)))
    live = {p.data_ptr() for p in job.model.parameters()}
    assert live <= {tensor.data_ptr() for tensor in second.tensors}


def _new_group(job: Job) -> None:
    job.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})


def _replaced_weight(job: Job) -> None:
    job.model[0].weight = torch.nn.Parameter(torch.full((4, 4), 7.0))


def _other_memory(job: Job) -> None:
    job.model[0].weight.data = torch.full((4, 4), 7.0)


def _other_shape(job: Job) -> None:
    job.model[0].weight.data = torch.ones(4, 5)


def _other_dtype(job: Job) -> None:
    state = next(iter(job.optimizer.state.values()))
    state["exp_avg"] = state["exp_avg"].double()


def _other_key(job: Job) -> None:
    state = next(iter(job.optimizer.state.values()))
    state["renamed"] = state.pop("exp_avg_sq")


def _state_gone(job: Job) -> None:
    job.optimizer.state.clear()


def _hook(job: Job) -> None:
    job.model.register_state_dict_post_hook(
        lambda module, state, prefix, metadata: state.update(told=torch.ones(1))
    )


def _hook_of_the_optimizer(job: Job) -> None:
    job.optimizer.register_state_dict_post_hook(lambda o, state: {**state, "told": torch.ones(1)})


def _other_depth(job: Job) -> None:
    job.state["extra"] = {"a": T.clone(), "b": {"x": T.clone()}, "count": 1}


def _other_kind(job: Job) -> None:
    job.state["extra"]["count"] = torch.tensor(1)


def _other_order(job: Job) -> None:
    job.state["extra"] = dict(reversed(job.state["extra"].items()))


@pytest.mark.parametrize(
    "change",
    [
        _new_group,
        _replaced_weight,
        _other_memory,
        _other_shape,
        _other_dtype,
        _other_key,
        _state_gone,
        _hook,
        _hook_of_the_optimizer,
        _other_depth,
        _other_kind,
        _other_order,
    ],
)
def test_whatever_changes_is_seen(change: Callable[[Job], None]) -> None:
    job = Job()
    collector = Collector(0)
    before = contents(collector.collect(job.state))
    change(job)
    found = contents(collector.collect(job.state))
    assert not same(found, before)
    assert same(found, contents(Collector(0).collect(job.state)))


def test_keys_that_are_equal_and_named_otherwise_are_told_apart() -> None:
    collector = Collector(0)
    for key in (1, True, 1.0, "1"):
        assert list(contents(collector.collect({"a": {key: T}}))) == [f"a.{key}"]


def test_a_walk_that_differs_from_dcps_gives_way_to_it() -> None:
    job = Job()
    collector = Collector(0)
    collector._leaves = lambda nested: ([], [None])
    found = contents(collector.collect(job.state))
    assert same(found, contents(Collector(0).collect(job.state)))
    _other_shape(job)
    found = contents(collector.collect(job.state))
    assert same(found, contents(Collector(0).collect(job.state)))
