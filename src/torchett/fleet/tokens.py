"""Tokens of a fleet's server: kept as digests, each with what it may do and for which project."""

import hashlib
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from torchett.fleet.state import State
from torchett.model.errors import InputError
from torchett.record.identity import safe_name

LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a token permits."""

    name: str
    may: str  # write or read
    project: str | None  # None: all (read only)


def add_token(state: State, name: str, may: str, project: str | None) -> str:
    """A new token; only this call ever sees it."""
    if may == "write" and project is None:
        raise InputError("ett fleet token: a token that may write needs --project")
    if project is not None and (safe_name(project) != project or len(project) > LONGEST_NAME):
        raise InputError(f"--project: expected a plain name, found '{project[:80]}'")
    secret = f"ett-{secrets.token_urlsafe(32)}"
    with state.change() as db:
        if state.one("SELECT 1 FROM tokens WHERE name = ? AND revoked_s IS NULL", name):
            raise InputError(f"ett fleet token: there is a token '{name}': revoke it first")
        db.execute(
            "INSERT INTO tokens (name, digest, may, project, made_s) VALUES (?, ?, ?, ?, ?)",
            (name, _digest(secret), may, project, time.time()),
        )
    return secret


def find_token(state: State, secret: str) -> Token | None:
    """The token with this secret; None if there is none, or it was revoked."""
    row = state.one(
        "SELECT name, may, project FROM tokens WHERE digest = ? AND revoked_s IS NULL",
        _digest(secret),
    )
    return None if row is None else Token(name=row["name"], may=row["may"], project=row["project"])


def has_tokens(state: State) -> bool:
    return state.one("SELECT 1 FROM tokens WHERE revoked_s IS NULL") is not None


def list_tokens(state: State) -> list[dict[str, Any]]:
    return [
        {
            "name": row["name"],
            "may": row["may"],
            "project": row["project"],
            "made": _when(row["made_s"]),
            "revoked": _when(row["revoked_s"]),
        }
        for row in state.rows("SELECT * FROM tokens ORDER BY id")
    ]


def revoke_token(state: State, name: str) -> bool:
    with state.change() as db:
        done = db.execute(
            "UPDATE tokens SET revoked_s = ? WHERE name = ? AND revoked_s IS NULL",
            (time.time(), name),
        )
        return done.rowcount > 0


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _when(epoch_s: float | None) -> datetime | None:
    return (
        None if epoch_s is None else datetime.fromtimestamp(int(epoch_s), UTC).replace(tzinfo=None)
    )
