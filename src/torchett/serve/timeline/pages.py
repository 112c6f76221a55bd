"""The routes of a timeline: the page, its tiles, and what lies under the pointer."""

from collections.abc import Callable
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from torchett.model.errors import InputError
from torchett.serve.runs import JobRead
from torchett.serve.site import Page, Site
from torchett.serve.timeline.tiles import MOST_LEVEL
from torchett.serve.timeline.view import timeline_view


def timeline_routes(site: Site, job: Callable[[str], JobRead]) -> list[BaseRoute]:
    """The Timeline page with its twin, its tiles, and what a point is (at.json?rank=&t=)."""

    def timeline(request: Request) -> Page:
        key = request.path_params["key"]
        view = timeline_view(job(key))
        return Page(
            template="timeline.html", values={"view": view, "key": key}, data=view.to_json()
        )

    def tile(request: Request) -> Response:
        read = job(request.path_params["key"])
        level, column, row = (_whole(request, name) for name in ("z", "x", "y"))
        if level > MOST_LEVEL or column >= 1 << level:
            raise InputError(f"tile: expected z up to {MOST_LEVEL} and x below 2^z")
        cells = read.lanes.tile(level, column, row)
        kept = "no-store" if read.ledger.window.live else "private, max-age=600"
        headers = {"cache-control": kept}
        return Response(cells, media_type="application/octet-stream", headers=headers)

    def under(request: Request) -> Response:
        read = job(request.path_params["key"])
        found = read.lanes.under(_whole(request, "rank"), _real(request, "t"))
        return JSONResponse(None if found is None else asdict(found))

    return [
        Route("/timeline/{key:path}/tile", tile),
        Route("/timeline/{key:path}/at.json", under),
        *site.route("/timeline/{key:path}", timeline, "/jobs"),
    ]


def _whole(request: Request, name: str) -> int:
    said = request.query_params.get(name, "")
    if not (said.isascii() and said.isdigit() and len(said) < 12):
        raise InputError(f"{name}: expected a whole number, found '{said[:20]}'")
    return int(said)


def _real(request: Request, name: str) -> float:
    said = request.query_params.get(name, "")
    try:
        found = float(said[:40])
    except ValueError:
        raise InputError(f"{name}: expected seconds, found '{said[:20]}'") from None
    if not -1e12 < found < 1e12:
        raise InputError(f"{name}: expected seconds, found '{said[:20]}'")
    return found
