"""What makes keepers those of one job: a name beside the checkpoints, and a secret they share.

A folder that was emptied has no name in it, so what an earlier job left in memory is not restored.
The secret is handed from keeper to trainer on a node, and among the trainers of a job.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass

from torchett.levers.checkpoint.stored.storage import Storage

log = logging.getLogger("torchett")

NAME = "snapshots.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """The name of the job, and what its keepers know of each other by."""

    job: str
    secret: bytes


def known_job(storage: Storage) -> str | None:
    """The job that has saved to this place last, if its snapshots may be restored."""
    try:
        with storage.read(NAME) as stream:
            return str(json.loads(stream.read())["job"])
    except FileNotFoundError:
        return None
    except Exception as error:
        log.debug("torchett: %s is not used: %s", NAME, error)
        return None


def agreed_key(storage: Storage, secrets: Iterable[bytes]) -> JobKey:
    """On rank 0: the key of the job that goes on, if a secret is its; else a new one."""
    job = known_job(storage)
    for secret in secrets:
        if _name(secret) == job:
            return JobKey(job=job, secret=secret)
    secret = os.urandom(32)
    try:
        storage.replace(NAME, json.dumps({"job": _name(secret)}).encode())
    except Exception as error:
        log.debug("torchett: %s is not written: %s", NAME, error)
    return JobKey(job=_name(secret), secret=secret)


def _name(secret: bytes) -> str:
    return hashlib.sha256(b"job" + secret).hexdigest()[:16]
