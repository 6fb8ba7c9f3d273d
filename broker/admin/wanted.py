"""
Whether whoever asked is still there, for answers that take long to work out.

The application notes it for each request; what the request leads to asks, in whatever thread it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from aiohttp import web

_ASKED: ContextVar[Callable[[], bool]] = ContextVar("asked")


def note_request(request: web.Request) -> None:
    """What follows in this task is for this request."""

    def is_there() -> bool:
        transport = request.transport
        return transport is not None and not transport.is_closing()

    _ASKED.set(is_there)


def asker() -> Callable[[], bool]:
    """Says whether the client of this task is still there; one for which nothing was noted always is."""
    return _ASKED.get(_always)


def _always() -> bool:
    return True
