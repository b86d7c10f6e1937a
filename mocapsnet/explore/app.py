"""The web application: routes, and what a request may not do."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from math import prod
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mocapsnet.errors import WrongArgument
from mocapsnet.explore.look import Look
from mocapsnet.explore.upload import BYTES
from mocapsnet.explore.view import View

PATIENCE = 10.0
"""Seconds a body may take to arrive."""
LONGEST = 30.0
"""Seconds an answer may take, waiting included."""
AT_ONCE = 64
"""Requests that may wait for an answer."""
UPLOADS_AT_ONCE = 8
"""Of them, those that bring a picture, which may be large."""
JSON_BYTES = 100_000
"""Of a request beside the pixels in it."""
UPLOAD = "/api/upload"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
Answer = Callable[[Look, dict[str, Any]], dict[str, Any]]


class Guard:
    """Around every request: known hosts, no other site's pages, so many at once, headers on every answer."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str] | None) -> None:
        self.app = app
        self.hosts = hosts
        self.waiting = 0
        self.uploading = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or say why not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    *((name.encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        if refused := self.refuse(Request(scope)):
            await refused(scope, receive, send_with_headers)
            return
        upload = scope["path"] == UPLOAD
        self.waiting += 1
        self.uploading += upload
        try:
            await self.app(scope, receive, send_with_headers)
        finally:
            self.waiting -= 1
            self.uploading -= upload

    def refuse(self, request: Request) -> Response | None:
        """The answer to a request that is not let in."""
        host = request.headers.get("host", "")
        # A name that another site points at this machine is no name of ours.
        if self.hosts is not None and host.rpartition(":")[0] not in self.hosts and host not in self.hosts:
            return error(400, "this page answers to the address that the command printed")
        origin = request.headers.get("origin")
        if origin not in (None, f"http://{host}", f"https://{host}"):
            return error(403, "only this page itself may ask")
        if self.waiting >= AT_ONCE:
            return error(503, f"{AT_ONCE} requests are being answered; try again")
        if request.url.path == UPLOAD and self.uploading >= UPLOADS_AT_ONCE:
            return error(503, f"{UPLOADS_AT_ONCE} pictures are being read; try again")
        return None


def error(status: int, message: str) -> Response:
    """A refusal as JSON."""
    return JSONResponse({"error": message}, status, {"retry-after": "1"} if status == 503 else None)


async def body(request: Request, limit: int) -> bytes:
    """The body of a request, counted while it arrives."""
    length = request.headers.get("content-length", "0")
    too_large = HTTPException(413, f"at most {limit:,} bytes can be sent")
    if not length.isdigit() or int(length) > limit:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                content += part
                if len(content) > limit:
                    raise too_large
    except TimeoutError as late:
        raise HTTPException(408, f"the request took more than {PATIENCE:g} seconds to arrive") from late
    return bytes(content)


async def fields(request: Request, limit: int) -> dict[str, Any]:
    """The JSON object that a request brings."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "send application/json")
    try:
        told = json.loads(await body(request, limit))
    except (ValueError, RecursionError) as wrong:
        raise WrongArgument("the body must be JSON") from wrong
    if not isinstance(told, dict):
        raise WrongArgument("the body must be a JSON object")
    return told


def view_of(told: dict[str, Any]) -> View:
    """The view that a request asks for."""
    view = told.get("view", {})
    if not isinstance(view, dict) or not view.keys() <= {*View._fields}:
        raise WrongArgument(f"view must be an object with any of {', '.join(View._fields)}")
    return View(**view)


def whole(value: Any, name: str) -> int:
    """A whole number >= 0."""
    if not str(value).isascii() or not str(value).isdigit() or len(str(value)) > 9:
        raise WrongArgument(f"{name} must be a whole number >= 0, got {str(value)[:20]!r}")
    return int(value)


ANSWERS: dict[str, Answer] = {
    "see": lambda look, told: look.see(told, view_of(told), told.get("inside") is True),
    "sweep": lambda look, told: look.sweep(told, view_of(told), str(told.get("of", "turn"))),
    "reconstruct": lambda look, told: look.reconstruct(told.get("class"), told.get("capsule")),
    "sheet": lambda look, told: look.sheet(told.get("class"), told.get("capsule"), told.get("span", 0.25)),
}


def make_app(looks: Sequence[Look], hosts: Sequence[str] | None) -> ASGIApp:
    """The application around one or more networks; hosts are the names it answers to, None for all."""
    # One thread computes, torch's own threads help it: more at once would only be slower.
    worker = ThreadPoolExecutor(1, "look")
    largest = JSON_BYTES + max(2 * prod(look.model.image_shape) for look in looks)
    static = {
        file.name: file.read_bytes()
        for file in (files("mocapsnet.explore") / "static").iterdir()
        if file.is_file()
    }

    async def compute(function: Callable[[], Any]) -> Any:
        try:
            async with asyncio.timeout(LONGEST):
                return await asyncio.get_running_loop().run_in_executor(worker, function)
        except TimeoutError as late:
            raise HTTPException(503, f"no answer within {LONGEST:g} seconds; try again") from late

    def chosen(run: Any) -> Look:
        number = whole(run, "run")
        if number >= len(looks):
            raise WrongArgument(f"run must be from 0 to {len(looks) - 1}, got {number}")
        return looks[number]

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in static:
            raise HTTPException(404, "there is no such page")
        return Response(static[name], media_type=TYPES[name[name.rindex(".") :]])

    async def about(_: Request) -> Response:
        return JSONResponse({"runs": [look.about() for look in looks]})

    async def grid(request: Request) -> Response:
        asked = request.query_params
        look = chosen(asked.get("run", "0"))
        label = whole(asked["label"], "label") if asked.get("label") else None
        start = whole(asked.get("start", "0"), "start")
        return JSONResponse(await compute(partial(look.grid, label, asked.get("which", "any"), start)))

    async def upload(request: Request) -> Response:
        look = chosen(request.query_params.get("run", "0"))
        content = await body(request, BYTES)
        pixels = await compute(partial(look.upload, content))
        return Response(pixels, media_type="application/octet-stream")

    def ask(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def asked(request: Request) -> Response:
            told = await fields(request, largest)
            return JSONResponse(await compute(partial(answer, chosen(told.get("run", 0)), told)))

        return asked

    async def refused(_: Request, wrong: Exception) -> Response:
        if isinstance(wrong, HTTPException):
            return error(wrong.status_code, wrong.detail)
        return error(400, str(wrong))

    async def gone(_: Request, __: Exception) -> Response:
        return error(400, "the request broke off")

    async def broken(_: Request, wrong: Exception) -> Response:
        return error(500, f"this is a fault of the explorer: {type(wrong).__name__}")

    routes = [
        Route("/", page),
        Route("/api/about", about),
        Route("/api/grid", grid),
        Route(UPLOAD, upload, methods=["POST"]),
        *(Route(f"/api/{name}", ask(answer), methods=["POST"]) for name, answer in ANSWERS.items()),
        Route("/{name}", page),
    ]
    handlers: Any = {
        HTTPException: refused,
        WrongArgument: refused,
        ClientDisconnect: gone,
        Exception: broken,
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), hosts)
