"""
The files of the status page: one page, and what it loads, all from this server.

They hold no fact of the instance, so they are for everybody; the page asks the admin API for the rest, as whoever looks
at it. Its policy lets it run its own scripts and ask its own server, and nothing else; texts never become markup.

Source: Content Security Policy Level 3, Trusted Types.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from importlib.resources import files

from aiohttp import hdrs, web

PAGE_PATH, FILES_PATH = "/", "/page/"
_DIRECTORY = "static"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_PERMISSIONS = "camera=(), geolocation=(), microphone=()"


def add_page(app: web.Application) -> None:
    """Serve the page and its files; they are read once."""
    for path, (body, kind) in page_files().items():
        app.router.add_get(path, partial(_answer, body, kind, f'"{sha256(body).hexdigest()[:32]}"'))


def page_files() -> dict[str, tuple[bytes, str]]:
    """Body and content type by path."""
    found: dict[str, tuple[bytes, str]] = {}
    for file in files("broker.admin").joinpath(_DIRECTORY).iterdir():
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            path = PAGE_PATH if file.name == "index.html" else FILES_PATH + file.name
            found[path] = file.read_bytes(), kind
    return found


def is_page(request: web.Request) -> bool:
    """Whether one of these files is asked for, by one of its methods."""
    resource = request.match_info.route.resource
    if resource is None or request.method not in {hdrs.METH_GET, hdrs.METH_HEAD}:
        return False
    return resource.canonical == PAGE_PATH or resource.canonical.startswith(FILES_PATH)


async def _answer(body: bytes, kind: str, tag: str, request: web.Request) -> web.Response:
    headers = {
        "Content-Security-Policy": _CSP,
        "Permissions-Policy": _PERMISSIONS,
        "Cache-Control": "no-cache",
        "ETag": tag,
    }
    if tag in request.headers.get(hdrs.IF_NONE_MATCH, ""):
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)
