"""The routes of single jobs: the list, one job, two side by side, and one over time."""

from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.routing import BaseRoute

from torchett.serve.compare import Comparison, compare
from torchett.serve.fleet.filters import KEYS
from torchett.serve.jobs import job_list
from torchett.serve.shelf import Shelf
from torchett.serve.site import Page, Site
from torchett.serve.timeline.pages import timeline_routes

_NAMES = 500  # that a comparison offers


Windows = Callable[[str, str, Mapping[str, str]], Comparison | None]


def job_routes(site: Site, shelf: Shelf, windows: Windows | None = None) -> list[BaseRoute]:
    """The pages of these jobs, each with its twin; `windows` compares days, where it can."""

    def jobs(request: Request) -> Page:
        found = job_list(shelf.rows(), request.query_params)
        return Page(template="jobs.html", values={"list": found}, data=found.to_json())

    def job(request: Request) -> Page:
        read = shelf.job(request.path_params["key"])
        view = read.view
        return Page(
            template="job_page.html",
            values={"view": view, "key": read.key},
            data={"key": read.key, **read.ledger.to_json(), "view": view.to_json()},
        )

    def compared(request: Request) -> Page:
        a, b = request.query_params.get("a", ""), request.query_params.get("b", "")
        names = [row.key for row in shelf.rows()[:_NAMES]]
        found = windows(a, b, request.query_params) if windows is not None else None
        between_days = found is not None
        if found is None and a and b:
            found = compare(shelf.job(a).ledger, shelf.job(b).ledger, (a, b))
        labels = {key: request.query_params[key] for key in KEYS if request.query_params.get(key)}
        values = {"names": names, "a": a, "b": b, "found": found, "days": windows is not None,
                  "labels": labels if between_days else {}}  # fmt: skip
        return Page(template="compare.html", values=values, data=found and found.to_json())

    return [
        *site.route("/jobs", jobs, "/jobs"),
        *site.route("/job/{key:path}", job, "/jobs"),
        *timeline_routes(site, shelf.job),
        *site.route("/compare", compared, "/compare"),
    ]
