"""The library: archives in a store, one for each environment.

    KEY/head.json        the name of the archive to use, and a summary for listings
    KEY/ID.ett           that archive; ID is the hash of its bytes, so it never changes

A reader reads the head, then the archive. A writer takes the lease, merges old and new entries,
writes the archive, then the head, then deletes archives that the head no longer names. A writer
that dies leaves at most an archive without a head; `gc` deletes it.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchett.levers.compile.cache.archive import (
    MANY,
    MOST_BYTES,
    Archive,
    Entry,
    Identity,
    RefusedError,
    identity,
    merge,
    pack,
    unpack,
    within,
)
from torchett.levers.compile.cache.environment import MUST, Environment, nearness, stale
from torchett.levers.compile.cache.signing import HOW, Key
from torchett.model.errors import InputError
from torchett.store import BusyError, Store, StoreError

MOST_KEPT_RAW = 512 << 20  # above this size, the entries used longest ago are dropped
_HEAD_BYTES = 64 << 10
_HEADS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A summary of an archive; it is not signed, so it is only a hint."""

    key: str
    archive: str
    size: int
    entries: int
    made_s: int
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An archive for an environment: the exact one, or the nearest."""

    head: Head
    archive: Archive
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """What a job adds to the library.

    `entries` are new. `known` holds the names of graphs that the job had but could not use for its
    shapes, so new graphs of these names are added to the old ones. `used` are all entries that the
    job used.
    """

    entries: Sequence[Entry]
    known: Collection[tuple[str, str]] = field(default_factory=frozenset)
    used: Collection[Identity] = field(default_factory=frozenset)


class Library:
    """Archives in a store, checked with a key."""

    def __init__(self, store: Store, key: Key | None) -> None:
        self.store = store
        self.key = key

    def heads(self, family: str = "") -> list[Head]:
        """The heads of one family of environments, or of all; newest first."""
        found = []
        for name in self.store.names():
            key, slash, last = name.partition("/")
            if slash and last == "head.json" and key.startswith(family):
                head = self.head(key)
                if head is not None:
                    found.append(head)
                if len(found) == _HEADS:
                    break
        return sorted(found, key=lambda head: -head.made_s)

    def head(self, key: str) -> Head | None:
        """The head for a key; None if there is no readable one."""
        try:
            words = json.loads(self.store.read(f"{key}/head.json", limit=_HEAD_BYTES))
            return Head(
                key=key,
                archive=str(words["archive"]),
                size=int(words["size"]),
                entries=int(words["entries"]),
                made_s=int(words["made_s"]),
                environment={str(k): str(v) for k, v in words["environment"].items()},
            )
        except (FileNotFoundError, StoreError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def nearest(self, ours: Environment) -> tuple[Head, bool] | None:
        """The head of the exact archive and True, else that of the nearest usable one and False."""
        exact = self.head(ours.key)
        if exact is not None:
            return exact, True
        near = [head for head in self.heads(ours.family) if nearness(ours, head.environment) > 0]
        if not near:
            return None
        return max(near, key=lambda head: (nearness(ours, head.environment), head.made_s)), False

    def bytes_of(self, head: Head) -> bytes:
        """The bytes of the archive in the store."""
        return self.store.read(f"{head.key}/{head.archive}.ett", limit=MOST_BYTES)

    def open(self, head: Head) -> Archive:
        """The archive of a head, verified; `RefusedError` if it is not valid."""
        return unpack(self.bytes_of(head), self.key)

    def find(self, ours: Environment, head: Head) -> Archive:
        """The archive of a head; `RefusedError` if it is not usable in our environment."""
        archive = self.open(head)
        reason = stale(ours, archive.environment)
        if reason is not None:
            raise RefusedError(reason)
        return archive

    def publish(
        self, ours: Mapping[str, str], key: str, added: Addition, *, timeout_s: float = 60.0
    ) -> tuple[str | None, str]:
        """Add entries: the name of the new archive, or None if it did not change; and why."""
        if self.key is None:
            raise RefusedError(f"{self.store.url} can be written to by others: {HOW}")
        with self.store.lease(key, timeout_s=timeout_s):
            before = self.head(key)
            kept = self._entries(before)
            merged = within(_grown(kept, added), MOST_KEPT_RAW)
            if {one.identity for one in merged} == {one.identity for one in kept}:
                return None, "nothing new"
            data = pack(ours, merged, self.key)
            if len(data) > MOST_BYTES:
                return None, f"too large: {len(data)} bytes, at most {MOST_BYTES}"
            return self.put(key, ours, data, len(merged)), "published"

    def put(self, key: str, words: Mapping[str, str], data: bytes, entries: int) -> str:
        """Set the archive for a key; the caller holds the lease."""
        name = identity(data)
        head = {
            "archive": name,
            "size": len(data),
            "entries": entries,
            "made_s": int(time.time()),
            "environment": dict(words),
        }
        self.store.write(f"{key}/{name}.ett", data)
        self.store.write(f"{key}/head.json", json.dumps(head).encode())
        for other in self.store.names(key):
            if other.endswith(".ett") and other != f"{key}/{name}.ett":
                self.store.delete(other)
        return name

    def gc(self, *, older_than_s: float, now_s: float) -> list[str]:
        """Delete archives that are older than this, and those that no head names."""
        gone = []
        for key in sorted({name.partition("/")[0] for name in self.store.names() if "/" in name}):
            try:
                with self.store.lease(key, timeout_s=1.0):
                    gone += self._gc(key, older_than_s, now_s)
            except BusyError:
                continue  # another process is writing it: it is in use
        return gone

    def _gc(self, key: str, older_than_s: float, now_s: float) -> list[str]:
        head = self.head(key)
        old = head is not None and now_s - head.made_s > older_than_s
        gone = []
        for name in self.store.names(key):
            named = head is not None and name in (f"{key}/{head.archive}.ett", f"{key}/head.json")
            if old or not named:
                self.store.delete(name)
                gone.append(name)
        return gone

    def _entries(self, head: Head | None) -> Sequence[Entry]:
        """The entries of the present archive; none if it cannot be read or verified."""
        if head is None:
            return ()
        try:
            return self.open(head).entries
        except (RefusedError, StoreError, FileNotFoundError):
            return ()


def _grown(kept: Sequence[Entry], added: Addition) -> list[Entry]:
    """The old entries with the new ones.

    A graph or a library that two jobs compiled at the same time is stored once: the bytes differ,
    but both work. Newer timings, pins and profiles replace older ones.
    """
    now = max((one.used_s for one in added.entries), default=0)
    touched = [replace(one, used_s=now) if one.identity in added.used else one for one in kept]
    there = {one.identity[:2] for one in kept}
    new = [
        one
        for one in added.entries
        if one.identity[:2] not in there
        or (one.kind in MANY and one.identity[:2] in added.known)
        or not (one.kind in MANY or one.name.endswith(".so"))
    ]
    return merge((touched, new))


def environment_of(words: Mapping[str, str]) -> Environment:
    """The environment in an archive's manifest."""
    try:
        return Environment(**{name: words[name] for name in Environment.__dataclass_fields__})
    except KeyError as error:
        raise InputError(f"an archive without the word {error} in its environment") from None


__all__ = ["MUST", "Addition", "Found", "Head", "Library", "environment_of"]
