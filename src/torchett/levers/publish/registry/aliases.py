"""Aliases: which version is live, and which one was live when.

    aliases/live/00000001.json   {"version": 6, "at_s": …, "why": "published", "by": "host"}
    aliases/live/00000002.json   {"version": 7, …}
    aliases/live/00000003.json   {"version": 6, "why": "rollback"}          ← live now

An alias is the last entry of its log. One created file moves it: readers see the old version or the
new one, and no entry is ever changed, so the history is whole.
"""

import re
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from torchett.levers.publish.errors import RegistryError
from torchett.levers.publish.registry.numbered_log import NumberedLog
from torchett.store import Store

_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """An alias came to name a version."""

    alias: str
    number: int  # its place in the alias's history
    version: int
    at_s: float
    why: str
    by: str


def checked_alias(alias: str) -> str:
    if not _ALIAS.fullmatch(alias):
        raise RegistryError(f"alias {alias!r}: expected letters, digits, - and _, a letter first")
    return alias


@dataclass(frozen=True, slots=True)
class Aliases:
    """The aliases of one model."""

    store: Store
    folder: str

    def names(self) -> list[str]:
        depth = self.folder.count("/") + 1
        return sorted({name.split("/")[depth] for name in self.store.names(self.folder)})

    def history(self, alias: str) -> list[Flip]:
        """Every entry of an alias, the first one first."""
        log = self._log(alias)
        return [self._flip(alias, number, log) for number in log.numbers()]

    def current(self, alias: str) -> Flip | None:
        """What an alias names now."""
        log = self._log(alias)
        number = log.last()
        return self._flip(alias, number, log) if number else None

    def live(self, at_s: float | None = None) -> Iterator[Flip]:
        """What each alias names now, or named at that time."""
        for alias in self.names():
            if at_s is None:
                found = self.current(alias)
            else:
                found = next(
                    (flip for flip in reversed(self.history(alias)) if flip.at_s <= at_s), None
                )
            if found is not None:
                yield found

    def flip(self, alias: str, version: int, *, why: str, now_s: float, after: int | None) -> Flip:
        """Let the alias name a version, after entry `after` (None: whatever is last).

        RegistryError if another entry came in between. Times never go back in a history, whatever
        the clock of this host says.
        """
        log = self._log(alias)
        while True:
            last = log.last()
            if after is not None and last != after:
                raise RegistryError(f"alias {alias} moved meanwhile: see `ett publish ls`")
            at_s = max(now_s, log.read(last)["at_s"]) if last else now_s
            flip = Flip(
                alias=alias,
                number=last + 1,
                version=version,
                at_s=at_s,
                why=why,
                by=socket.gethostname(),
            )
            entry = asdict(flip)
            del entry["alias"], entry["number"]  # its place says so
            if log.create(flip.number, entry):
                return flip

    def _log(self, alias: str) -> NumberedLog:
        return NumberedLog(self.store, f"{self.folder}/{checked_alias(alias)}")

    def _flip(self, alias: str, number: int, log: NumberedLog) -> Flip:
        entry = log.read(number)
        try:
            return Flip(
                alias=alias,
                number=number,
                version=int(entry["version"]),
                at_s=float(entry["at_s"]),
                why=str(entry["why"]),
                by=str(entry["by"]),
            )
        except (KeyError, TypeError, ValueError):
            raise RegistryError(f"entry {number} of alias {alias} is damaged") from None
