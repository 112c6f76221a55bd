"""A version: what was published, from what, and how well it matches. It never changes.

{"format": "published/1", "name": "dlrm", "version": 7, "key": "5f3a…",
 "files": {"model.pt2": {"sha256": "…", "size": 1709059}, "weights.safetensors": {…}, …},
 "anchor": {…}, "recipe": {…}, "job": {…}, "torch": "2.13.0", "isa": "x86-64-v3",
 "parity": {…}, "timings": {…}, "created_s": …, "sha256": "…of the rest"}
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torchett.levers.publish.errors import RegistryError

FORMAT = "published/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A file of a version: its bytes lie in the registry under their own hash."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One published version of a model; `removed` ones keep their number and nothing else."""

    name: str
    version: int
    key: str
    files: Mapping[str, Blob]
    created_s: float
    anchor: Mapping[str, Any] = field(default_factory=dict)  # path, step, sha256 of its manifest
    recipe: Mapping[str, Any] = field(default_factory=dict)  # target and hash
    job: Mapping[str, Any] = field(default_factory=dict)  # the training job that it comes from
    torch: str = ""
    isa: str = ""
    parity: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds by step
    host: str = ""

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(blob.size for blob in self.files.values())

    def to_json(self) -> dict[str, Any]:
        """The manifest as it lies in the registry, with a hash over itself."""
        body = {"format": FORMAT, **asdict(self)}
        return {**body, "sha256": _hash(body)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Version":
        """The version that `to_json` wrote; RegistryError if one letter is another."""
        body = dict(found)
        try:
            told = body.pop("sha256")
            if body["format"] != FORMAT:
                raise RegistryError(f"expected format {FORMAT}, found {body['format']!r}")
            if told != _hash(body):
                raise RegistryError(
                    f"the manifest of {body['name']}@{body['version']} does not match its own hash"
                    ": it was changed after it was published; roll back, then gc it"
                )
            del body["format"]
            files = {name: Blob(**blob) for name, blob in body.pop("files").items()}
            return cls(files=files, **body)
        except (KeyError, TypeError, AttributeError) as error:
            raise RegistryError(f"a version's manifest is not whole: {error!r}") from None


def version_key(anchor_sha256: str, recipe_hash: str, torch_version: str, isa: str) -> str:
    """What one version is made of: the same four things are published once only."""
    return _hash([FORMAT, anchor_sha256, recipe_hash, torch_version, isa])


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
