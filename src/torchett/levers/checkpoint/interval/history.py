"""What one attempt leaves for the next about its interval: costs seen, failures counted."""

import json
import logging
import time
from typing import Any

from torchett.levers.checkpoint.stored.storage import Storage

log = logging.getLogger("torchett")

NAME = "interval.json"
OF_SNAPSHOTS = "snapshot-interval.json"


class History:
    """A small file beside the checkpoints; rank 0's alone."""

    def __init__(self, storage: Storage, name: str = NAME) -> None:
        self._storage, self._name = storage, name
        self._told = time.monotonic()
        self.has_failed = False  # the attempt before: it did not close

    def elapsed_s(self) -> float:
        """Seconds since the last time this was asked."""
        now = time.monotonic()
        passed, self._told = now - self._told, now
        return passed

    def read(self) -> dict[str, Any] | None:
        """The estimator's state after the attempts before."""
        try:
            with self._storage.read(self._name) as stream:
                said = json.loads(stream.read())
            state: dict[str, Any] = said["state"]
            self.has_failed = not said["clean"]
            return state
        except FileNotFoundError:
            return None
        except Exception as error:
            log.debug("torchett: %s is not used: %s", self._name, error)
            return None

    def write(self, state: dict[str, Any], clean: bool) -> None:
        """Keep the state; `clean` when the attempt ends in good order."""
        try:
            said = json.dumps({"state": state, "clean": clean}).encode()
            self._storage.replace(self._name, said)
        except OSError as error:
            log.debug("torchett: %s was not written: %s", self._name, error)
