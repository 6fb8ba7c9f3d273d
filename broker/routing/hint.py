"""
What may have been meant when a message finds no way, and what to do.

A hint names something that is there and almost fits, or the one thing that is missing. What is looked through is
bounded, as everything that an explanation asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from broker.flow import Disposition
from broker.routing.decide import Pass
from broker.routing.facts import Hosted

NAMES_COMPARED = 5000  # service names that are looked through for one that differs only in case
ROUTES_COMPARED = 1000  # of one service
EXPIRED_TOLD = 3


def hints_for(last: Pass, hosted: Hosted, table: str) -> Iterator[str]:
    """
    What to tell about the pass that decided; nothing when the message finds its service or leaves.

    Args:
        last: Of the decision.
        hosted: The services that are here.
        table: What people call the table that was searched.
    """
    service, decision = last.facts.to_service, last.decision
    if decision.disposition is Disposition.FORWARDED:
        return
    if decision.database is not None:
        here = hosted.services_of[decision.database]
        if service not in here:
            yield from _alike(service, here, "there is a service {name!r} in that database")
        return
    named = (name for name in last.table.services() if name is not None)
    yield from _alike(service, named, f"{table} has a route to {{name!r}}")
    yield from _alike(service, hosted.databases_with, "there is a service {name!r} here")
    looked_at = islice(last.table.all_routes(service), ROUTES_COMPARED)
    expired = (route for route in looked_at if not route.is_live(last.table.now))
    for route in islice(expired, EXPIRED_TOLD):
        yield f"route {route.name} has expired: ALTER ROUTE with a new LIFETIME brings it back"
    if decision.disposition is Disposition.NO_ROUTE:
        yield f"CREATE ROUTE in {table}, with this SERVICE_NAME, or without one for all that no other route names"
    if decision.disposition is Disposition.FORWARDING_DISABLED:
        yield "set endpoint.message_forwarding = true to let this instance pass on what is for others"


def _alike(service: str, names: Iterable[str], sentence: str) -> Iterator[str]:
    """Names that differ from the wanted one in case or in blanks around them."""
    folded = service.strip().casefold()
    for name in islice(names, NAMES_COMPARED):
        if name != service and name.strip().casefold() == folded:
            yield sentence.format(name=name) + ": names compare byte for byte"
