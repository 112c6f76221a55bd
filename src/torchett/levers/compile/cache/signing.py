"""The seal of an archive: an HMAC that only holders of a key can make.

Loading an archive runs its content (compiled code, pickles), so its writer must be trusted. A
checksum shows damage; a seal shows the origin.

    ETT_CACHE_KEY=SECRET              a secret of 32 characters or more, shared by a team
    ETT_CACHE_KEY_FILE=PATH           the same from a file that others cannot read
    neither, and a private folder     `.key` in that folder, made with the first archive

A folder is private if no other user can write to it. Any other store needs a given key. Otherwise a
user with write access could run code in every job that reads the store.
"""

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchett.model.errors import InputError
from torchett.store import FolderStore, Store

ALGORITHM = "hmac-sha256"
HOW = "set ETT_CACHE_KEY or ETT_CACHE_KEY_FILE to a secret the team shares (openssl rand -hex 32)"
HOW_FROM_ANOTHER = "give --key-file OLD/.key, the key of the library it comes from"
_LEAST = 32
_process_key = secrets.token_bytes(32)  # for memory://, which ends with the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A secret, with the name that seals contain."""

    secret: bytes = field(repr=False)

    @property
    def name(self) -> str:
        return hashlib.sha256(b"ett cache key\0" + self.secret).hexdigest()[:16]

    def seal(self, message: bytes) -> str:
        return hmac.new(self.secret, message, hashlib.sha256).hexdigest()

    def made(self, seal: str, message: bytes) -> bool:
        return hmac.compare_digest(self.seal(message).encode(), seal.encode())


def key_for(store: Store, env: Mapping[str, str], *, create: bool = False) -> Key | None:
    """The key for archives of this store; None if none was given and the store is not private."""
    if given := env.get("ETT_CACHE_KEY_FILE"):
        return _from_file(Path(given))
    if secret := env.get("ETT_CACHE_KEY"):
        return _checked(secret.strip().encode(), "ETT_CACHE_KEY")
    if not store.private():
        return None
    if not isinstance(store, FolderStore):
        return Key(secret=_process_key)
    path = store.root / ".key"
    if create and not path.exists():
        _make(path)
    return _from_file(path) if path.exists() else None


def _from_file(path: Path) -> Key:
    try:
        found = path.stat()
        secret = path.read_bytes().strip()
    except OSError as error:
        raise InputError(f"{path}: the cache key cannot be read: {error.strerror}") from None
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = oct(stat.S_IMODE(found.st_mode))
        raise InputError(f"{path}: mode {mode}, others can read this key: chmod 600 {path}")
    return _checked(secret, str(path))


def _checked(secret: bytes, where: str) -> Key:
    if len(secret) < _LEAST:
        found = f"{len(secret)} characters"
        raise InputError(f"{where}: expected a secret of {_LEAST} or more, found {found}; {HOW}")
    return Key(secret=secret)


def _make(path: Path) -> None:
    """Make the folder's key. If several processes do so at once, the first key is used."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}.part")
    opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(part, path)
            return
    finally:
        part.unlink(missing_ok=True)
