"""What every page shares: templates, a twin with its data, headers that bind the browser."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchett.report.pages.render import environment

HERE = Path(__file__).parent
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What one URL shows: a template with its values, and the same as data."""

    template: str
    values: Mapping[str, Any]
    data: Any


@dataclass(slots=True, kw_only=True)
class Site:
    """The templates, and the pages that lead to others."""

    nav: list[tuple[str, str]] = field(
        default_factory=lambda: [("/jobs", "Jobs"), ("/compare", "Compare")]
    )
    env: Any = None

    def __post_init__(self) -> None:
        self.env = environment(HERE / "templates")
        self.env.filters |= {"url": lambda text: quote(str(text), safe="/"), "when": when}

    def route(self, path: str, page: Callable[[Request], Page], name: str) -> list[BaseRoute]:
        """The page at this path, and its twin at path.json."""

        def html(request: Request) -> Response:
            shown = page(request)
            template = self.env.get_template(shown.template)
            values = {"nav": self.nav, "here": name, "twin": _twin(request), **shown.values}
            return HTMLResponse(template.render(values))

        def data(request: Request) -> Response:
            return JSONResponse(page(request).data)

        return [Route(f"{path}.json", data), Route(path, html)]

    def error(self, request: Request, said: str, status: int) -> Response:
        if request.url.path.endswith(".json"):
            return JSONResponse({"error": said}, status)
        template = self.env.get_template("error.html")
        page = template.render(nav=self.nav, here="", said=said, status=status)
        return HTMLResponse(page, status)


class Guard:
    """Adds to every answer what a browser must not do with it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.decode() for name, _ in message["headers"]}
                message["headers"] += [
                    (name.encode(), value.encode())
                    for name, value in _HEADERS.items()
                    if name not in known
                ]
            await send(message)

        await self._app(scope, receive, guarded if scope["type"] == "http" else send)


def _twin(request: Request) -> str:
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{quote(request.url.path)}.json{query}"


def when(epoch_s: float | None) -> str:
    """A time as people read it: UTC, the year only where it is another one."""
    if epoch_s is None:
        return "–"
    at = datetime.fromtimestamp(epoch_s, UTC)
    this_year = at.year == datetime.fromtimestamp(time.time(), UTC).year
    return f"{at:%d %b %H:%M}" if this_year else f"{at:%d %b %Y}"
