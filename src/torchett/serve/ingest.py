"""What `ett serve` takes in: run folders that launchers ship, rolled up while they grow.

    GET  /ship/v1/JOB    sizes of what is here      POST /ship/v1/JOB    a batch of pieces

See ship.protocol. The project is the token's; a job's name is one folder in it.
"""

import asyncio
import math
import sys
import threading
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from torchett.fleet import Fleet
from torchett.fleet.intake.watch import FleetWatch
from torchett.model.errors import EttError
from torchett.serve.access import Access, Rate, Refused
from torchett.serve.inbox import Inbox, InboxError, Limits
from torchett.ship.protocol import (
    BODY_BYTES,
    CONTENT_TYPE,
    PATH,
    UNPACKED_BYTES,
    ProtocolError,
    unpacked,
)

_Work = Callable[[Request, str], Awaitable[Response]]
_BODY_S = 30.0  # for a body to arrive
_LOOK_S = 0.5


class Ingest:
    """The routes that take run folders in, and the thread that rolls them up."""

    def __init__(
        self,
        fleet: Path,
        access: Access,
        *,
        limits: Limits | None = None,
        requests_per_s: float = 200.0,
        bytes_per_s: float = 256 << 20,
    ) -> None:
        self._fleet = fleet
        self._access = access
        self.inbox = Inbox(fleet / "runs", limits)
        self._requests = Rate(requests_per_s, 2 * requests_per_s)
        self._bytes = Rate(bytes_per_s, 2 * bytes_per_s)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ett-rollup", daemon=True)

    @property
    def routes(self) -> list[BaseRoute]:
        path = f"{PATH}/{{job}}"
        return [
            Route(path, self._answering(self._sizes), methods=["GET"]),
            Route(path, self._answering(self._take), methods=["POST"]),
        ]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(5.0)

    def _answering(self, work: _Work) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint that answers with what `work` returns, or with why not."""

        async def answer(request: Request) -> Response:
            try:
                project = await run_in_threadpool(self._access.writer, request)
                wait_s = self._requests.wait_s(project, 1, time.monotonic())
                if wait_s:
                    raise InboxError(429, "too many requests")
                return await work(request, project)
            except (Refused, InboxError) as refused:
                said = refused.said if isinstance(refused, Refused) else str(refused)
                headers = {"Retry-After": "1"} if refused.status in (429, 507) else {}
                if refused.status == 401:
                    headers["WWW-Authenticate"] = "Bearer"
                return JSONResponse({"error": said}, refused.status, headers)
            except ProtocolError as error:
                return JSONResponse({"error": f"expected a batch, found {error}"}, 400)

        return answer

    async def _sizes(self, request: Request, project: str) -> Response:
        job = request.path_params["job"]
        return JSONResponse({"sizes": await run_in_threadpool(self.inbox.sizes, project, job)})

    async def _take(self, request: Request, project: str) -> Response:
        if request.headers.get("content-type") != CONTENT_TYPE:
            raise InboxError(415, f"expected {CONTENT_TYPE}")
        coding = request.headers.get("content-encoding", "identity")
        if coding not in ("identity", "deflate"):
            raise InboxError(415, "expected deflate, or no encoding")
        body = await _body(request)
        wait_s = self._bytes.wait_s(project, len(body), time.monotonic())
        if wait_s:
            raise InboxError(429, f"too many bytes: wait {math.ceil(wait_s)} s")
        job = request.path_params["job"]

        def work() -> dict[str, int]:
            data = _inflated(body) if coding == "deflate" else body
            return self.inbox.take(project, job, list(unpacked(data)))

        return JSONResponse({"sizes": await run_in_threadpool(work)})

    def _watch(self) -> None:
        """Roll up what has been shipped until the server ends."""
        with Fleet.open(self._fleet) as fleet:
            watch = FleetWatch(fleet)
            while not self._over.is_set():
                began = time.monotonic()
                try:
                    watch.look()
                except (EttError, OSError) as error:
                    print(f"ett: roll-up: {error}", file=sys.stderr, flush=True)
                # At most a fifth of a core.
                self._over.wait(max(_LOOK_S, 4 * (time.monotonic() - began)))


async def _body(request: Request) -> bytes:
    """The whole body; InboxError where it is too large or too slow."""
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > BODY_BYTES:
        raise InboxError(413, f"more than {BODY_BYTES} bytes")
    parts, size = [], 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > BODY_BYTES:
                    raise InboxError(413, f"more than {BODY_BYTES} bytes")
                parts.append(part)
    except TimeoutError:
        raise InboxError(408, f"no whole body within {_BODY_S:g} s") from None
    except ClientDisconnect:
        raise InboxError(400, "the body was cut off") from None
    return b"".join(parts)


def _inflated(body: bytes) -> bytes:
    """The unpacked body; unpacking stops at the limit."""
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(body, UNPACKED_BYTES + 1)
    except zlib.error:
        raise ProtocolError("what is not deflate") from None
    if len(data) > UNPACKED_BYTES:
        raise InboxError(413, f"unpacks to more than {UNPACKED_BYTES} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise ProtocolError("a deflate stream that does not end where the body ends")
    return data
