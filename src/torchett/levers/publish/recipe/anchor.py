"""The anchor: the checkpoint that a version is made from.

Only a checkpoint that torchett wrote can be one: its manifest says what bytes it has.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchett.levers.publish.errors import PublishError
from torchett.store import StoreError, open_store

_STEP = re.compile(r"step-\d{8,}(?:\.\d+|-[0-9a-f]+)?")
_LIMIT = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A whole checkpoint, by its manifest."""

    path: str
    step: int
    world_size: int
    sha256: str  # of the manifest, which holds the sums of all files

    def told(self) -> Mapping[str, Any]:
        """What a version says of its anchor."""
        return {
            "path": self.path,
            "step": self.step,
            "ranks": self.world_size,
            "sha256": self.sha256,
        }


def find_anchor(where: str) -> Anchor:
    """The checkpoint at this path or address; of a folder of checkpoints, the newest."""
    where = where.rstrip("/")
    try:
        store = open_store(where)
    except StoreError as error:
        raise PublishError(f"anchor {error}") from None
    if store.size("manifest.json") is not None:
        return _anchor(where, store.read("manifest.json", limit=_LIMIT))
    manifests = [name for name in store.names() if name.endswith("/manifest.json")]
    steps = [name.split("/")[0] for name in manifests if _STEP.fullmatch(name.split("/")[0])]
    if not steps:
        raise PublishError(
            f"anchor {where}: no checkpoint there: expected the path of one, such as "
            "checkpoints/run-7/step-00000039, written by ett.Checkpointer"
        )
    newest = max(steps, key=lambda name: (int(name[5:].split(".")[0].split("-")[0]), name))
    return _anchor(f"{where}/{newest}", store.read(f"{newest}/manifest.json", limit=_LIMIT))


def _anchor(path: str, manifest: bytes) -> Anchor:
    try:
        told = json.loads(manifest)
        step, ranks = int(told["step"]), int(told["world_size"])
    except (ValueError, KeyError, TypeError) as error:
        raise PublishError(
            f"anchor {path} is corrupt: manifest.json: {error}; take an older one"
        ) from None
    digest = hashlib.sha256(manifest).hexdigest()
    return Anchor(path=path, step=step, world_size=ranks, sha256=digest)
