"""Sending a run to a server, until all of it is there; a server that is away is tried again later.

shipper = Shipper(backlog, Server.of(url, env))
pause_s = shipper.send()        one batch; how long to wait before the next
shipper.flush(10.0)             whether all is acknowledged within that time
"""

import http.client
import json
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from torchett.model.errors import InputError
from torchett.ship.backlog import Backlog
from torchett.ship.protocol import CONTENT_TYPE, PATH, Piece, packed

EVERY_S = 1.5  # between batches when all has been sent
_FIRST_S, _LONGEST_S = 1.0, 60.0  # between tries at a server that is away
_ANSWER_BYTES = 64 << 20


class RefusedError(Exception):
    """The server answered, and will not take this run."""


class AwayError(Exception):
    """The server did not answer, or asked to come again later."""

    def __init__(self, said: str, wait_s: float = 0.0) -> None:
        super().__init__(said)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where to send to, and with what token."""

    scheme: str
    host: str
    port: int | None
    prefix: str
    token: str | None = None
    authorities: str | None = None  # a file of certificates to trust

    @staticmethod
    def of(url: str, env: Mapping[str, str]) -> "Server":
        """The server at this URL; its token from ETT_SHIP_TOKEN or ETT_SHIP_TOKEN_FILE."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InputError(
                f"--ship: expected http(s)://HOST[:PORT], found '{url}': {error}"
            ) from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise InputError(f"--ship: expected http(s)://HOST[:PORT], found '{url}'")
        token = env.get("ETT_SHIP_TOKEN")
        if not token and env.get("ETT_SHIP_TOKEN_FILE"):
            path = Path(env["ETT_SHIP_TOKEN_FILE"])
            try:
                token = path.read_text().strip()
            except OSError as error:
                raise InputError(f"{path}: expected a token: {error.strerror}") from None
        if token and not (token.isascii() and token.isprintable()):
            raise InputError("ETT_SHIP_TOKEN: expected one line of letters and digits")
        return Server(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port,
            prefix=parts.path.rstrip("/"),
            token=token or None,
            authorities=env.get("ETT_SHIP_CA") or None,
        )

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.scheme == "http":
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        context = ssl.create_default_context(cafile=self.authorities)
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, where bytes cost less than packing them."""
        return self.host in ("localhost", "127.0.0.1", "::1")

    def __str__(self) -> str:
        port = f":{self.port}" if self.port else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{port}{self.prefix}"


class Shipper:
    """Sends what a backlog holds, one batch after the other."""

    def __init__(
        self,
        backlog: Backlog,
        server: Server,
        *,
        say: Callable[[str], None] = lambda text: None,
        timeout_s: float = 10.0,
    ) -> None:
        self.backlog = backlog
        self.server = server
        self.sent_bytes = 0  # acknowledged, before compression
        self.away_s = 0.0  # the wait before the next try; 0 while the server answers
        self._say = say
        self._said = False
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._resumed = False
        self._path = f"{server.prefix}{PATH}/{quote(backlog.run.name, safe='')}"

    def send(self) -> float:
        """Send one batch; seconds until the next is due, 0 where more is waiting.

        RefusedError if the server will never take it.
        """
        try:
            if not self._resumed:
                self.backlog.resume(self._ask("GET", b"", {})["sizes"])
                self._resumed = True
            pieces = self.backlog.batch()
            if pieces:
                self._post(pieces)
        except AwayError as error:
            self._forget()
            self.away_s = min(max(2 * self.away_s, _FIRST_S, error.wait_s), _LONGEST_S)
            if not self._said:
                self._said = True
                self._say(
                    f"{self.server}: {error}: records stay in {self.backlog.run}"
                    " and are sent when it answers"
                )
            return self.away_s
        self.away_s = 0.0
        return 0.0 if self.backlog.more else EVERY_S

    def flush(self, within_s: float, wait: Callable[[float], object] | None = None) -> bool:
        """Send all there is; whether the server has it.

        One that does not answer is tried again only where there is a way to `wait` for it.
        """
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            pause_s = self.send()
            if self.away_s and wait is None:
                return False
            if self.away_s and wait is not None:
                wait(min(self.away_s, max(deadline - time.monotonic(), 0)))
                continue
            if pause_s and not any(not piece.replaces for piece in self.backlog.batch(1)):
                return self.backlog.left_bytes == 0
        return False

    def close(self) -> None:
        self._forget()

    def _post(self, pieces: list[Piece]) -> None:
        body = packed(pieces)
        headers = {"Content-Type": CONTENT_TYPE}
        if not self.server.is_here:
            body = zlib.compress(body, 1)
            headers["Content-Encoding"] = "deflate"
        sizes = self._ask("POST", body, headers)["sizes"]
        self.backlog.acknowledge(pieces, sizes)
        self.sent_bytes += sum(len(piece.data) for piece in pieces)

    def _ask(self, method: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        if self.server.token:
            headers["Authorization"] = f"Bearer {self.server.token}"
        fresh = self._connection is None
        try:
            status, wait_s, data = self._exchange(method, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self._forget()
            if fresh:
                raise AwayError(_why(error)) from None
            return self._ask(method, body, headers)  # a connection that had been closed meanwhile
        if status == 200:
            try:
                answer: dict[str, Any] = json.loads(data)
                answer["sizes"] = {str(k): int(v) for k, v in answer["sizes"].items()}
                return answer
            except (ValueError, KeyError, TypeError, AttributeError):
                raise AwayError("no server of torchett answered") from None
        said = _said(data) or f"status {status}"
        if status in (408, 425, 429, 500, 502, 503, 504, 507):
            raise AwayError(said, wait_s)
        raise RefusedError(f"{self.server}: {said}")

    def _exchange(
        self, method: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, float, bytes]:
        connection = self._connection
        if connection is None:
            connection = self._connection = self.server.connect(self._timeout_s)
        connection.request(method, self._path, body, headers)
        answer = connection.getresponse()
        data = answer.read(_ANSWER_BYTES)
        wait = answer.getheader("Retry-After") or ""
        if answer.will_close:
            self._forget()
        return answer.status, float(wait) if wait.isdecimal() else 0.0, data

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _why(error: Exception) -> str:
    said = error.strerror if isinstance(error, OSError) else None
    return (said or str(error) or type(error).__name__).split("\n")[0][:200]


def _said(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"])[:300]
    except (ValueError, KeyError, TypeError):
        return ""
