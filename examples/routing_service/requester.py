"""
The databases that ask for routes, and how a route is made in one of them.

A requester is known by its broker instance: the handler is given the admin sockets of the instances that it serves and
asks them which databases they have. A set of routes is made in one transaction: who asked sees all of them or none.
"""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.admin.client import AdminClient, ProblemError
from broker.advice import render_text
from broker.ddl.render import render_statement
from broker.ddl.statements import CreateRoute, DropRoute
from broker.errors import ConversationError, DaemonUnreachableError

UNKNOWN_REQUESTER = 9795  # the original's message for a broker instance that is not here
NAME_TAKEN = 2714

_ROUTES = "SELECT name, remote_service_name, lifetime, is_expired FROM sys.routes WHERE name IN ({})"


@dataclass(frozen=True, slots=True)
class Requester:
    """One database that asks. Shape: `name` of the database within the instance that `admin` talks to."""

    admin: AdminClient
    name: str

    def put_routes(self, routes: Iterable[CreateRoute]) -> None:
        """
        Make these routes, or give those that the same service has already a new life.

        A route without an end was made by an administrator and stays as it is. A route is replaced, not altered:
        ALTER ROUTE cannot take a broker instance or a mirror away.

        Raises:
            ConversationError: the name of a route is taken, or the instance refused; nothing was changed.
            DaemonUnreachableError: the instance does not answer now.
        """
        routes = list(routes)
        existing = self._existing(routes)
        script = []
        for route in routes:
            old = existing.get(route.name)
            if old is not None and not old["is_expired"]:
                if old["remote_service_name"] != route.properties.service_name:
                    problem = f"in {self.name} the route {route.name!r} leads to {old['remote_service_name']!r}"
                    raise ConversationError(NAME_TAKEN, problem)
                if old["lifetime"] is None:
                    continue
            if old is not None:
                script.append(render_statement(DropRoute(route.name)))
            script.append(render_statement(route))
        if script:
            _sql(self.admin, "\n".join(script), self.name)

    def _existing(self, routes: list[CreateRoute]) -> dict[str, dict[str, Any]]:
        names = ", ".join(render_text(route.name) for route in routes)
        rows = _sql(self.admin, _ROUTES.format(names), self.name)
        return {row["name"]: row for row in rows}


class Requesters:
    """The databases of some instances, by broker instance; asked for anew when one is not known."""

    def __init__(self, sockets: Iterable[Path]) -> None:
        self._clients = [AdminClient(path) for path in sockets]
        self._known: dict[uuid.UUID, Requester] = {}

    def find(self, broker_instance: uuid.UUID) -> Requester:
        """
        The database with this broker instance.

        Raises:
            ConversationError: none of the instances has it.
            DaemonUnreachableError: none of those that answer has it, and not all of them answer now.
        """
        if broker_instance in self._known:
            return self._known[broker_instance]
        silent: DaemonUnreachableError | None = None
        for client in self._clients:
            try:
                rows = _sql(client, "SELECT name, service_broker_guid FROM sys.databases", None)
            except DaemonUnreachableError as error:
                silent = error
                continue
            self._known |= {uuid.UUID(row["service_broker_guid"]): Requester(client, row["name"]) for row in rows}
        if broker_instance in self._known:
            return self._known[broker_instance]
        if silent is not None:
            raise silent
        problem = f"no instance that is served here has the broker instance {str(broker_instance).upper()}"
        raise ConversationError(UNKNOWN_REQUESTER, problem)


def _sql(admin: AdminClient, statement: str, database: str | None) -> list[dict[str, Any]]:
    """The rows of a statement or script; raises as `Requester.put_routes`."""
    try:
        answer = admin.sql(statement, database)
    except ProblemError as error:
        if error.status >= 500:  # the instance is in trouble now, and the request is not wrong
            raise DaemonUnreachableError("the requesting instance", str(error)) from error
        number = error.problem.get("number")
        raise ConversationError(number if isinstance(number, int) and number > 0 else 9750, str(error)) from error
    return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
