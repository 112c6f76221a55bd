"""What one attempt leaves for the next about its interval: costs seen, failures counted."""

import json
import logging
import time
from typing import Any

from torchett.checkpoint.interval import AutoInterval
from torchett.checkpoint.storage import Storage

log = logging.getLogger("torchett")

NAME = "interval.json"


class History:
    """A small file beside the checkpoints; rank 0's alone."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._told = time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds since the last time this was asked."""
        now = time.monotonic()
        passed, self._told = now - self._told, now
        return passed

    def read(self) -> dict[str, Any] | None:
        """The estimator's state after the attempts before; one that did not close has failed."""
        try:
            with self._storage.read(NAME) as stream:
                said = json.loads(stream.read())
            state: dict[str, Any] = said["state"]
            if not said["clean"]:
                known = AutoInterval(state=state)
                known.observe_failure(0.0, 1)
                state = known.to_json()
            return state
        except FileNotFoundError:
            return None
        except Exception as error:
            log.debug("torchett: %s is not used: %s", NAME, error)
            return None

    def write(self, state: dict[str, Any], clean: bool) -> None:
        """Keep the state; `clean` when the attempt ends in good order."""
        try:
            said = json.dumps({"state": state, "clean": clean}).encode()
            self._storage.replace(NAME, said)
        except OSError as error:
            log.debug("torchett: %s was not written: %s", NAME, error)
