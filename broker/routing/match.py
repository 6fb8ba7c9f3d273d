"""
Finding matching routes: the first step that yields any route ends the search.

The steps are functions in the order of the documentation, listed in `STEPS` under their documented numbers, so that a
step is read, tested and explained by itself. Step 7 is the end of the list: nothing matched, which is no error.

Balancing (step 3) picks one broker instance by rendezvous hashing, so that all gateways, after every restart, pick
alike, and removing one of n instances moves only the dialogs that were on it.

Source: Service Broker documentation, "Service Broker Routing", section "Finding Matching Routes".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from msgspec import Struct

from broker.routing.address import LOCAL
from broker.routing.facts import Hosted, RoutingFacts
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER, Route
from broker.routing.table import RouteTable

ASKING_STEP = 4
DELAYED_STEP = 7

# The service that is asked, and the one that asks: what goes to either cannot wait for an answer.
NEVER_ASKED_ABOUT = frozenset({BROKER_CONFIGURATION, SERVICE_BROKER})


class Match(Struct, frozen=True):
    """
    The routes that matched, all of one step.

    Shape: `step` 1 .. 6, or 7 with no routes; `is_balanced` when the conversation id decided which.
    """

    step: int
    routes: tuple[Route, ...] = ()
    is_balanced: bool = False


Step = Callable[[RouteTable, Hosted, RoutingFacts], Match | None]


def match(table: RouteTable, hosted: Hosted, facts: RoutingFacts) -> Match:
    """
    The routes of the first step that has any.

    Cost: at most one look-up a step; step 3 hashes once per broker instance of the service.
    """
    for step in STEPS:
        found = step(table, hosted, facts)
        if found is not None:
            return found
    return Match(DELAYED_STEP)


def _exact(table: RouteTable, _hosted: Hosted, facts: RoutingFacts) -> Match | None:
    """Step 1: service name and broker instance, when the dialog names one (R2.1)."""
    if facts.is_open:
        return None
    routes = table.routes(facts.to_service, facts.to_broker_instance)
    return Match(1, routes) if routes else None


def _any_instance(table: RouteTable, _hosted: Hosted, facts: RoutingFacts) -> Match | None:
    """Step 2: the service name among routes without broker instance (R2.2)."""
    routes = table.routes(facts.to_service)
    return Match(2, routes) if routes else None


def _balanced(table: RouteTable, _hosted: Hosted, facts: RoutingFacts) -> Match | None:
    """Step 3: an open dialog picks one of the broker instances that have routes (R2.3)."""
    weights = table.instances(facts.to_service) if facts.is_open else {}
    if not weights:
        return None
    instance = pick_instance(facts.conversation_id, weights)
    return Match(3, table.routes(facts.to_service, instance), is_balanced=len(weights) > 1)


def _ask(table: RouteTable, _hosted: Hosted, facts: RoutingFacts) -> Match | None:
    """Step 4: a route to the configuration service exists, so it is asked (R2.4); nobody asks it about itself."""
    if facts.to_service in NEVER_ASKED_ABOUT:
        return None
    routes = table.routes(BROKER_CONFIGURATION)
    return Match(ASKING_STEP, routes) if routes else None


def _last_resort(table: RouteTable, _hosted: Hosted, _facts: RoutingFacts) -> Match | None:
    """Step 5: routes that name neither service nor broker instance (R2.5)."""
    routes = table.routes(None)
    return Match(5, routes) if routes else None


def _implicit_local(_table: RouteTable, hosted: Hosted, facts: RoutingFacts) -> Match | None:
    """Step 6: a named broker instance, and some database here has a service of that name (R2.6), or is its mirror."""
    is_here = facts.to_service in hosted.databases_with or facts.to_broker_instance in hosted.mirrors
    if facts.is_open or not is_here:
        return None
    return Match(6, (Route("", LOCAL, remote_service_name=facts.to_service),))


STEPS: tuple[Step, ...] = (_exact, _any_instance, _balanced, _ask, _last_resort, _implicit_local)


def pick_instance(conversation_id: bytes, weights: Mapping[bytes, int]) -> bytes:
    """
    The broker instance that wins this conversation: the highest score, the lower GUID on a tie.

    Args:
        conversation_id: 16 bytes.
        weights: An instance weighs as much as the heaviest of its routes; how many lead to it changes nothing.
    """
    return min(weights, key=lambda instance: (-score(conversation_id, instance, weight=weights[instance]), instance))


def score(conversation_id: bytes, candidate: bytes, *, weight: int = 1) -> float:
    """
    Rendezvous score: weight / -ln((h + 0.5) / 2^64), h the first 8 bytes of SHA-256(conversation_id, candidate).

    Shape: a positive number; over all conversations, candidate i wins with probability weight_i / sum of weights.
    """
    from hashlib import sha256  # noqa: PLC0415 - for those who balance; a slow import for all others

    h = int.from_bytes(sha256(conversation_id + candidate).digest()[:8], "big")
    uniform = (h + 0.5) / 2.0**64
    # The largest hashes round to 1.0, whose logarithm is 0: such a candidate wins.
    return weight / -math.log(uniform) if uniform < 1.0 else math.inf
