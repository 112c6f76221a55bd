"""The registry of published models, in a folder or behind a URL.

    REGISTRY/dlrm/versions/00000007.json     a version: created once, after all its files
    REGISTRY/dlrm/files/sha256/5f3a…         the files, each under its hash
    REGISTRY/dlrm/aliases/live/00000003.json what `live` names, and named before

A version exists from the moment its manifest is created. Of two workers that publish the same key
at once one creates the next number; the other finds the key there and takes that version.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torchett.levers.publish.errors import RegistryError
from torchett.levers.publish.registry.aliases import Aliases, Flip
from torchett.levers.publish.registry.blobs import Blobs, blobs_of
from torchett.levers.publish.registry.numbered_log import NumberedLog
from torchett.levers.publish.registry.version import Version
from torchett.store import Store, StoreError, open_store

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_LEASE_S = 300.0
REMOVED = "removed"  # the key of a version that was collected


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection took away."""

    versions: list[int]
    files: list[str]


class Registry:
    """All models of one registry."""

    def __init__(self, url: str) -> None:
        try:
            self.store: Store = open_store(url)
        except StoreError as error:
            raise RegistryError(f"registry {error}") from None
        self.url = url

    def models(self) -> list[str]:
        names = self.store.names()
        return sorted({name.split("/")[0] for name in names if "/versions/" in name})

    def model(self, name: str) -> "Model":
        """The versions of one model; it need not have any yet."""
        if not _MODEL.fullmatch(name):
            raise RegistryError(f"model name {name!r}: expected letters, digits, - and _")
        return Model(self.store, name)

    def find(self, label: str) -> Version:
        """The version of NAME@7, NAME@live, or NAME: its newest."""
        name, at, which = label.partition("@")
        model = self.model(name)
        if at and not which:
            raise RegistryError(f"{label!r}: expected NAME@VERSION or NAME@ALIAS")
        if which.isdigit():
            return model.version(int(which))
        if which:
            flip = model.aliases.current(which)
            if flip is not None:
                return model.version(flip.version)
        versions = list(model.versions())
        if not versions:
            known = ", ".join(self.models()) or "none"
            raise RegistryError(f"{self.url} has no model {name!r}: it has {known}")
        if which:
            known = ", ".join(model.aliases.names()) or "none"
            raise RegistryError(f"{name} has no alias {which!r}: it has {known}")
        return versions[-1]


class Model:
    """The versions and aliases of one model."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.log = NumberedLog(store, f"{name}/versions")
        self.aliases = Aliases(store, f"{name}/aliases")
        self.blobs = Blobs(store, f"{name}/files")

    def versions(self) -> Iterator[Version]:
        """Every version that was not removed, the oldest first."""
        for number in self.log.numbers():
            found = Version.from_json(self.log.read(number))
            if found.key != REMOVED:
                yield found

    def version(self, number: int) -> Version:
        if number not in self.log.numbers():
            raise RegistryError(f"{self.name} has no version {number}: see `ett publish ls`")
        found = Version.from_json(self.log.read(number))
        if found.key == REMOVED:
            raise RegistryError(f"{found.label} was removed by gc: publish its anchor again")
        return found

    def with_key(self, key: str, *, after: int = 0) -> Version | None:
        """The version that was made of this key, if there is one with a number above `after`."""
        for number in self.log.numbers():
            if number > after:
                found = Version.from_json(self.log.read(number))
                if found.key == key:
                    return found
        return None

    def register(self, draft: Version, files: Mapping[str, Path]) -> Version:
        """The one version of the draft's key: this one, or the one that was there first.

        The draft's number and files are filled in here.
        """
        draft = replace(draft, files=blobs_of(files))
        with self.blobs.using(draft.files.values(), draft.created_s):
            for name, blob in draft.files.items():
                self.blobs.add(blob, files[name])
            with self._no_gc():
                for name, blob in draft.files.items():
                    self.blobs.add(blob, files[name])  # collected between? then once more
                return self._append(draft)

    def _append(self, draft: Version) -> Version:
        looked_at = 0
        while True:
            last = self.log.last()
            found = self.with_key(draft.key, after=looked_at)
            if found is not None:
                return found
            looked_at = last
            numbered = replace(draft, version=last + 1)
            if self.log.create(last + 1, numbered.to_json()):
                return numbered

    def promote(
        self, number: int, alias: str, *, why: str, now_s: float, after: int | None = None
    ) -> Flip:
        """Let the alias name this version, if all its files are there."""
        version = self.version(number)
        problems = self.problems(version)
        if problems:
            raise RegistryError(
                f"{version.label} is not promoted: {'; '.join(problems)}; publish it again"
            )
        return self.aliases.flip(alias, number, why=why, now_s=now_s, after=after)

    def rollback(self, alias: str, *, now_s: float) -> Flip:
        """Let the alias name the version that it named before, as one more entry."""
        history = self.aliases.history(alias)
        if not history:
            raise RegistryError(f"{self.name} has no alias {alias!r} to roll back")
        now = history[-1]
        before = _before(history)
        if before is None:
            raise RegistryError(
                f"{self.name}@{alias} named version {now.version} only: nothing to roll back to"
            )
        return self.promote(before, alias, why="rollback", now_s=now_s, after=now.number)

    def problems(self, version: Version, *, read: bool = False) -> list[str]:
        """What is missing or differs from what was published; `read` compares every byte."""
        with tempfile.TemporaryDirectory(prefix="ett-verify-") as scratch:
            checked = Path(scratch) if read else None
            found = [
                self.blobs.problem(name, blob, checked) for name, blob in version.files.items()
            ]
        return [problem for problem in found if problem is not None]

    def collect(self, *, keep: int, now_s: float, dry_run: bool = False) -> Collected:
        """Remove old versions, and files of no version.

        The last `keep` versions stay, and those that an alias names or could be rolled back to.
        """
        with self._no_gc():
            versions = list(self.versions())
            held = {version.version for version in versions[-keep:]}
            for alias in self.aliases.names():
                history = self.aliases.history(alias)
                before = _before(history)
                held |= {history[-1].version} | ({before} if before else set())
            doomed = [version for version in versions if version.version not in held]
            kept = {
                blob.sha256
                for version in versions
                if dry_run or version not in doomed
                for blob in version.files.values()
            }
            if dry_run:
                return Collected(versions=[version.version for version in doomed], files=[])
            for version in doomed:
                self._remove(version)
            files = self.blobs.collect(kept, now_s)
        return Collected(versions=[version.version for version in doomed], files=files)

    def _remove(self, version: Version) -> None:
        """The number stays taken, so that no later version has it."""
        gone = replace(version, key=REMOVED, files={})
        data = json.dumps(gone.to_json(), indent=1, sort_keys=True).encode()
        self.store.write(self.log.name(version.version), data)

    @contextmanager
    def _no_gc(self) -> Iterator[None]:
        """Between looking whether a file is there and creating its version nothing is collected."""
        with self.store.lease(f"{self.name}/gc", timeout_s=_LEASE_S):
            yield


def _before(history: list[Flip]) -> int | None:
    """The version that the last one took the place of, along rollbacks.

    4, 5, 6, rollback (5 again), rollback (4 again): each one goes further back.
    """
    stack: list[int] = []
    for flip in history:
        if flip.why == "rollback" and len(stack) > 1:
            stack.pop()
        elif not stack or stack[-1] != flip.version:
            stack.append(flip.version)
    return stack[-2] if len(stack) > 1 else None
