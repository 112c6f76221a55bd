"""An archive: the results of compiles in one file, which is verified before it is used.

    ETTCACHE/1\\n
    length, manifest    JSON: environment, entries (kind, name, sizes, sha256), payload's sha256
    length, seal        JSON: algorithm, key name, HMAC of all the bytes above
    payload             the entries, each compressed on its own, one after the other

Checks are made in this order: lengths, seal, the manifest's values, the names of all entries, the
payload's sha256, then the size and sha256 of each entry. No part is used before the check of the
part above it. An entry cannot name a file outside the cache folder, nor unpack to more than its
declared size.
"""

import hashlib
import json
import re
import struct
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from torchett.levers.compile.cache.signing import ALGORITHM, HOW, Key
from torchett.model.errors import EttError

MAGIC = b"ETTCACHE/1\n"
MOST_BYTES = 512 << 20
MOST_RAW = 1 << 30
_MOST_MANIFEST = 16 << 20
_MOST_ENTRIES = 20_000
_LENGTH = struct.Struct(">I")

_HASH = r"[a-z0-9]{16,128}"
NAMES = {
    "inductor": re.compile(_HASH),
    "aot_autograd": re.compile(_HASH),
    "autotune": re.compile(rf"[a-z0-9]{{2}}/{_HASH}\.best_config"),
    "pgo": re.compile(r"[^\x00-\x1f\x7f]{1,300}"),
    "file": re.compile(
        rf"[a-z0-9]{{2}}/c{_HASH}(\.main|\.kernel)?\.so"
        r"|cache/[0-9a-f]{64}"
        r"|triton/\d{1,3}/[A-Za-z0-9_-]{16,128}/([A-Za-z0-9_]{1,200}\.autotune\.json"
        r"|(__triton_launcher|cuda_utils|hip_utils)(\.[A-Za-z0-9_-]{1,80})?\.so)"
        r"|ett-pins/[A-Za-z0-9_-][A-Za-z0-9._-]{0,150}\.json"
    ),
}
# Torch stores several of these under one name, because one may not cover all shapes.
MANY = ("inductor", "aot_autograd")


Identity = tuple[str, str, str]  # kind, name, sha256


class RefusedError(EttError):
    """An archive is refused; the message says why."""


