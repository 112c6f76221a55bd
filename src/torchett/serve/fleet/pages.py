"""The routes that only a fleet has: /fleet, its alerts, and the sums of jobs that are gone."""

from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from torchett.model.errors import InputError
from torchett.serve.fleet.alerts import act, alerts_view, open_alerts
from torchett.serve.fleet.filters import SPANS, filters
from torchett.serve.fleet.jobs import job_sums
from torchett.serve.fleet.source import FleetSource
from torchett.serve.fleet.view import fleet_view
from torchett.serve.site import Page, Site

_LONGEST_FORM = 10_000
_SHOWN_ALERTS = 3


def fleet_routes(site: Site, source: FleetSource, may_act: bool) -> list[BaseRoute]:
    """The pages of this fleet, each with its twin; `may_act`: alerts may be acknowledged here."""

    def fleet(request: Request) -> Page:
        chosen = filters(request.query_params, source.clock())
        view = fleet_view(source, chosen)
        alerts = open_alerts(source, chosen.labels)
        values = {"view": view, "spans": SPANS, "alerts": alerts[:_SHOWN_ALERTS]}
        data = {**view.to_json(), "alerts": [one.to_json() for one in alerts]}
        return Page(template="fleet.html", values=values, data=data)

    def alerts(request: Request) -> Page:
        view = alerts_view(source, may_act)
        return Page(template="alerts.html", values={"view": view}, data=view.to_json())

    def sums(request: Request) -> Page:
        found = job_sums(source, request.path_params["key"])
        return Page(template="job_sums.html", values={"sums": found}, data=found.to_json())

    async def acted(request: Request) -> Response:
        if not may_act:
            return site.error(request, "Alerts are read-only here: ett fleet alerts ack", 403)
        if not _own(request):
            return site.error(request, "Only this page may send this form.", 403)
        body = await _body(request)
        form = dict(parse_qsl(body.decode(errors="replace")))
        await run_in_threadpool(act, source, form)
        return RedirectResponse("/alerts", 303)

    return [
        *site.route("/fleet", fleet, "/fleet"),
        *site.route("/alerts", alerts, "/alerts"),
        *site.route("/sums/{key:path}", sums, "/jobs"),
        Route("/alerts/act", acted, methods=["POST"]),
    ]


async def _body(request: Request) -> bytes:
    found = b""
    async for part in request.stream():
        found += part
        if len(found) > _LONGEST_FORM:
            raise InputError(f"form: expected at most {_LONGEST_FORM} bytes")
    return found


def _own(request: Request) -> bool:
    """Whether the browser says that a page of ours sent this; another site's form is refused."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("//")[2] == request.headers.get("host")
