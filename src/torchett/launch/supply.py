"""Ranks that know their model where such a standby is ready, else forks of a template.

    template   ─┬─ ranks ── ✗ ─┬─ ranks ─────────── ✗    at first, and where a kill comes early
    standbys                       ▒▒▒▒ compile ──┴─ ranks ──

A standby imports by itself and compiles one rank's model, some ten seconds of a core while the
ranks train; a template has imported, and can be forked at once.
"""

import subprocess
from collections.abc import Mapping, Sequence

from torchett.launch.forks import Adopted, Forks
from torchett.launch.standbys import Standbys


class Supply:
    """Both, for several ranks; the interface is that of `Standbys`."""

    def __init__(self, forks: Forks, standbys: Standbys) -> None:
        self._forks, self._standbys = forks, standbys

    @property
    def most_bytes(self) -> int:
        return self._forks.most_bytes + self._standbys.most_bytes

    def fill(self, spare: bool = False) -> None:
        """See to it that there is a template; standbys come when there is time."""
        self._forks.fill(spare)
        if spare:
            self._standbys.fill(spare)

    def take(
        self, argv: Sequence[str], env: Mapping[str, str], stdout: str | None, stderr: str | None
    ) -> "Adopted | subprocess.Popen[bytes] | None":
        """A rank that now runs `python argv…` with this environment; None if none could be had."""
        job = (argv, env, stdout, stderr)
        ready = self._standbys.take(*job, if_cooked=True)
        return ready or self._forks.take(*job) or self._standbys.take(*job)

    def weigh(self) -> None:
        self._forks.weigh()
        self._standbys.weigh()

    def close(self) -> None:
        self._forks.close()
        self._standbys.close()
