"""
The routing decision: a pure function of table, hosted services, facts of the frame, health and forwarding switch.

Reply, match, choose, locate, in this order; once more when the way leads back to this very instance. The result is
a value; nothing is sent and nothing is remembered here, so the same function answers the data path and the question
"why".

Source: Service Broker documentation, "Service Broker Routing".
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from msgspec import Struct, field
from msgspec.structs import replace

from broker.flow import Disposition
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.choose import (
    AddressHealth,
    Candidate,
    HealthOf,
    Principals,
    RouteChoice,
    RouteClass,
    choose,
    wanted_instance,
)
from broker.routing.facts import Hosted, RoutingFacts
from broker.routing.match import ASKING_STEP, DELAYED_STEP, Match, match, score
from broker.routing.route import Route
from broker.routing.table import RouteTable

REPLY_STEP = 0


class Decision(Struct, frozen=True):
    """
    What becomes of a frame with these facts.

    Shape: `disposition` FORWARDED (then `candidates`, best first), DELIVERED (then `database`, a broker instance) or
    the reason why not: a conversation begun here is delayed, an incoming frame is dropped with it. `step` 0 for a
    reply, else the step of matching, 7 when nothing matched. `is_by_conversation`: another conversation with the same
    route key may go elsewhere, so a cache must ask per conversation.
    """

    disposition: Disposition
    step: int
    route: Route | None = None
    candidates: tuple[Candidate, ...] = ()
    database: bytes | None = None
    is_by_conversation: bool = False


class RoutingContext(Struct, frozen=True):
    """
    Everything about this instance that a decision depends on; swapped whole when any of it changes.

    Shape: `table` the one searched: of the database that sends, or msdb's for what arrives; `msdb` that of the
    instance; `own` the addresses that lead to this very instance; `principals` of the mirrored pairs that are in use.
    """

    table: RouteTable
    hosted: Hosted
    health_of: HealthOf
    is_forwarding: bool
    msdb: RouteTable = field(default_factory=RouteTable)
    own: AbstractSet[NetworkAddress] = frozenset()
    principals: Principals = field(default_factory=dict)

    def with_table(self, table: RouteTable) -> RoutingContext:
        """The same, with another table that is searched."""
        return replace(self, table=table)


class Pass(Struct, frozen=True):
    """One time through matching and choosing; a self-addressed route makes a second one. `matched` None for a reply."""

    facts: RoutingFacts
    table: RouteTable
    matched: Match | None
    choice: RouteChoice | None
    decision: Decision


def decide(facts: RoutingFacts, here: RoutingContext, passes: list[Pass] | None = None) -> Decision:
    """
    Decide what becomes of a frame.

    Args:
        facts: Of the frame.
        here: What holds at this instance.
        passes: Where to keep how it was decided, for whoever explains it.

    Raises:
        Nothing. Every outcome is a value.
    """

    def health_of(address: NetworkAddress) -> AddressHealth:
        return AddressHealth.CONNECTED if address in here.own else here.health_of(address)

    first = _decide(facts, here, here.table, health_of, frozenset())
    if passes is not None:
        passes.append(first)
    decision = first.decision
    if not decision.candidates or decision.candidates[0].address not in here.own:
        return decision
    # The way leads to this very instance: as if the frame had come from outside, and never a third time (R3.9).
    second = _decide(replace(facts, database=None), here, here.msdb, here.health_of, here.own)
    if passes is not None:
        passes.append(second)
    is_by_conversation = decision.is_by_conversation or second.decision.is_by_conversation
    return replace(second.decision, is_by_conversation=is_by_conversation)


def _decide(
    facts: RoutingFacts,
    here: RoutingContext,
    table: RouteTable,
    health_of: HealthOf,
    unusable: AbstractSet[NetworkAddress],
) -> Pass:
    """Reply, match, choose, locate."""
    if facts.is_incoming and facts.is_from_target and facts.to_broker_instance in here.hosted.services_of:
        reply = Decision(Disposition.DELIVERED, REPLY_STEP, database=facts.to_broker_instance)
        return Pass(facts, table, None, None, reply)
    if facts.is_incoming and facts.is_from_target and facts.to_broker_instance in here.hosted.mirrors:
        return Pass(facts, table, None, None, Decision(Disposition.DATABASE_IS_MIRROR, REPLY_STEP))
    matched = match(table, here.hosted, facts)
    if matched.step == ASKING_STEP:
        asking = Decision(Disposition.ASKING_FOR_ROUTE, ASKING_STEP, matched.routes[0])
        return Pass(facts, table, matched, None, asking)
    choice = choose(matched.routes, here.hosted, facts, health_of, unusable=unusable, principals=here.principals)
    if choice is None:
        return Pass(facts, table, matched, None, _nothing_works(matched, facts, here.hosted))
    return Pass(facts, table, matched, choice, _take(choice, matched, facts, here))


def _take(choice: RouteChoice, matched: Match, facts: RoutingFacts, here: RoutingContext) -> Decision:
    """What the class that works leads to."""
    route = choice.routes[0]
    if choice.route_class is RouteClass.LOCAL:
        return _locate(route, matched, facts, here.hosted)
    if choice.route_class is RouteClass.MIRRORED and facts.is_incoming:
        principal = choice.candidates[0] if choice.candidates else None
        if principal is not None and principal.address in here.own:
            return _locate_principal(principal.route, matched, facts, here.hosted)
    if facts.is_incoming and not here.is_forwarding:
        return Decision(Disposition.FORWARDING_DISABLED, matched.step, route, is_by_conversation=matched.is_balanced)
    if not choice.candidates:
        # Who is principal is found out by probing; until somebody claims it, nothing leaves (R3.1, R6.1).
        return Decision(Disposition.PRINCIPAL_UNKNOWN, matched.step, route, is_by_conversation=matched.is_balanced)
    return _forward(choice, matched)


def _forward(choice: RouteChoice, matched: Match) -> Decision:
    best = choice.candidates[0]
    return Decision(
        Disposition.FORWARDED,
        matched.step,
        best.route,
        candidates=choice.candidates,
        is_by_conversation=matched.is_balanced or len(choice.candidates) > 1,
    )


def _locate(route: Route, matched: Match, facts: RoutingFacts, hosted: Hosted) -> Decision:
    """Which database: the named one, else the sender's own, else one picked by the conversation (R4.1, R4.2)."""
    instance = wanted_instance(route, facts)
    if instance is not None:
        return Decision(
            Disposition.DELIVERED, matched.step, route, database=instance, is_by_conversation=matched.is_balanced
        )
    databases = hosted.databases_with[facts.to_service]
    if facts.database in databases:
        return Decision(Disposition.DELIVERED, matched.step, route, database=facts.database)
    database = max(databases, key=lambda instance: score(facts.conversation_id, instance))
    return Decision(
        Disposition.DELIVERED, matched.step, route, database=database, is_by_conversation=len(databases) > 1
    )


