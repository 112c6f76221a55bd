"""The files of all versions, each under the hash of its bytes: what two versions share lies once.

A publisher says first what it is about to use (`uses/TOKEN.json`), so that `collect` leaves it.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchett.levers.publish.errors import RegistryError
from torchett.levers.publish.registry.version import Blob
from torchett.store import Store

_CHUNK = 8 << 20
_HASH = re.compile(r"[0-9a-f]{64}")
_USE_S = 24 * 3600.0  # a publisher that said so longer ago is taken for dead


@dataclass(frozen=True, slots=True)
class Blobs:
    """The files of one model's versions."""

    store: Store
    folder: str

    @contextmanager
    def using(self, blobs: Iterable[Blob], now_s: float) -> Iterator[None]:
        """While the body runs, nothing of this is collected."""
        name = f"{self.folder}/uses/{uuid.uuid4().hex}.json"
        hashes = [blob.sha256 for blob in blobs]
        self.store.write(name, json.dumps({"at_s": now_s, "hashes": hashes}).encode())
        try:
            yield
        finally:
            self.store.delete(name)

    def add(self, blob: Blob, path: Path) -> bool:
        """Whether the file had to be copied: it is not where the same bytes lie already."""
        if self.store.size(self._name(blob)) == blob.size:
            return False
        self.store.write_file(self._name(blob), path)
        if (size := self.store.size(self._name(blob))) != blob.size:
            raise RegistryError(
                f"{self.store.url} took {size} of the {blob.size} bytes of {path.name}: "
                "is there room left?"
            )
        return True

    def fetch(self, blob: Blob, path: Path) -> None:
        """Write the file's bytes to `path`; RegistryError if they are not what was published."""
        try:
            self.store.read_file(self._name(blob), path)
        except FileNotFoundError:
            raise RegistryError(f"{self.store.url}/{self._name(blob)} is missing") from None
        if blob_of(path) != blob:
            path.unlink()
            raise RegistryError(f"{self.store.url}/{self._name(blob)} is damaged: its hash differs")

    def problem(self, name: str, blob: Blob, scratch: Path | None) -> str | None:
        """What is wrong with a file: its size, and with a scratch folder also its hash."""
        size = self.store.size(self._name(blob))
        if size is None:
            return f"{name} is missing"
        if size != blob.size:
            return f"{name} has {size} bytes, {blob.size} were published"
        if scratch is not None:
            try:
                self.fetch(blob, scratch / "checked")
                (scratch / "checked").unlink()
            except RegistryError:
                return f"{name} has other bytes than were published"
        return None

    def collect(self, keep: Collection[str], now_s: float) -> list[str]:
        """Hashes of the files that no version and no publisher at work uses, now deleted."""
        used = set(keep)
        for name in self.store.names(f"{self.folder}/uses"):
            try:
                found = json.loads(self.store.read(name, limit=4 << 20))
            except FileNotFoundError:
                continue  # it is done
            if now_s - found["at_s"] < _USE_S:
                used.update(found["hashes"])
            else:
                self.store.delete(name)
        gone = []
        for name in self.store.names(f"{self.folder}/sha256"):
            hashed = name.rsplit("/", 1)[-1]
            if _HASH.fullmatch(hashed) and hashed not in used:
                self.store.delete(name)
                gone.append(hashed)
        return gone

    def _name(self, blob: Blob) -> str:
        return f"{self.folder}/sha256/{blob.sha256}"


def blob_of(path: Path) -> Blob:
    """Hash and size of a local file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Blob(sha256=digest, size=file.tell())


def blobs_of(files: Mapping[str, Path]) -> dict[str, Blob]:
    return {name: blob_of(path) for name, path in sorted(files.items())}
