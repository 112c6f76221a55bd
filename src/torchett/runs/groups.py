"""The replica groups of a job: each is a run of its own, named after the job.

    ett-runs/gpt.group-0   ett-runs/gpt.group-1   ─► the job gpt

`ett report gpt` adds them up, `ett report gpt.group-1` shows one.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from torchett.ledger.ledger import Ledger
from torchett.ledger.replica_groups import summed
from torchett.record.identity import GROUP, runs_folder, safe_name
from torchett.runs.folder import find_run, is_run
from torchett.runs.reader import RunReader


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedJob:
    """A job that consists of replica groups, read: one reader by each group's name."""

    name: str
    groups: dict[str, RunReader]

    def ledgers(self) -> dict[str, Ledger]:
        return {group: reader.ledger() for group, reader in self.groups.items()}

    def ledger(self) -> Ledger:
        """The sum of the groups'."""
        return summed(self.name, list(self.ledgers().values()))


def job_of(run: Path) -> Path | None:
    """The path that stands for all groups of the job, where this run is one group's."""
    job, found, group = run.name.rpartition(GROUP)
    return run.parent / job if found and job and group else None


def grouped_job(name: str) -> GroupedJob | None:
    """The job of this name or at this path, if it consists of groups; else None.

    Where one launcher started several groups there is a run of the job's own name as well, without
    any record of a rank.
    """
    path = Path(name) if os.sep in name else runs_folder(os.environ) / safe_name(name)
    folders = _group_folders(path)
    if not folders or any(path.glob("attempt-*/*.ett")):
        return None
    readers = {group: RunReader(folder).poll() for group, folder in folders.items()}
    return GroupedJob(name=path.name, groups=readers)


def job_ledger(name: str) -> Ledger:
    """The ledger of the run of this name, or of the job of several groups."""
    found = grouped_job(name)
    return RunReader(find_run(name)).poll().ledger() if found is None else found.ledger()


def _group_folders(job: Path) -> dict[str, Path]:
    try:
        found = [one for one in job.parent.iterdir() if one.is_dir() and job_of(one) == job]
    except OSError:
        return {}
    by_name = {one.name.rpartition(GROUP)[2]: one for one in found if is_run(one)}
    return {group: by_name[group] for group in sorted(by_name, key=_order)}


def _order(group: str) -> tuple[int, str]:
    return (int(group), "") if group.isascii() and group.isdigit() else (1 << 62, group)
