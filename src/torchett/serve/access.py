"""Access by tokens; without tokens, from this machine only.

    bound to         tokens of that kind       without a token
    loopback         none                      allowed (project default), if the browser means us
    loopback         some                      refused
    anything else    –                         refused

Browsers show a token as the password of HTTP Basic, programs as `Authorization: Bearer`.
"""

import base64
import binascii
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from torchett.fleet.fleet import DEFAULT_PROJECT
from torchett.fleet.state import State
from torchett.fleet.tokens import Token, find_token
from torchett.ship.protocol import PATH

_LOCAL = ("localhost", "127.0.0.1", "[::1]", "testserver")
_FRESH_S = 1.0  # that a look-up is believed: a revoked token is refused within this time
_KNOWN = 1024
TRACES = "/v1/traces"  # of OpenTelemetry: written to, like what is shipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Exception):  # noqa: N818 - an answer, not an error
    """An HTTP status and one line."""

    status: int
    said: str


class Access:
    """Looks tokens up in a fleet's database."""

    def __init__(self, database: Path, *, loopback: bool) -> None:
        self._database, self._loopback = database, loopback
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[float, Token | None]] = OrderedDict()
        self._kinds: tuple[float, frozenset[str]] = (-1e9, frozenset())
        self._threads = threading.local()

    def writer(self, request: Request) -> str:
        """The project that this request may write; Refused if none."""
        token = self._token(request, "write")
        return DEFAULT_PROJECT if token is None else str(token.project)

    def reader(self, request: Request) -> None:
        """Refused, unless this request may read."""
        token = self._token(request, "read")
        if token is not None and token.project is not None:
            raise Refused(status=403, said="this token may not read the pages of all projects")

    def _token(self, request: Request, may: str) -> Token | None:
        shown = _shown(request)
        if shown is None:
            if self._loopback and may not in self._token_kinds():
                host = request.headers.get("host", "").rsplit(":", 1)[0]
                if host in _LOCAL or request.headers.get("host") in _LOCAL:
                    return None
                raise Refused(status=403, said="expected a request to localhost")
            raise Refused(status=401, said="expected a token")
        found = self._find(shown)
        if found is None:
            raise Refused(status=401, said="this token is not known")
        if found.may != may:
            raise Refused(status=403, said=f"this token may not {may}")
        return found

    def _find(self, secret: str) -> Token | None:
        now = time.monotonic()
        with self._lock:
            known = self._known.get(secret)
        if known is not None and now - known[0] < _FRESH_S:
            return known[1]
        found = find_token(self._state(), secret)
        with self._lock:
            self._known[secret] = now, found
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return found

    def _token_kinds(self) -> frozenset[str]:
        now = time.monotonic()
        if now - self._kinds[0] >= _FRESH_S:
            sql = "SELECT DISTINCT may FROM tokens WHERE revoked_s IS NULL"
            self._kinds = now, frozenset(row["may"] for row in self._state().rows(sql))
        return self._kinds[1]

    def _state(self) -> State:
        state: State | None = getattr(self._threads, "state", None)
        if state is None:
            state = self._threads.state = State(self._database)
        return state


class ReadersOnly:
    """Admits requests for pages that may be read; the intake of shipped runs has its own rule."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        written = (f"{PATH}/", TRACES)
        if scope["type"] == "http" and not scope["path"].startswith(written):
            try:
                self._access.reader(Request(scope))
            except Refused as refused:
                headers = {"WWW-Authenticate": 'Basic realm="torchett"'}
                answer = JSONResponse({"error": refused.said}, refused.status, headers)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Rate:
    """A rate limit for each client: so much a second, and a burst of the same amount."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, who: str, amount: float, now_s: float) -> float:
        """0 if the amount is granted; else the seconds to wait before the next request."""
        left, at = self._left.get(who, (self._burst, now_s))
        left = min(left + (now_s - at) * self._per_s, self._burst)
        if left <= 0:
            return -left / self._per_s + 0.01
        self._left[who] = left - amount, now_s
        self._left.move_to_end(who)
        while len(self._left) > _KNOWN:
            self._left.popitem(last=False)
        return 0.0


def _shown(request: Request) -> str | None:
    """The token that a request shows."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()[:512]
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value).decode().partition(":")[2][:512]
        except (binascii.Error, ValueError):
            return ""
    return None
