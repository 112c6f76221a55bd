"""Where the pages of single jobs take them from: a folder of runs, or the jobs of a fleet."""

from typing import Protocol

from torchett.model.errors import RunError
from torchett.serve.fleet.jobs import fleet_rows, run_folder
from torchett.serve.fleet.source import FleetSource
from torchett.serve.runs import JobRead, JobRow, RunFolders


class OnlySumsError(RunError):
    """The run folder of a job is gone; the fleet's rows are what is left."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key[:80]}: its run folder is gone: only its sums are known")
        self.key = key


class Shelf(Protocol):
    """Jobs by key."""

    def rows(self) -> list[JobRow]:
        """A row for each job: live ones first, then the newest."""

    def job(self, key: str) -> JobRead:
        """What is known of one job by now; RunError if there is none."""


class RunShelf:
    """The runs below a folder; a key is a run's name."""

    def __init__(self, runs: RunFolders) -> None:
        self._runs = runs

    def rows(self) -> list[JobRow]:
        return self._runs.rows()

    def job(self, key: str) -> JobRead:
        return self._runs.job(key)


class FleetShelf:
    """The jobs of a fleet, read from where their run folders lie; a key is PROJECT/JOB."""

    def __init__(self, runs: RunFolders, source: FleetSource) -> None:
        self._runs, self._source = runs, source

    def rows(self) -> list[JobRow]:
        return fleet_rows(self._source)

    def job(self, key: str) -> JobRead:
        path = run_folder(self._source, key)
        if path is None:
            raise OnlySumsError(key)
        try:
            return self._runs.at(path, key)
        except FileNotFoundError:
            raise OnlySumsError(key) from None
