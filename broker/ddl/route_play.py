"""
What statements about routes make of the routes of one database.

The rules of routes are those of `broker.routing.route`; here is what each statement does with the names. It is the same
whether a configuration is rehearsed, or a script is tried on a history.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from datetime import datetime

from broker.ddl.statements import AlterRoute, CreateRoute, DropRoute
from broker.errors import UnknownNameError
from broker.routing.route import Route, alter_route, create_route


def play_route(
    routes: MutableMapping[str, Route], statement: CreateRoute | AlterRoute | DropRoute, now: datetime
) -> bool:
    """
    Do what a statement says to the routes, by name; a route that is made again replaces the one before.

    Args:
        routes: Changed in place.
        statement: About one of them.
        now: UTC instant from which a LIFETIME counts.

    Returns:
        False when there is nothing to do: DROP ROUTE of a name that is not there.

    Raises:
        PropertyError: the route would break a rule.
        UnknownNameError: 15151, ALTER ROUTE of a name that is not there.
    """
    name = statement.name
    if isinstance(statement, CreateRoute):
        routes[name] = create_route(name, statement.properties, now=now)
    elif isinstance(statement, AlterRoute):
        if name not in routes:
            raise UnknownNameError(15151, f"cannot alter the route {name!r}, because it does not exist")
        routes[name] = alter_route(routes[name], statement.properties, now=now)
    else:
        return routes.pop(name, None) is not None
    return True
