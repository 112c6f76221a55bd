"""A publish job: one small file that a trainer drops and any worker can read.

    {"format": "publish-job/1", "id": "dlrm-5f3a81c2…", "name": "dlrm", "alias": "live",
     "anchor": "/mnt/ckpt/run-7/step-00000039", "anchor_sha256": "…",
     "recipe": "/home/me/publishing.py:tiny", "path": ["/home/me"], "registry": "/mnt/registry",
     "training": {"job": "dlrm-train", "run": "/home/me/ett-runs/dlrm-train"}, "dropped_s": …}

The same anchor, recipe, name, alias and registry are one job, however often it is dropped.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torchett.levers.publish.errors import PublishError

FORMAT = "publish-job/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishJob:
    """What is to be published, where from, and where to."""

    name: str
    recipe: str
    anchor: str
    registry: str
    anchor_sha256: str
    alias: str | None = "live"
    path: tuple[str, ...] = ()  # folders that the recipe is imported from
    training: Mapping[str, Any] = field(default_factory=dict)  # the job that was trained
    dropped_s: float = 0.0

    @property
    def id(self) -> str:
        what = [self.name, self.recipe, self.anchor_sha256, self.registry, self.alias]
        return f"{self.name}-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]}"

    def to_bytes(self) -> bytes:
        body = {"format": FORMAT, "id": self.id, **asdict(self)}
        return json.dumps(body, indent=1, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "PublishJob":
        """The job that `to_bytes` wrote."""
        try:
            body = json.loads(data)
            if body.pop("format") != FORMAT:
                raise PublishError(f"{where}: expected format {FORMAT}")
            del body["id"]
            return cls(path=tuple(body.pop("path")), **body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PublishError(f"{where} is no publish job: {error!r}; delete it") from None
