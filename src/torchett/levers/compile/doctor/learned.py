"""The dynamic inputs of a workload, stored in the folder of its runs for its later jobs.

    $ETT_RUNS/.workloads/train-1c0f3a2b.json      {"format": "workload/1", "command": […],
                                                   "dynamic": {"L['x']": [0], "L['n']": null},
                                                   "unbacked": {}}

A workload is a script or a module. The same file with other options is the same workload, because
the names of its inputs are the same.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchett.levers.compile.doctor.sources import DYNAMIC, UNBACKED, Dims, joined, merged, render
from torchett.store import write_whole

FORMAT = "workload/1"
_MOST_SOURCES = 1000


def workload_path(runs: Path, command: Sequence[str]) -> Path:
    """The file for the workload of this command."""
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
    """Inputs whose sizes change; and those of them that a run has compiled as unbacked."""

    dynamic: Mapping[str, Dims] = field(default_factory=dict)
    unbacked: Mapping[str, Dims] = field(default_factory=dict)

    def settings(self, env: Mapping[str, str], *, by_dimension: bool) -> dict[str, str]:
        """The environment variables for torch, joined with those already in `env`.

        Unbacked inputs are not listed as dynamic, too: torch 2.15 would use them as dynamic.
        """
        dynamic = {name: dims for name, dims in self.dynamic.items() if name not in self.unbacked}
        lists = ((DYNAMIC, dynamic), (UNBACKED, self.unbacked))
        values = {
            variable: joined(env.get(variable), render(sources, by_dimension=by_dimension))
            for variable, sources in lists
        }
        return {variable: value for variable, value in values.items() if value}


def learned(path: Path) -> Workload:
    """The workload in a file; empty if the file cannot be read."""
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
    """Merge `new` into the file, written atomically; returns the merged workload."""
    known = learned(path)
    both = Workload(
        dynamic=_few(merged([known.dynamic, new.dynamic])),
        unbacked=_few(merged([known.unbacked, new.unbacked])),
    )
    kept = {"dynamic": dict(both.dynamic), "unbacked": dict(both.unbacked)}
    whole = {"format": FORMAT, "command": list(command), **kept}
    write_whole(path, json.dumps(whole).encode(), durable=False)
    return both


def _few(sources: Mapping[str, Dims]) -> dict[str, Dims]:
    return dict(sorted(sources.items())[:_MOST_SOURCES])
