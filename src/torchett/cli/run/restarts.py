"""The restart policy of `ett run`, and what it decided as `ett report` shows it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchett.model.errors import InputError
from torchett.restarts.memory_kills import MemoryKills

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torchett.launch.restarts import MakePolicy
    from torchett.model.restarts import RestartPolicy
    from torchett.runs.printed import Printed


def policy_of(
    files: tuple[str, ...],
) -> "MakePolicy | None":
    """What makes the policy of a run; None for `none`. A bad file is said before the job begins."""
    if "none" in files:
        if len(files) > 1:
            raise InputError("ett run: --restart-policy none goes with no other")
        return None
    if files:
        from torchett.restarts.table import table_with

        table_with(map(Path, files))
    kills = MemoryKills()  # what the kernel kills from now on is evidence

    def make(run: Path, env: Mapping[str, str], printed: "Printed") -> "RestartPolicy":
        from torchett.failures.rules import rules_with
        from torchett.restarts.policy import RunPolicy
        from torchett.restarts.table import table_with

        own = [Path(name) for name in env.get("ETT_FAILURE_RULES", "").split(":") if name]
        table = table_with(Path(name) for name in files)
        return RunPolicy(run, env, printed, kills, table=table, rules=rules_with(own))

    return make


def decisions_of(run: Path) -> list[dict[str, Any]]:
    """What the restart policy decided after each failure of a run, the first first."""
    from torchett.restarts.history import read_history

    return [fact.to_json() for fact in read_history(run)]


def decisions_shown(decisions: list[dict[str, Any]]) -> "list[RenderableType]":
    from torchett.report.sections.restarts import restart_section

    rows = []
    for one in decisions:
        restart = f".{one['restart']}" if one["restart"] else ""
        node = f" (node {one['node']})" if one["node"] else ""
        rows.append((f"{one['attempt']}{restart}{node}", one["outlook"], one["why"]))
    return restart_section(rows)
