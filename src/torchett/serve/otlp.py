"""OpenTelemetry traces taken in: POST /v1/traces becomes a job of the fleet.

What is sent lies as it came in FLEET/otlp/PROJECT/JOB.pb, one request after the other, which is
one request. From that the job's run folder is made again each time: see runs.importers.otlp.
"""

import gzip
import re
import shutil
import threading
import zlib
from io import BytesIO
from pathlib import Path
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from torchett.fleet import Fleet
from torchett.model.errors import EttError, InputError
from torchett.runs.imported import write_run
from torchett.runs.importers import otlp
from torchett.serve.access import TRACES, Access, Refused

_BODY_BYTES: Final = 16 << 20  # unpacked
_JOB_BYTES: Final = 256 << 20
_KIND: Final = "application/x-protobuf"


def trace_route(fleet: Path, access: Access) -> Route:
    """The route, for requests with a token that may write."""
    lock = threading.Lock()

    async def take(request: Request) -> Response:
        try:
            project = await run_in_threadpool(access.writer, request)
        except Refused as refused:
            return JSONResponse({"error": refused.said}, refused.status)
        if request.headers.get("content-type", "").split(";")[0] != _KIND:
            return JSONResponse({"error": f"expected {_KIND}"}, 415)
        try:
            data = await _body(request)
            await run_in_threadpool(_keep, fleet, project, data, lock)
        except EttError as error:
            return JSONResponse({"error": str(error)[:300]}, 400)
        return Response(b"", media_type=_KIND)

    return Route(TRACES, take, methods=["POST"])


async def _body(request: Request) -> bytes:
    packed = b""
    async for part in request.stream():
        packed += part
        if len(packed) > _BODY_BYTES:
            raise InputError(f"expected at most {_BODY_BYTES} bytes")
    if request.headers.get("content-encoding") != "gzip":
        return packed
    try:
        found = gzip.GzipFile(fileobj=BytesIO(packed)).read(_BODY_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"expected gzip: {error}") from None
    if len(found) > _BODY_BYTES:
        raise InputError(f"expected at most {_BODY_BYTES} bytes, unpacked")
    return found


def _keep(fleet: Path, project: str, data: bytes, lock: threading.Lock) -> None:
    """Add these spans to what is known of their job, and roll it up."""
    job = re.sub(r"[^A-Za-z0-9._-]+", "-", otlp.job_name(data)).strip("-.")[:100] or "otlp"
    kept = fleet / "otlp" / project / f"{job}.pb"
    with lock:
        kept.parent.mkdir(parents=True, exist_ok=True)
        known = kept.read_bytes() if kept.exists() else b""
        if len(known) + len(data) > _JOB_BYTES:
            raise InputError(f"{job}: expected at most {_JOB_BYTES} bytes of spans")
        history = otlp.parse(known + data, job, job)  # refused before it is kept
        run = fleet / "otlp" / project / job
        with open(kept, "ab") as file:
            file.write(data)
        shutil.rmtree(run, ignore_errors=True)
        write_run(history, run)
        with Fleet.open(fleet) as opened:
            opened.roll_up([run], project=project)