class StrangeKeyError(RefusedError):
    """An archive is signed with another key; `seen` is the message without the advice."""

    def __init__(self, seen: str) -> None:
        super().__init__(f"{seen}: {HOW}")
        self.seen = seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry: a cache artifact of torch, or a file of the cache folder."""

    kind: str
    name: str
    size: int
    sha256: str
    stored: bytes = field(repr=False)
    used_s: int = 0  # when a job last used it

    @property
    def identity(self) -> Identity:
        return (self.kind, self.name, self.sha256)

    def data(self) -> bytes:
        """The bytes as torch wrote them."""
        unpacker = zlib.decompressobj()
        try:
            data = unpacker.decompress(self.stored, self.size + 1)
        except zlib.error as error:
            raise RefusedError(f"entry {self.name!r} cannot be unpacked: {error}") from None
        if len(data) != self.size or not unpacker.eof or unpacker.unused_data:
            raise RefusedError(f"entry {self.name!r} is not the {self.size} bytes it says it is")
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise RefusedError(f"entry {self.name!r} does not match its sha256")
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """Entries, and the environment in which they were made."""

    environment: Mapping[str, str]
    entries: Sequence[Entry]
    made_s: int
    made_by: str | None = None  # the name of the key it was sealed with

    @property
    def raw_bytes(self) -> int:
        return sum(entry.size for entry in self.entries)


def entry(kind: str, name: str, data: bytes, used_s: int = 0) -> Entry:
    """An entry of these bytes; its name is checked as by a reader."""
    _check_name(kind, name)
    digest = hashlib.sha256(data).hexdigest()
    stored = zlib.compress(data, 6)
    return Entry(kind=kind, name=name, size=len(data), sha256=digest, stored=stored, used_s=used_s)


def identity_of(kind: str, name: str, data: bytes) -> Identity:
    """The identity an entry of these bytes has."""
    return (kind, name, hashlib.sha256(data).hexdigest())


def pack(environment: Mapping[str, str], entries: Iterable[Entry], key: Key | None) -> bytes:
    """The archive as bytes, sealed if there is a key."""
    ordered = sorted(entries, key=lambda one: one.identity)
    payload = b"".join(one.stored for one in ordered)
    manifest = {
        "format": 1,
        "made_s": int(time.time()),
        "environment": dict(environment),
        "payload": {"size": len(payload), "sha256": hashlib.sha256(payload).hexdigest()},
        "entries": [
            [one.kind, one.name, one.size, len(one.stored), one.sha256, one.used_s]
            for one in ordered
        ],
    }
    words = json.dumps(manifest, separators=(",", ":")).encode()
    above = MAGIC + _LENGTH.pack(len(words)) + words
    seal = {} if key is None else {"by": ALGORITHM, "key": key.name, "seal": key.seal(above)}
    sealed = json.dumps(seal).encode()
    return above + _LENGTH.pack(len(sealed)) + sealed + payload


def identity(data: bytes) -> str:
    """The name of an archive: a hash of its content."""
    return hashlib.sha256(data).hexdigest()[:32]


def contents(archive: Archive) -> list[tuple[Entry, bytes]]:
    """The entries with their bytes; all are checked before the first is returned."""
    # zlib and sha256 release the GIL, so threads help.
    with ThreadPoolExecutor(4) as pool:
        return list(zip(archive.entries, pool.map(Entry.data, archive.entries), strict=True))


def unpack(data: bytes, key: Key | None) -> Archive:
    """The archive in these bytes; `RefusedError` if it is not valid."""
    if not data.startswith(MAGIC):
        raise RefusedError(f"not an archive of ours: expected {MAGIC!r}, found {data[:16]!r}")
    if len(data) > MOST_BYTES:
        raise RefusedError(f"{len(data)} bytes, expected at most {MOST_BYTES}")
    words, at = _block(data, len(MAGIC), _MOST_MANIFEST)
    sealed, payload_at = _block(data, at, 4096)
    made_by = _check_seal(sealed, data[:at], key)
    manifest = _json(words)
    if manifest.get("format") != 1:
        raise RefusedError(f"format {manifest.get('format')!r}, expected 1")
    try:
        environment = {str(k): str(v) for k, v in manifest["environment"].items()}
        made_s, about = int(manifest["made_s"]), manifest["payload"]
        rows = [_Row(*row) for row in manifest["entries"]]
        size, digest = int(about["size"]), str(about["sha256"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RefusedError(f"its manifest is not one: {error!r}") from None
    _check_rows(rows)
    payload = memoryview(data)[payload_at:]
    if len(payload) != size or sum(row.stored for row in rows) != size:
        raise RefusedError(f"truncated: {len(payload)} bytes of entries, expected {size}")
    if hashlib.sha256(payload).hexdigest() != digest:
        raise RefusedError("damaged: its entries do not match their sha256")
    entries, at = [], 0
    for row in rows:
        stored = bytes(payload[at : at + row.stored])
        at += row.stored
        entries.append(
            Entry(
                kind=row.kind,
                name=row.name,
                size=row.size,
                sha256=row.sha256,
                stored=stored,
                used_s=row.used_s,
            )
        )
    return Archive(environment=environment, entries=entries, made_s=made_s, made_by=made_by)


@dataclass(frozen=True, slots=True)
class _Row:
    kind: str
    name: str
    size: int
    stored: int
    sha256: str
    used_s: int


def _block(data: bytes, at: int, most: int) -> tuple[bytes, int]:
    """The length-prefixed bytes at this position, and the position of their end."""
    if len(data) < at + _LENGTH.size:
        raise RefusedError(f"truncated: it ends after {len(data)} bytes, inside its manifest")
    (length,) = _LENGTH.unpack_from(data, at)
    begin = at + _LENGTH.size
    if length > most:
        raise RefusedError(f"a manifest of {length} bytes, expected at most {most}")
    if len(data) < begin + length:
        raise RefusedError(f"truncated: it ends after {len(data)} bytes, inside its manifest")
    return data[begin : begin + length], begin + length


def _check_seal(sealed: bytes, message: bytes, key: Key | None) -> str:
    seal = _json(sealed)
    if not seal:
        raise RefusedError(f"not signed: {HOW}, and publish it again")
    if seal.get("by") != ALGORITHM:
        raise RefusedError(f"signed by {seal.get('by')!r}, expected {ALGORITHM}")
    if key is None:
        raise StrangeKeyError(
            f"signed with key {seal.get('key')!r}, and there is no key to check it with"
        )
    if seal.get("key") != key.name:
        raise StrangeKeyError(f"signed with key {seal.get('key')!r}, ours is {key.name!r}")
    if not key.made(str(seal.get("seal")), message):
        raise RefusedError("forged or damaged: its seal does not match its manifest")
    return key.name


def _json(words: bytes) -> dict[str, Any]:
    try:
        found = json.loads(words)
    except (ValueError, RecursionError):
        raise RefusedError("damaged: its manifest is not JSON") from None
    if not isinstance(found, dict):
        raise RefusedError("damaged: its manifest is not an object")
    return found


def _check_rows(rows: Sequence[_Row]) -> None:
    if len(rows) > _MOST_ENTRIES:
        raise RefusedError(f"{len(rows)} entries, expected at most {_MOST_ENTRIES}")
    total = 0
    for row in rows:
        numbers = (row.size, row.stored, row.used_s)
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise RefusedError(f"entry {row.name!r} has impossible sizes {numbers}")
        if not isinstance(row.sha256, str):
            raise RefusedError(f"entry {row.name!r} has no sha256")
        _check_name(row.kind, row.name)
        total += row.size
    if total > MOST_RAW:
        raise RefusedError(f"it would unpack to {total} bytes, expected at most {MOST_RAW}")


def _check_name(kind: str, name: str) -> None:
    allowed = NAMES.get(kind) if isinstance(kind, str) else None
    if allowed is None:
        raise RefusedError(f"an entry of kind {kind!r}, expected one of {', '.join(NAMES)}")
    if not isinstance(name, str) or not allowed.fullmatch(name):
        raise RefusedError(f"an entry of kind {kind} named {name!r}: not a name torch gives to one")


def merge(sides: Iterable[Sequence[Entry]]) -> list[Entry]:
    """All entries of all sides.

    If an entry has two versions, the later side's is used. Graphs keep all versions, because each
    may be for other shapes.
    """
    found: dict[tuple[str, ...], Entry] = {}
    for side in sides:
        for one in side:
            name = one.identity if one.kind in MANY else one.identity[:2]
            before = found.get(name)
            used_s = max(one.used_s, before.used_s) if before else one.used_s
            found[name] = replace(one, used_s=used_s)
    return list(found.values())


def within(entries: Sequence[Entry], most_raw: int) -> list[Entry]:
    """The entries used last that fit into this many bytes."""
    kept, total = [], 0
    for one in sorted(entries, key=lambda one: (-one.used_s, one.size)):
        total += one.size
        if total > most_raw:
            break
        kept.append(one)
    return kept