def _locate_principal(route: Route, matched: Match, facts: RoutingFacts, hosted: Hosted) -> Decision:
    """This very instance is the principal, so what arrived has come to the end of its way."""
    instance = wanted_instance(route, facts)
    if instance in hosted.services_of:
        return Decision(
            Disposition.DELIVERED, matched.step, route, database=instance, is_by_conversation=matched.is_balanced
        )
    why = Disposition.DATABASE_IS_MIRROR if instance in hosted.mirrors else Disposition.INSTANCE_NOT_HERE
    return Decision(why, matched.step, route, is_by_conversation=matched.is_balanced)


def _nothing_works(matched: Match, facts: RoutingFacts, hosted: Hosted) -> Decision:
    """No class works: the service of a LOCAL route is not here, or what is left holds no address but our own."""
    if matched.step == DELAYED_STEP:
        return Decision(Disposition.NO_ROUTE, DELAYED_STEP)
    route = next((route for route in matched.routes if route.address == LOCAL), None)
    if route is None:
        return Decision(
            Disposition.ROUTE_INVALID, matched.step, matched.routes[0], is_by_conversation=matched.is_balanced
        )
    instance = wanted_instance(route, facts)
    if instance is None:
        return Decision(Disposition.SERVICE_NOT_HERE, matched.step, route)
    if instance in hosted.mirrors:
        return Decision(Disposition.DATABASE_IS_MIRROR, matched.step, route, is_by_conversation=matched.is_balanced)
    if instance not in hosted.services_of:
        return Decision(Disposition.INSTANCE_NOT_HERE, matched.step, route, is_by_conversation=matched.is_balanced)
    # The named database is here and the service is not in it: that database answers with an error (R4.1).
    return Decision(
        Disposition.DELIVERED, matched.step, route, database=instance, is_by_conversation=matched.is_balanced
    )
