"""What was learned about a workload, kept beside its runs and used by its later jobs.

    $ETT_RUNS/.workloads/train-1c0f3a2b.json      {"format": "workload/1", "command": […],
                                                   "dynamic": {"L['x']": [0], "L['n']": null},
                                                   "unbacked": {}}

A workload is a script (or module): the same file run with other options is the same workload,
because the names of its inputs are the same.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchett.compile.sources import DYNAMIC, UNBACKED, Dims, joined, merged, render
from torchett.store import write_whole

FORMAT = "workload/1"
_MOST_SOURCES = 1000


def workload_path(runs: Path, command: Sequence[str]) -> Path:
    """The file in which the workload of this command is kept."""
    name, what = "command", " ".join(command)
    for number, word in enumerate(command):
        if word.endswith(".py"):
            name, what = Path(word).stem, str(Path(word).resolve())
            break
        if (
            word == "-m"
            and number + 1 < len(command)
            and "torch.distributed" not in (module := command[number + 1])
        ):
            name, what = module.rpartition(".")[2], module
            break
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    return runs / ".workloads" / f"{safe}-{hashlib.sha256(what.encode()).hexdigest()[:8]}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Sources known to change; of those, the ones a run showed to compile without any hint."""

    dynamic: Mapping[str, Dims] = field(default_factory=dict)
    unbacked: Mapping[str, Dims] = field(default_factory=dict)

    def settings(self, env: Mapping[str, str], *, by_dimension: bool) -> dict[str, str]:
        """The environment that tells torch, together with what `env` tells it already."""
        told = ((DYNAMIC, self.dynamic), (UNBACKED, self.unbacked))
        values = {
            variable: joined(env.get(variable), render(sources, by_dimension=by_dimension))
            for variable, sources in told
        }
        return {variable: value for variable, value in values.items() if value}


def learned(path: Path) -> Workload:
    """What is kept there; nothing if nothing readable is."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["format"] != FORMAT:
            return Workload()
        return Workload(dynamic=_sources(kept["dynamic"]), unbacked=_sources(kept["unbacked"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Workload()


def _sources(kept: Mapping[str, Any]) -> dict[str, Dims]:
    return {
        str(name): None if dims is None else sorted(int(dim) for dim in dims)
        for name, dims in kept.items()
    }


def learn(path: Path, command: Sequence[str], new: Workload) -> Workload:
    """All that is known now, written in one piece."""
    known = learned(path)
    both = Workload(
        dynamic=_few(merged([known.dynamic, new.dynamic])),
        unbacked=_few(merged([known.unbacked, new.unbacked])),
    )
    kept = {"dynamic": dict(both.dynamic), "unbacked": dict(both.unbacked)}
    told = {"format": FORMAT, "command": list(command), **kept}
    write_whole(path, json.dumps(told).encode(), durable=False)
    return both


def _few(sources: Mapping[str, Dims]) -> dict[str, Dims]:
    return dict(sorted(sources.items())[:_MOST_SOURCES])
