"""
Service names that differ in case only, over everything that was given.

Names compare byte for byte, so two spellings are two services, and a message for one never comes to the other. A
hosted name is taken for right, on whichever instance it is; else the one met first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from msgspec.structs import replace

from broker.control.concern import Diagnostic, of_route, of_statement
from broker.control.played import Played
from broker.control.rehearsal import Rehearsal
from broker.routing.lint import Lint


def differing_names(rehearsals: Sequence[Rehearsal]) -> Iterator[Diagnostic]:
    """Each name that differs from another one, once for every instance that has it."""
    right: dict[str, tuple[str, Diagnostic]] = {}
    told: set[tuple[int, str]] = set()
    for concern, name, number in chain(_hosted(rehearsals), _named(rehearsals)):
        other, first = right.setdefault(name.casefold(), (name, concern))
        if other != name and (number, name) not in told:
            told.add((number, name))
            yield _two_names(concern, name, other, first)


def _hosted(rehearsals: Sequence[Rehearsal]) -> Iterator[tuple[Diagnostic, str, int]]:
    for number, rehearsal in enumerate(rehearsals):
        for played in rehearsal.users:
            for service in sorted(played.services):
                at, statement = (rehearsal, played), played.service_statements.get(service)
                yield of_statement(Lint.NAMES_DIFFER_IN_CASE, "", "", at=at, statement=statement), service, number


def _named(rehearsals: Sequence[Rehearsal]) -> Iterator[tuple[Diagnostic, str, int]]:
    """By routes, the first of each name on each instance."""
    for number, rehearsal in enumerate(rehearsals):
        seen: set[str] = set()
        for played in rehearsal.databases.values():
            for name, route in _routes(rehearsal, played):
                if name not in seen:
                    seen.add(name)
                    at = (rehearsal, played)
                    yield of_route(Lint.NAMES_DIFFER_IN_CASE, "", "", at=at, route=route), name, number


def _routes(rehearsal: Rehearsal, played: Played) -> Iterator[tuple[str, str]]:
    """Service name and route name of the live routes that name a service."""
    for route in played.routes.values():
        if route.remote_service_name is not None and route.is_live(rehearsal.now):
            yield route.remote_service_name, route.name


def _two_names(concern: Diagnostic, name: str, other: str, first: Diagnostic) -> Diagnostic:
    span = first.span
    where = f"{span.source}:{span.line}:{span.column}" if span else first.subject
    problem = (
        f"{name!r} here and {other!r} at {where} differ only in case, so they are two services and never match each"
        " other"
    )
    return replace(concern, problem=problem, hint="write both alike, unless two services are meant")
