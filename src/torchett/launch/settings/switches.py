"""Every lever with its switch, and whether it is on for a job: what `ett run --explain` prints.

A lever that changes foreign objects has rows in `record/patch_table.py`; the others are here.
"""

import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torchett.launch.settings.levers import Levers
from torchett.model.errors import InputError
from torchett.record.patch_table import TABLE, Default, Patch
from torchett.record.patches import missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """What turns a lever on or off, beside `--without LEVER`."""

    lever: str
    switch: str
    does: str = ""  # of a lever that has no row in the table
    default: Default = "run"  # of such a lever


SWITCHES = (
    Switch(lever="hooks", switch="--no-hooks"),
    Switch(lever="imports", switch="--no-hooks"),
    Switch(lever="lightning", switch="--no-hooks"),
    Switch(lever="transformers", switch="--no-hooks"),
    Switch(lever="compile-watch", switch="ETT_DISABLE=1"),
    Switch(lever="import-hook", switch="ETT_DISABLE=1"),
    Switch(lever="pins", switch="--no-pins"),
    Switch(lever="agent", switch="--as-is"),
    Switch(lever="fast-exit", switch="ETT_FAST_EXIT=0"),
    Switch(lever="compile-cache", switch="--compile-cache URL"),
    Switch(lever="winners", switch="--compile-cache URL"),
    Switch(lever="light-batches", switch="--light-batches"),
    Switch(lever="audit", switch="--audit"),
    Switch(lever="standby-model", switch="--standby-model"),
    Switch(lever="plan", switch="ett.Plan"),
    Switch(lever="lazy-groups", switch="ett.lazy_groups"),
    Switch(lever="shard-metadata", switch="local_shard_metadata"),
    Switch(lever="sharding-plans", switch="cached_sharding_plans"),
    Switch(lever="preemption-notice", switch="ett.Checkpointer"),
    Switch(lever="accelerate", switch="EttTracker.watch"),
    Switch(lever="deepspeed", switch="watched(engine)"),
    Switch(lever="torchrec", switch="watched(pipeline)"),
    Switch(
        lever="standby",
        switch="--no-standby",
        does="processes that have imported torch already take over torchrun's ranks",
    ),
    Switch(lever="bytecode", switch="--no-bytecode"),
    Switch(
        lever="hang-timeout",
        switch="--hang-timeout 0",
        does="a rank without any sign of life is ended",
    ),
    Switch(
        lever="node-watch",
        switch="ETT_NODE_TIMEOUT=0",
        does="a lost node is removed from torchrun's rendezvous, and the others begin a new one",
    ),
    Switch(
        lever="restart-policy",
        switch="--restart-policy none",
        does="a job that cannot succeed is not started again",
    ),
    Switch(
        lever="dynamic-sources",
        switch="--dynamic-sources",
        does="sizes that differ are set as dynamic, by torch.compile's own variables",
        default="asked",
    ),
)
_SWITCHES = {switch.lever: switch for switch in SWITCHES}
DEFAULTS = {
    "record": "on wherever a record is kept",
    "run": "on under `ett run`",
    "asked": "off until asked for",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One line of `ett run --explain`."""

    target: str  # empty: the lever changes no object
    lever: str
    default: str
    on: bool
    why: str
    reason: str
    switch: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def checked(names: Iterable[str]) -> tuple[str, ...]:
    """These names of levers or targets; InputError with the nearest one if there is no such."""
    given = [name for text in names for name in text.split(",") if name]
    known = dict.fromkeys([*_SWITCHES, *(p.lever for p in TABLE), *(p.target for p in TABLE)])
    for name in given:
        if name not in known:
            near = get_close_matches(name.replace("_", "-"), known, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else "see ett run --explain"
            raise InputError(f"ett run --without: no lever or target '{name}': {hint}")
    return tuple(dict.fromkeys(given))


def explained(
    levers: Levers,
    *,
    standby: bool,
    hang_timeout_s: float,
    dynamic_sources: bool,
    agent: bool,
) -> list[Explained]:
    """The table as it applies to a job with these levers, in this environment."""
    asked = {
        "compile-cache": levers.compile_cache is not None,
        "winners": levers.compile_cache is not None,
        "light-batches": levers.light_batches,
        "audit": levers.audit,
        "standby-model": levers.standby_model,
        "dynamic-sources": dynamic_sources,
    }
    on = {
        "hooks": levers.hooks,
        "imports": levers.hooks,
        "lightning": levers.hooks,
        "transformers": levers.hooks,
        "pins": levers.pins and levers.hooks,
        "bytecode": levers.bytecode,
        "standby": standby,
        "fast-exit": standby,
        "agent": agent,
        "node-watch": agent and os.environ.get("ETT_NODE_TIMEOUT") != "0",
        "hang-timeout": hang_timeout_s > 0,
    }
    chosen = _Chosen(asked=asked, on=on, without=_without(levers))
    return [
        *(_of_patch(patch, chosen) for patch in TABLE),
        *(_of_switch(switch, chosen) for switch in SWITCHES if switch.does),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """What options and environment say."""

    asked: dict[str, bool]  # levers that are off unless they are asked for
    on: dict[str, bool]  # levers that are on unless an option turns them off
    without: frozenset[str]

    def of(self, lever: str, default: str) -> tuple[bool, str]:
        """Whether this lever is on, and what says so."""
        switch = _switch(lever)
        if lever in self.without:
            return False, "--without or ETT_WITHOUT"
        if os.environ.get("ETT_DISABLE") == "1":
            return False, "ETT_DISABLE=1"
        if default == "asked":
            on = self.asked.get(lever, False)
            return on, f"asked for: {switch}" if on else f"not asked for: {switch}"
        if default == "record":
            return True, "wherever a record is kept"
        on = self.on.get(lever, True)
        return on, "ett run" if on else f"{switch} or --as-is"


def _without(levers: Levers) -> frozenset[str]:
    return frozenset([*levers.without, *os.environ.get("ETT_WITHOUT", "").split(",")])


def _switch(lever: str) -> str:
    known = _SWITCHES.get(lever)
    return f"--without {lever}" if known is None else known.switch


def _of_switch(switch: Switch, chosen: _Chosen) -> Explained:
    on, why = chosen.of(switch.lever, switch.default)
    return Explained(
        target="",
        lever=switch.lever,
        default=switch.default,
        on=on,
        why=why,
        reason=switch.does,
        switch=switch.switch,
    )


def _of_patch(patch: Patch, chosen: _Chosen) -> Explained:
    on, why = chosen.of(patch.lever, patch.default)
    if patch.target in chosen.without:
        on, why = False, "--without or ETT_WITHOUT"
    lacked = _lacked(patch) if on else None
    return Explained(
        target=patch.target,
        lever=patch.lever,
        default=patch.default,
        on=on and lacked is None,
        why=lacked or why,
        reason=patch.reason,
        switch=_switch(patch.lever),
    )


def _lacked(patch: Patch) -> str | None:
    """What the installed packages lack of what the patch needs; None if nothing."""
    for name in (patch.target, *patch.needs):
        module = name.partition(":")[0]
        package = module.partition(".")[0]
        if "*" in module:
            continue
        if package not in sys.modules and find_spec(package) is None:
            return f"{package} is not installed"
        try:
            import_module(module)
        except Exception as error:
            return f"{module} cannot be imported: {type(error).__name__}"
    lacked = missing(patch.target, *patch.needs)
    return None if lacked is None else f"this version has no {lacked}"


def lever_meanings() -> dict[str, str]:
    """Lever → what it does, its default and its switch, as one text for `ett explain`."""
    rows: list[tuple[str, str, str]] = []
    rows += [(each.lever, each.default, each.does) for each in SWITCHES if each.does]
    rows += [(patch.lever, patch.default, patch.reason) for patch in TABLE]
    found: dict[str, str] = {}
    for lever, default, _ in reversed(rows):  # of several rows the first one's default counts
        does = dict.fromkeys(reason for name, _, reason in rows if name == lever)
        switch = _SWITCHES[lever].switch if lever in _SWITCHES else f"--without {lever}"
        found[lever] = f"{'; '.join(does)}. Default: {DEFAULTS[default]}. Switch: {switch}."
    return found
