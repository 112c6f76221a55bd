"""A log of numbered entries in a store, each of which is created once and never changes.

    versions/00000001.json   versions/00000002.json   versions/00000003.json
                                                      ▲ of two that append at once, one gets 3;
                                                        the other looks again before it tries 4

This is all that versions, aliases and claims need of a store: no lock that outlives its holder.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchett.levers.publish.errors import RegistryError
from torchett.store import Store

_LIMIT = 4 << 20


@dataclass(frozen=True, slots=True)
class NumberedLog:
    """The entries under one folder of a store, numbered from 1 without a gap."""

    store: Store
    folder: str

    def numbers(self) -> list[int]:
        """Every number there is, in order."""
        names = [name.rsplit("/", 1)[-1] for name in self.store.names(self.folder)]
        stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def last(self) -> int:
        """The highest number; 0 if there is none."""
        return max(self.numbers(), default=0)

    def read(self, number: int) -> dict[str, Any]:
        """What an entry says."""
        try:
            found = json.loads(self.store.read(self.name(number), limit=_LIMIT))
        except FileNotFoundError:
            raise RegistryError(
                f"{self.store.url}/{self.folder} has no entry {number}: expected 1 to {self.last()}"
            ) from None
        except ValueError as error:
            raise RegistryError(
                f"{self.store.url}/{self.name(number)} is damaged: {error}"
            ) from None
        if not isinstance(found, dict):
            raise RegistryError(f"{self.store.url}/{self.name(number)}: expected a JSON object")
        return found

    def create(self, number: int, entry: Mapping[str, Any]) -> bool:
        """Whether this is now the entry of that number; False if another was there first."""
        data = json.dumps(entry, indent=1, sort_keys=True).encode()
        return self.store.create(self.name(number), data)

    def name(self, number: int) -> str:
        return f"{self.folder}/{number:08d}.json"
