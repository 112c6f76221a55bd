"""`ett run --ship URL`: a process of its own sends the run while attempts run.

What that needs is imported only where a server is named.
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_LAST_S = 10.0  # for what is left when the job is over


class Shipping:
    """Sends a run; no-op if no server is configured."""

    def __init__(self, url: str | None, run: Path, node: int, env: Mapping[str, str]) -> None:
        """InputError where the URL or its token is none."""
        self._url, self._run, self._node, self._env = url, run, node, env
        self._process: subprocess.Popen[bytes] | None = None
        if url:
            from torchett.ship.client import Server

            Server.of(url, env)

    def begin(self) -> None:
        """An attempt begins."""
        if self._url:
            from torchett.ship.process import start

            self._process = start(self._run, self._url, self._node, self._env)

    def pause(self) -> None:
        """The attempt is over: end the process, so that leftovers can be killed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def finish(self) -> None:
        """Send what is left, and print what could not be sent."""
        if self._url and (said := self._flush(self._url)):
            try:
                print(f"ett: {said}", file=sys.stderr, flush=True)
            except OSError:
                pass

    def _flush(self, url: str) -> str | None:
        from torchett.ship.backlog import Backlog
        from torchett.ship.client import RefusedError, Server, Shipper

        server = Server.of(url, self._env)
        shipper = Shipper(Backlog(self._run, self._node), server, timeout_s=_LAST_S / 2)
        try:
            sent = shipper.flush(_LAST_S)
        except RefusedError as error:
            return f"not shipped: {error}"
        finally:
            shipper.close()
        return None if sent else f"not all of it is on {server}: ett ship {self._run} {url}"
