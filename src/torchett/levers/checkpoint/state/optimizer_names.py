"""The state of an optimizer by the names of its parameters, as it lies in a checkpoint.

torch.optim numbers parameters in the order of its groups. Each pipeline stage begins at 0, so
different parameters would share a key. Names are the same on all ranks and for every sharding.

    torch   {"state": {0: {"exp_avg": t}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    here    {"state": {"model.0.weight": {"exp_avg": t}},
             "param_groups": {"9be1ae06": {"lr": 0.1, "params": ["model.0.weight"]}}}

A group's key is a checksum of its names: ranks with the same group write it once, ranks with other
parameters write another. A parameter's name begins with the key of its module in the state.
"""

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from torchett.levers.checkpoint.errors import CheckpointError, StateMismatch

Names = list[list[str]]  # of the parameters of each group


class ParameterNames:
    """Names of parameters; found once, and looked up while each module still holds its own."""

    def __init__(self) -> None:
        # id of a parameter → (the dict that holds it, its key there, its name)
        self._known: dict[int, tuple[dict[str, Any], str, str]] = {}
        self._fsdp1 = ""

    def of(self, optimizer: Any, state: Mapping[str, Any]) -> Names | None:
        """The names in each group; None if a parameter is in no module of `state`."""
        parameters = [group["params"] for group in inner(optimizer).param_groups]
        names = self._look_up(parameters)
        if names is None:
            self._find(state)
            names = self._look_up(parameters)
        if self._fsdp1:
            raise CheckpointError(
                f"{self._fsdp1!r} is wrapped in FSDP1 (FullyShardedDataParallel), whose optimizer "
                "state is flat shards without names: shard it with fully_shard (FSDP2), or save "
                "FullyShardedDataParallel.optim_state_dict(model, optimizer) instead of the "
                "optimizer"
            )
        return names

    def _look_up(self, groups: list[list[Any]]) -> Names | None:
        known = self._known
        names: Names = []
        for parameters in groups:
            found = []
            for parameter in parameters:
                entry = known.get(id(parameter))
                if entry is None or entry[0].get(entry[1]) is not parameter:
                    return None
                found.append(entry[2])
            names.append(found)
        return names

    def _find(self, state: Mapping[str, Any]) -> None:
        import torch

        self._known, self._fsdp1 = {}, ""
        for key, module in state.items():
            if not isinstance(module, torch.nn.Module):
                continue
            owners: dict[int, tuple[dict[str, Any], str]] = {}
            for part in module.modules():
                if _is_fsdp1(part):
                    self._fsdp1 = key
                for name, parameter in part._parameters.items():
                    owners.setdefault(id(parameter), (part._parameters, name))
            for name, parameter in module.named_parameters():
                if id(parameter) in owners:
                    place = (*owners[id(parameter)], f"{key}.{name}")
                    self._known.setdefault(id(parameter), place)


def inner(optimizer: Any) -> Any:
    """The optimizer that owns states: of ZeroRedundancyOptimizer, the one of this rank's part."""
    return optimizer.optim if _is_zero(optimizer) else optimizer


def by_name(optimizer: Any, names: Names | None) -> dict[str, Any]:
    """The state_dict with names for numbers; as torch has it if it cannot be named."""
    if _is_zero(optimizer):
        if names is None:
            raise CheckpointError(
                "ZeroRedundancyOptimizer is saved by the names of its parameters: put its model "
                "into the state beside it"
            )
        _copy_settings(optimizer.param_groups, optimizer.optim.param_groups)
    state: dict[str, Any] = inner(optimizer).state_dict()
    if names is None or not _is_numbered(state, names):
        return state
    flat = [name for group in names for name in group]
    return {
        **state,
        "state": {flat[number]: values for number, values in state["state"].items()},
        "param_groups": {
            key_of(group_names): {**group, "params": group_names}
            for group_names, group in zip(names, state["param_groups"], strict=True)
        },
    }


def is_named(state: Mapping[str, Any]) -> bool:
    """Whether a state is one that `by_name` named."""
    return isinstance(state.get("param_groups"), Mapping)


def key_of(names: Iterable[str]) -> str:
    """What a group of these parameters is called in a checkpoint."""
    return f"{zlib.crc32(chr(10).join(names).encode()):08x}"


def load_by_name(key: str, optimizer: Any, names: Names, saved: Mapping[str, Any]) -> None:
    """Load what `by_name` made, of any number of ranks and stages, into this rank's optimizer."""
    settings: dict[str, dict[str, Any]] = {}  # of each saved parameter: its group's
    for group in saved["param_groups"].values():
        rest = {option: value for option, value in group.items() if option != "params"}
        settings.update(dict.fromkeys(group.get("params", ()), rest))
    flat = [name for group in names for name in group]
    lost = [name for name in flat if name not in settings]
    if lost:
        raise StateMismatch(
            f"the checkpoint's {key!r} has no state of {len(lost)} parameters of this job, "
            f"{lost[0]!r} first: leave it as it is with restore(state, skip=[{key!r}])"
        )
    numbered: dict[str, Any] = {**saved, "state": {}, "param_groups": []}
    for number, name in enumerate(flat):
        if saved["state"].get(name):
            numbered["state"][number] = saved["state"][name]
    begin = 0
    target = inner(optimizer)
    for group_names, group in zip(names, target.param_groups, strict=True):
        found = _one_of(key, [settings[name] for name in group_names])
        own = {option: value for option, value in group.items() if option != "params"}
        numbers = list(range(begin, begin + len(group_names)))
        numbered["param_groups"].append({**(found or own), "params": numbers})
        begin += len(group_names)
    target.load_state_dict(numbered)
    if _is_zero(optimizer):
        _copy_settings(target.param_groups, optimizer.param_groups)


def _one_of(key: str, settings: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The settings that all parameters of a group were saved with."""
    if not settings:
        return None
    first = settings[0]
    for other in settings[1:]:
        if other is first:
            continue
        for option in first.keys() | other.keys():
            if not _same(first.get(option), other.get(option)):
                raise StateMismatch(
                    f"a group of {key!r} holds parameters that were saved with {option}="
                    f"{first.get(option)!r} and {other.get(option)!r}: use the same groups as the "
                    f"job that saved, or leave it as it is with restore(state, skip=[{key!r}])"
                )
    return first


def _same(a: Any, b: Any) -> bool:
    import torch

    if torch.is_tensor(a) and torch.is_tensor(b):
        return bool(torch.equal(a, b))
    return type(a) is type(b) and bool(a == b)


def _is_numbered(state: Mapping[str, Any], names: Names) -> bool:
    """Whether a state_dict has the form of torch.optim, with as many parameters as there are."""
    groups = state.get("param_groups")
    if not isinstance(groups, list) or not isinstance(state.get("state"), Mapping):
        return False
    numbers = [number for group in groups for number in group.get("params", ())]
    return (
        numbers == list(range(len(numbers)))
        and [len(group["params"]) for group in groups] == [len(group) for group in names]
        and len({name for group in names for name in group}) == len(numbers)
        and all(type(number) is int and number < len(numbers) for number in state["state"])
    )


def _copy_settings(source: list[dict[str, Any]], target: list[dict[str, Any]]) -> None:
    """What ZeroRedundancyOptimizer does before a step: rates and the like of one to the other."""
    for one, other in zip(source, target, strict=True):
        other.update({option: value for option, value in one.items() if option != "params"})


def _is_zero(optimizer: Any) -> bool:
    return any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(optimizer).__mro__)


def _is_fsdp1(module: Any) -> bool:
    return any(base.__name__ == "FullyShardedDataParallel" for base in type(module).__mro__)
