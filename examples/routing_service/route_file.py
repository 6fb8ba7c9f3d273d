"""
Routes to give out, from an ordinary route script.

The file is read again when it has changed. A file that became unreadable or wrong in the meantime is told about once,
and the last good one goes on to hold: an editor that saves half a file takes no service away.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import structlog
from msgspec import structs
from msgspec.structs import replace

from broker.ddl.lexer import decode_script
from broker.ddl.parser import parse_script
from broker.ddl.statements import CreateRoute, Statement, blaming
from broker.dialog.route_requests import Inquiry
from broker.errors import StatementError
from broker.routing.route import create_route

log = structlog.get_logger(__name__)

_Version: TypeAlias = tuple[int, int, int]


class RouteFile:
    """
    The CREATE ROUTE statements of one file, by service name. Not for several threads.

    Shape: `lifetime` seconds, for a route that names none; `loads` how often the file was read and good.
    """

    def __init__(self, path: Path, *, lifetime: int) -> None:
        """
        Raises:
            OSError, StatementError: the file is not good at the start.
        """
        self.loads = 0
        self._path = path
        self._lifetime = lifetime
        self._version: _Version | None = None
        self._routes: dict[str, list[CreateRoute]] = {}
        self._load(self._stat())

    def find(self, inquiry: Inquiry) -> list[CreateRoute]:
        """
        Every route to the service; none when not one of them serves the broker instance that was asked for.

        Several broker instances share the load, as several routes always do.
        """
        self._refresh()
        routes = self._routes.get(inquiry.service_name, [])
        return routes if any(_serves(route, inquiry) for route in routes) else []

    def _refresh(self) -> None:
        try:
            version = self._stat()
            if version != self._version:
                self._version = version  # a bad file is told about once
                self._load(version)
        except (OSError, ValueError, StatementError) as error:
            log.error("route file not used", path=str(self._path), reason=str(error))  # noqa: TRY400 - no bug of ours

    def _stat(self) -> _Version:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _load(self, version: _Version) -> None:
        source = str(self._path)
        statements = parse_script(decode_script(self._path.read_bytes(), source=source), source=source)
        self._routes = _by_service(self._checked(statements))
        self._version = version
        self.loads += 1

    def _checked(self, statements: Iterable[Statement]) -> list[CreateRoute]:
        routes = []
        for statement in statements:
            with blaming(statement):
                if not isinstance(statement, CreateRoute):
                    raise StatementError(102, "a file of routes to give out holds CREATE ROUTE only")
                if statement.properties.service_name is None:
                    raise StatementError(102, "a route to give out needs SERVICE_NAME: requests are for one service")
                if statement.properties.lifetime is None:
                    properties = replace(statement.properties, lifetime=self._lifetime)
                    statement = structs.replace(statement, properties=properties)  # noqa: PLW2901
                create_route(statement.name, statement.properties)
            routes.append(statement)
        return routes


def _by_service(routes: Iterable[CreateRoute]) -> dict[str, list[CreateRoute]]:
    by_service: dict[str, list[CreateRoute]] = {}
    for route in routes:
        by_service.setdefault(route.properties.service_name or "", []).append(route)
    return by_service


def _serves(route: CreateRoute, inquiry: Inquiry) -> bool:
    """Whether a dialog that named this broker instance, or none, would match the route."""
    named = create_route(route.name, route.properties).broker_instance
    return inquiry.broker_instance is None or named in (None, inquiry.broker_instance)
