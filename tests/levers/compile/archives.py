"""Shared by tests of archives: a key, an environment, entries, and forged archives."""

import hashlib
import json
import struct
import zlib
from typing import Any

from torchett.levers.compile.cache.archive import MAGIC, Entry, entry
from torchett.levers.compile.cache.environment import Environment
from torchett.levers.compile.cache.signing import Key

KEY = Key(secret=b"a secret of thirty-two characters")
OTHER_KEY = Key(secret=b"another secret of more than thirty-two characters")
ENVIRONMENT = Environment(
    torch="2.13.0 abc",
    python="cpython 3.11",
    triton="",
    cuda="",
    gpu="",
    machine="x86_64",
    isa="AVX512",
    threads="2",
    settings="0123",
    workload="gpt/train.py",
)
WORDS = ENVIRONMENT.words()


def graph(letter: str, data: bytes = b"graph") -> Entry:
    return entry("inductor", letter * 52, data)


def library_file(letter: str, data: bytes = b"\x7fELF") -> Entry:
    return entry("file", f"{letter * 2}/c{letter * 51}.main.so", data)


def forged(
    rows: list[list[Any]], payload: bytes, key: Key | None = KEY, /, **changes: Any
) -> bytes:
    """An archive with any content, sealed if there is a key."""
    manifest: dict[str, Any] = {
        "format": 1,
        "made_s": 1,
        "environment": WORDS,
        "payload": {"size": len(payload), "sha256": hashlib.sha256(payload).hexdigest()},
        "entries": rows,
    } | changes
    words = json.dumps(manifest).encode()
    above = MAGIC + struct.pack(">I", len(words)) + words
    seal = {"by": "hmac-sha256", "key": key.name, "seal": key.seal(above)} if key else {}
    sealed = json.dumps(seal).encode()
    return above + struct.pack(">I", len(sealed)) + sealed + payload


def row(kind: str, name: str, data: bytes, size: int | None = None) -> tuple[list[Any], bytes]:
    """A manifest's row for these bytes, and the bytes as stored."""
    stored = zlib.compress(data)
    digest = hashlib.sha256(data).hexdigest()
    return [kind, name, len(data) if size is None else size, len(stored), digest, 0], stored
