"""The web application: which URL shows what.

/jobs  /job/KEY  /timeline/KEY  /compare?a=&b=  /fleet  /alerts     pages; each + .json is its data
/metrics                                                            for Prometheus
/static/…                                                           style, scripts, all from here
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from torchett.model.errors import EttError, RunError
from torchett.report.pages.render import style
from torchett.runs.reader import RunReader
from torchett.serve.fleet.metrics import fleet_metrics
from torchett.serve.fleet.pages import fleet_routes
from torchett.serve.fleet.source import FleetSource
from torchett.serve.fleet.windows import windows_of
from torchett.serve.job_pages import job_routes
from torchett.serve.runs import Details, RunFolders
from torchett.serve.shelf import FleetShelf, OnlySumsError, RunShelf, Shelf
from torchett.serve.site import HERE, Guard, Site
from torchett.sinks.metrics import Metric, job_metrics, text

_MOST_METRICS = 48  # runs whose figures /metrics shows: live ones first, then the newest


def make_app(
    runs: Path | None,
    details: Callable[[RunReader], Details] = lambda reader: Details(),
    more: Sequence[BaseRoute] = (),
    *,
    fleet: Path | None = None,
    may_act: bool = False,
    clock: Callable[[], float] = time.time,
) -> Starlette:
    """The application for a folder of runs, or without one for a fleet.

    `more` are other routes of the same server; `may_act`: alerts may be acknowledged here.
    """
    site = Site()
    shelf: Shelf
    source: FleetSource | None = None
    only_fleet: list[BaseRoute] = []
    if runs is None:
        source = FleetSource(_given(fleet), clock)
        shelf = FleetShelf(RunFolders(source.folder, details), source)
        site.nav = [("/fleet", "Fleet"), *site.nav, ("/alerts", "Alerts")]
        only_fleet = fleet_routes(site, source, may_act)
    else:
        shelf = RunShelf(RunFolders(runs, details))

    def metrics(request: Request) -> Response:
        found = _job_metrics(shelf) if source is None else fleet_metrics(source)
        return Response(text(found), media_type="text/plain; version=0.0.4; charset=utf-8")

    def root(request: Request) -> Response:
        return RedirectResponse(site.nav[0][0])

    @asynccontextmanager
    async def open_until_the_end(app: Starlette) -> AsyncIterator[None]:
        yield
        if source is not None:
            source.close()

    return Starlette(
        lifespan=open_until_the_end,
        routes=[
            Route("/", root),
            *more,
            *job_routes(site, shelf, None if source is None else windows_of(source)),
            *only_fleet,
            Route("/metrics", metrics),
            Route("/static/torchett.css", _sheet),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        exception_handlers=_error_pages(site),
        middleware=[Middleware(Guard), Middleware(GZipMiddleware, minimum_size=2000)],
    )


def _error_pages(site: Site) -> dict[Any, Callable[[Request, Exception], Response]]:
    """The handlers of errors: what is wrong, as a page."""

    def wrong(request: Request, error: Exception) -> Response:
        if isinstance(error, OnlySumsError) and request.url.path.startswith("/job/"):
            twin = ".json" if request.url.path.endswith(".json") else ""
            return RedirectResponse(f"/sums/{quote(error.key)}{twin}")
        return site.error(request, str(error), 404 if isinstance(error, RunError) else 400)

    def missing(request: Request, error: Exception) -> Response:
        return site.error(request, "There is no such page.", 404)

    return {EttError: wrong, 404: missing}


def _given(fleet: Path | None) -> Path:
    assert fleet is not None, "a folder of runs, or a fleet"
    return fleet


def _sheet(request: Request) -> Response:
    return Response(style(), media_type="text/css")


def _job_metrics(shelf: Shelf) -> list[Metric]:
    shown = [row.key for row in shelf.rows() if not row.error][:_MOST_METRICS]
    return job_metrics({key: shelf.job(key).ledger for key in shown})
