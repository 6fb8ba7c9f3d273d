"""
Whether whoever asked is still there, and what they may, for answers that take long to work out.

The application notes it for each request; what the request leads to asks, in whatever thread it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from aiohttp import web

from broker.config.admin_access import AdminRole

_ASKED: ContextVar[Callable[[], bool]] = ContextVar("asked")


_ROLE: ContextVar[AdminRole] = ContextVar("role")


def note_request(request: web.Request, role: AdminRole) -> None:
    """What follows in this task is for this request, of somebody who has this role."""

    def is_there() -> bool:
        transport = request.transport
        return transport is not None and not transport.is_closing()

    _ASKED.set(is_there)
    _ROLE.set(role)


def asker() -> Callable[[], bool]:
    """Says whether the client of this task is still there; one for which nothing was noted always is."""
    return _ASKED.get(_always)


def role_of_caller() -> AdminRole:
    """The role of the caller of this task; admin where nothing was noted."""
    return _ROLE.get(AdminRole.ADMIN)


def _always() -> bool:
    return True
