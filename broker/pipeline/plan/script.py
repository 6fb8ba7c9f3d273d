"""
What scripts make of one instance, as far as routing asks: its routes, and the services of its databases.

A script is one as the daemon runs it: what stands before the first USE is about msdb. Statements about other things
than routes and services pass. A state begins with what a new database begins with, or with that of another script; no
file of a daemon is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from broker.ddl.parser import parse_script
from broker.ddl.route_play import play_route
from broker.ddl.statements import (
    AlterRoute,
    CreateRoute,
    CreateService,
    DropRoute,
    DropService,
    Statement,
    UseDatabase,
    blaming,
)
from broker.errors import DuplicateNameError, UnknownNameError
from broker.routing.route import AUTO_CREATED_LOCAL, Route

MSDB = "msdb"


@dataclass(slots=True)
class ScriptedDatabase:
    """
    One database. Changed by `play_script` alone.

    Shape: `routes` by name; `services` that scripts made, `dropped` those that they dropped and did not make again.
    """

    routes: dict[str, Route] = field(default_factory=lambda: {AUTO_CREATED_LOCAL.name: AUTO_CREATED_LOCAL})
    services: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)

    def copy(self) -> ScriptedDatabase:
        """Another one that can change by itself."""
        return ScriptedDatabase(dict(self.routes), set(self.services), set(self.dropped))


@dataclass(slots=True)
class Scripted:
    """The databases of one instance by name, msdb among them. Changed by `play_script` alone."""

    databases: dict[str, ScriptedDatabase] = field(default_factory=lambda: {MSDB: ScriptedDatabase()})

    def copy(self) -> Scripted:
        """Another one that can change by itself."""
        return Scripted({name: one.copy() for name, one in self.databases.items()})


def play_script(
    state: Scripted, text: str, *, source: str, now: datetime, database: str = MSDB, is_declared: bool = True
) -> Scripted:
    """
    What a script makes of an instance.

    Args:
        state: Before it; not changed.
        text: T-SQL.
        source: What the places of errors call the script.
        now: UTC instant from which a LIFETIME counts.
        database: Where the script begins.
        is_declared: Whether it is a script of a configuration: a route may be made again, one that is not there may be
            dropped, USE begins a database. Else it is one that is carried out on what is there, and none of this is so.

    Raises:
        StatementError: the first mistake, with its place.
    """
    after = state.copy()
    current = _named(after, database, is_declared=is_declared)
    for statement in parse_script(text, source=source):
        with blaming(statement):
            if isinstance(statement, UseDatabase):
                current = _named(after, statement.name, is_declared=is_declared)
            else:
                _play(current, statement, now, is_declared=is_declared)
    return after


def _named(state: Scripted, name: str, *, is_declared: bool) -> ScriptedDatabase:
    if not is_declared and name not in state.databases:
        known = ", ".join(sorted(state.databases))
        raise UnknownNameError(911, f"no script of this instance tells of the database {name!r}, only of {known}")
    return state.databases.setdefault(name, ScriptedDatabase())


def _play(database: ScriptedDatabase, statement: Statement, now: datetime, *, is_declared: bool) -> None:
    match statement:
        case CreateRoute(name=name) if name in database.routes and not is_declared:
            raise DuplicateNameError(2714, f"there is already a route named {name!r} in the database")
        case CreateRoute() | AlterRoute() | DropRoute():
            was_there = play_route(database.routes, statement, now)
            if not was_there and not is_declared:
                raise UnknownNameError(15151, f"cannot drop the route {statement.name!r}, because it does not exist")
        case CreateService():
            database.services.add(statement.name)
            database.dropped.discard(statement.name)
        case DropService():
            database.services.discard(statement.name)
            database.dropped.add(statement.name)
        case _:
            pass
