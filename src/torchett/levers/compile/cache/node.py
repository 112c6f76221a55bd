"""The ranks of one node share a cache folder, so they need one download and one upload.

CACHE/ett-cache/lease              held while one rank downloads and installs
CACHE/ett-cache/JOB.json           the outcome, for the ranks that waited
CACHE/ett-cache/JOB.parts/R.part   the new entries of rank R, for the rank that publishes
"""

import hashlib
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from torchett.store import lease, write_whole

_OLD_S = 3 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The outcome of the search for an archive, stored for the other ranks."""

    match: str = "none"  # exact, nearest, none
    archive: str | None = None
    reason: str = ""
    bytes: int = 0
    entries: int = 0
    download_s: float = 0.0
    install_s: float = 0.0
    loaded_by: int = 0  # process id of the rank that loaded it
    pgo: tuple[tuple[str, str], ...] = ()  # profiles: keys and files
    names: tuple[tuple[str, str, str], ...] = ()  # identities of the archive's entries


class Node:
    """This rank among those that share its cache folder."""

    def __init__(self, cache: Path, env: Mapping[str, str]) -> None:
        self.folder = cache / "ett-cache"
        self.local_rank = _number(env, "LOCAL_RANK", "SLURM_LOCALID")
        self.local_ranks = max(_number(env, "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"), 1)
        self.number = _number(env, "GROUP_RANK", "SLURM_NODEID", "ETT_NODE")
        self._job = _job(env, self.local_ranks)
        self.parts = self.folder / f"{self._job}.parts"

    def once(self, work: Callable[[], LoadResult], timeout_s: float) -> LoadResult:
        """Call `work` on the first rank that calls this; the others wait and get the same result.

        `BusyError` after the timeout: the caller continues without an archive.
        """
        self._make()
        marker = self.folder / f"{self._job}.json"
        with lease(self.folder / "lease", timeout_s=timeout_s):
            if self.local_ranks == 1:
                return work()
            try:
                words = json.loads(marker.read_bytes())
                words["pgo"] = tuple((key, file) for key, file in words["pgo"])
                words["names"] = tuple((k, n, s) for k, n, s in words["names"])
                return LoadResult(**words)
            except (OSError, ValueError, TypeError, KeyError):
                pass
            found = work()
            write_whole(marker, json.dumps(asdict(found)).encode(), mode=0o600, durable=False)
            return found

    def hand_in(self, part: bytes) -> None:
        """Write the new entries of this rank for the rank that publishes."""
        write_whole(self.parts / f"{self.local_rank}.part", part, mode=0o600, durable=False)

    def collect(self, timeout_s: float, enough: threading.Event) -> list[bytes]:
        """The parts of this node's other ranks: waits for all, for the timeout, or for `enough`."""
        until = time.monotonic() + timeout_s
        others = [self.parts / f"{n}.part" for n in range(self.local_ranks) if n != self.local_rank]
        while time.monotonic() < until and not all(path.exists() for path in others):
            if enough.wait(0.05):
                break
        found = [path.read_bytes() for path in others if path.exists()]
        shutil.rmtree(self.parts, ignore_errors=True)
        return found

    def keep(self, name: str, data: bytes) -> Path:
        """Write bytes beside the marker file, for the other ranks."""
        path = self.folder / f"{self._job}.{name}"
        write_whole(path, data, mode=0o600, durable=False)
        return path

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"{self.folder} belongs to another user")
        if found.st_mode & 0o077:
            self.folder.chmod(0o700)
        for path in self.folder.iterdir():
            try:
                if path.name != "lease" and time.time() - path.stat().st_mtime > _OLD_S:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
            except FileNotFoundError:
                continue  # another rank has removed it


def _number(env: Mapping[str, str], *names: str) -> int:
    for name in names:
        value = env.get(name, "").partition("(")[0]
        if value.isdigit():
            return int(value)
    return 0


def _job(env: Mapping[str, str], local_ranks: int) -> str:
    """An id that is equal for all ranks of one attempt on this node, and for no other ranks.

    With a plain torchrun, only the folder of the ranks' error files is new at each start.
    """
    words = [
        env.get(name, "")
        for name in (
            *("ETT_RUN", "ETT_ATTEMPT", "ETT_ATTEMPT_BEGAN", "SLURM_JOB_ID", "SLURM_STEP_ID"),
            *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
        )
    ]
    words.append(os.path.dirname(os.path.dirname(env.get("TORCHELASTIC_ERROR_FILE", ""))))
    if local_ranks == 1:
        words.append(str(os.getpid()))
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:24]
