"""
The routing decision: a pure function of the routes, the hosted services, the facts of a frame, health, and forwarding.

A reply is delivered to its database at once. Any other frame is matched (`STEPS`), a route is chosen among those that
matched, and a database or a next hop is located. When the route leads back to the deciding instance, this is done once
more. The result is a value: nothing is sent and nothing is remembered, so one function answers the data path and the
question "why".

Matching has the seven steps of the documentation, each a function under its documented number. The first step that
yields a route ends the search, and step 7, "nothing matched", is not an error. Step 3 picks one broker instance by
rendezvous hashing. So all gateways pick the same one, also after a restart, and removing one of n instances moves only
the dialogs that were on it.

Choosing tries four classes in the documented order: mirrored, LOCAL, network address, TRANSPORT. The first class that
has a usable member is taken. Of a mirrored route only the address of the principal is used (R3.1, R6.2); while the
principal is not known, neither address is. Of a network class every distinct address is a candidate. Health decides
which is used now, and among equals a hash of conversation and address decides. So one dialog stays on one path while
that path is healthy and moves when it breaks (R3.5). An address that has answered that the named broker instance is not
there comes after all others: where routes by name lead to several targets, only one of them has the dialog.

Source: Service Broker documentation, "Service Broker Routing", "Finding Matching Routes" and "Choosing a Route".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import IntEnum, StrEnum
from hashlib import sha256
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from broker.flow import Disposition
from broker.protocol.layout import NO_GUID
from broker.routing.address import LOCAL, NetworkAddress, transport_address
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER, Identity, MirroredPair, Route
from broker.routing.table import RouteTable

REPLY_STEP = 0


ANY_INSTANCE_STEP = 2


ASKING_STEP = 4


DELAYED_STEP = 7


# The service that is asked, and the one that asks: frames to either cannot wait for an answer.
NEVER_ASKED_ABOUT = frozenset({BROKER_CONFIGURATION, SERVICE_BROKER})

# Dispositions of frames that no route of an instance leads on.
UNKNOWN_HERE = frozenset(
    {
        Disposition.NO_ROUTE,
        Disposition.FORWARDING_DISABLED,
        Disposition.ROUTE_INVALID,
        Disposition.SERVICE_NOT_HERE,
        Disposition.INSTANCE_NOT_HERE,
    }
)


class AddressHealth(IntEnum):
    """State of an address as far as it is known; the lower is preferred."""

    CONNECTED = 0
    LEAVING = 1  # still connected, to a peer that drains
    UNTRIED = 2
    SUPPRESSED = 3


class RouteClass(StrEnum):
    """The four classes, in the order in which they are tried."""

    MIRRORED = "mirrored"
    LOCAL = "LOCAL"
    NETWORK = "network address"
    TRANSPORT = "TRANSPORT"


HealthOf = Callable[[NetworkAddress], AddressHealth]


Principals = Mapping[MirroredPair, NetworkAddress]
"""Address of the principal of each mirrored pair, as far as it is known."""


NOBODY: Principals = MappingProxyType({})


Refusals = Mapping[NetworkAddress, float]
"""Next hops that have answered that a broker instance is not there, and when (monotonic seconds)."""


class RoutingFacts(Struct, frozen=True):
    """The fields of a frame, or of a conversation about to send one, that decide where it goes. GUIDs are 16 bytes."""

    to_service: str
    to_broker_instance: bytes  # zero = open
    conversation_id: bytes
    is_from_target: bool = False
    database: bytes | None = None  # broker instance of the database that sends; None for a frame from outside
    is_asked: bool = False  # another conversation's request for a route to the service is pending

    @property
    def is_open(self) -> bool:
        """Whether any instance of the service will do."""
        return self.to_broker_instance == NO_GUID

    @property
    def is_incoming(self) -> bool:
        """Whether the frame arrived from outside, so that msdb's routes hold (R1.1)."""
        return self.database is None


class Hosted(Struct, frozen=True):
    """The databases of this instance and their services. Make one with `hosted`."""

    services_of: Mapping[bytes, frozenset[str]] = field(default_factory=dict)  # by broker instance
    databases_with: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)  # by service; sorted: stable choices
    mirrors: frozenset[bytes] = frozenset()  # broker instances of this instance that have their principal elsewhere


def hosted(databases: Mapping[bytes, Iterable[str]], *, mirrors: Iterable[bytes] = ()) -> Hosted:
    """Index the broker instances of this instance, the services of each, and those that are mirrors."""
    services_of = {instance: frozenset(services) for instance, services in databases.items()}
    databases_with: dict[str, list[bytes]] = {}
    for instance in sorted(services_of):
        for service in services_of[instance]:
            databases_with.setdefault(service, []).append(instance)
    return Hosted(
        services_of,
        {service: tuple(instances) for service, instances in databases_with.items()},
        frozenset(mirrors),
    )


class RoutingContext(Struct, frozen=True):
    """Everything about this instance that a decision depends on; replaced whole when any of it changes."""

    table: RouteTable  # searched: of the sending database, or msdb's for incoming messages
    hosted: Hosted
    health_of: HealthOf
    is_forwarding: bool
    msdb: RouteTable = field(default_factory=RouteTable)
    own: AbstractSet[NetworkAddress] = frozenset()  # addresses that lead to this instance
    principals: Principals = field(default_factory=dict)  # of the mirrored pairs in use
    refusals: Mapping[tuple[str, bytes], Refusals] = field(default_factory=dict)  # by service and broker instance

    def with_table(self, table: RouteTable) -> RoutingContext:
        """The same, but this table is searched."""
        return replace(self, table=table)

    def health(self, address: NetworkAddress) -> AddressHealth:
        """State of an address; this instance reaches itself."""
        return AddressHealth.CONNECTED if address in self.own else self.health_of(address)

    def refused(self, facts: RoutingFacts) -> Refusals:
        """The next hops that do not have the broker instance that a frame names."""
        return self.refusals.get((facts.to_service, facts.to_broker_instance), {})


class Match(Struct, frozen=True):
    """The routes that matched, all of one step."""

    step: int  # 1 .. 6, or 7 with no routes
    routes: tuple[Route, ...] = ()
    is_balanced: bool = False  # the conversation id decided which


class Candidate(Struct, frozen=True):
    """One next hop, the route that named it, and its health when the choice was made."""

    address: NetworkAddress
    route: Route
    health: AddressHealth


class RouteChoice(Struct, frozen=True):
    """The class taken."""

    route_class: RouteClass
    routes: tuple[Route, ...]  # its members, each distinct route once (R1.5)
    candidates: tuple[Candidate, ...] = ()  # best first; of a mirrored route its principal, or none while it is unknown


class Decision(Struct, frozen=True):
    """
    The outcome for a frame: a next hop, a database, or the reason why there is neither.

    A conversation that begins here is delayed unless it is FORWARDED or DELIVERED; a frame from outside is dropped.
    """

    disposition: Disposition
    step: int  # of matching, 7 when nothing matched; 0 for a reply
    route: Route | None = None
    candidates: tuple[Candidate, ...] = ()  # when FORWARDED, best first
    database: bytes | None = None  # when DELIVERED, its broker instance
    is_by_conversation: bool = False  # other conversations with this route key may go elsewhere: cache by conversation


class Pass(Struct, frozen=True):
    """One pass of matching and choosing; a route that leads back to this instance causes a second pass."""

    facts: RoutingFacts
    table: RouteTable
    matched: Match | None  # None for a reply
    choice: RouteChoice | None
    decision: Decision


Step = Callable[[RouteTable, Hosted, RoutingFacts], Match | None]


# --- the decision ---


def decide(facts: RoutingFacts, context: RoutingContext, passes: list[Pass] | None = None) -> Decision:
    """
    Decide what becomes of a frame.

    Args:
        facts: Of the frame.
        context: Of this instance.
        passes: A list to append the passes to, for an explanation.

    Returns:
        Every outcome is a value; nothing is raised.
    """
    lone = _decide_lone(facts, context) if passes is None else None
    if lone is not None:
        return lone
    first = _decide(facts, context, context.table, frozenset())
    if passes is not None:
        passes.append(first)
    decision = first.decision
    if not decision.candidates or decision.candidates[0].address not in context.own:
        return decision
    # The route leads back to this instance: as if the frame had come from outside, and never a third time (R3.9).
    second = _decide(replace(facts, database=None), context, context.msdb, context.own)
    if passes is not None:
        passes.append(second)
    is_by_conversation = decision.is_by_conversation or second.decision.is_by_conversation
    return replace(second.decision, is_by_conversation=is_by_conversation)


def _decide_lone(facts: RoutingFacts, context: RoutingContext) -> Decision | None:
    """The same decision at a fifth of the cost, or None where something is to be matched or chosen."""
    route = context.table.lone(facts.to_service)
    if route is None or not isinstance(route.address, NetworkAddress) or route.address in context.own:
        return None
    if facts.is_incoming:
        hosted, instance = context.hosted, facts.to_broker_instance
        is_reply = facts.is_from_target and (instance in hosted.services_of or instance in hosted.mirrors)
        if is_reply or not context.is_forwarding:
            return None
    candidate = Candidate(route.address, route, context.health_of(route.address))
    return Decision(Disposition.FORWARDED, ANY_INSTANCE_STEP, route, candidates=(candidate,))


def _decide(
    facts: RoutingFacts, context: RoutingContext, table: RouteTable, unusable: AbstractSet[NetworkAddress]
) -> Pass:
    """One pass: reply, match, choose, locate."""
    if facts.is_incoming and facts.is_from_target and facts.to_broker_instance in context.hosted.services_of:
        reply = Decision(Disposition.DELIVERED, REPLY_STEP, database=facts.to_broker_instance)
        return Pass(facts, table, None, None, reply)
    if facts.is_incoming and facts.is_from_target and facts.to_broker_instance in context.hosted.mirrors:
        return Pass(facts, table, None, None, Decision(Disposition.DATABASE_IS_MIRROR, REPLY_STEP))
    matched = match(table, context.hosted, facts)
    if matched.step == ASKING_STEP:
        asking = Decision(Disposition.ASKING_FOR_ROUTE, ASKING_STEP, matched.routes[0])
        return Pass(facts, table, matched, None, asking)
    choice = choose(matched.routes, facts, context, unusable=unusable)
    if choice is None:
        return Pass(facts, table, matched, None, _nothing_works(matched, facts, context.hosted))
    return Pass(facts, table, matched, choice, _follow(choice, matched, facts, context))


def _follow(choice: RouteChoice, matched: Match, facts: RoutingFacts, context: RoutingContext) -> Decision:
    """Follow the class that was chosen."""
    route = choice.routes[0]
    if choice.route_class is RouteClass.LOCAL:
        return _locate(route, matched, facts, context.hosted)
    if choice.route_class is RouteClass.MIRRORED and facts.is_incoming:
        principal = choice.candidates[0] if choice.candidates else None
        if principal is not None and principal.address in context.own:
            return _locate_named(principal.route, matched, facts, context.hosted)
    if facts.is_incoming and not context.is_forwarding:
        return _decided(Disposition.FORWARDING_DISABLED, matched, route)
    if not choice.candidates:
        # Probing finds the principal; until one of the two addresses claims it, nothing leaves (R3.1, R6.1).
        return _decided(Disposition.PRINCIPAL_UNKNOWN, matched, route)
    is_by_conversation = matched.is_balanced or len(choice.candidates) > 1
    route, candidates = choice.candidates[0].route, choice.candidates
    return Decision(Disposition.FORWARDED, matched.step, route, candidates, is_by_conversation=is_by_conversation)


def _locate(route: Route, matched: Match, facts: RoutingFacts, hosted: Hosted) -> Decision:
    """Pick the database: the named one, or the sender's own, or one chosen by the conversation (R4.1, R4.2)."""
    instance = wanted_instance(route, facts)
    if instance is not None:
        return _decided(Disposition.DELIVERED, matched, route, instance)
    databases = hosted.databases_with[facts.to_service]
    if facts.database in databases:
        return Decision(Disposition.DELIVERED, matched.step, route, database=facts.database)
    database = max(databases, key=lambda instance: score(facts.conversation_id, instance))
    return Decision(
        Disposition.DELIVERED, matched.step, route, database=database, is_by_conversation=len(databases) > 1
    )


def _locate_named(route: Route, matched: Match, facts: RoutingFacts, hosted: Hosted) -> Decision:
    """
    Return the decision where only the named database may get the message.

    If it is here and does not have the service, it answers with an error (R4.1).
    """
    instance = wanted_instance(route, facts)
    if instance in hosted.services_of:
        return _decided(Disposition.DELIVERED, matched, route, instance)
    reason = Disposition.DATABASE_IS_MIRROR if instance in hosted.mirrors else Disposition.INSTANCE_NOT_HERE
    return _decided(reason, matched, route)


def _nothing_works(matched: Match, facts: RoutingFacts, hosted: Hosted) -> Decision:
    """No class works: the service of a LOCAL route is not here, or no route has an address but our own."""
    if matched.step == DELAYED_STEP:
        return Decision(Disposition.NO_ROUTE, DELAYED_STEP)
    route = next((route for route in matched.routes if route.address == LOCAL), None)
    if route is None:
        return _decided(Disposition.ROUTE_INVALID, matched, matched.routes[0])
    if wanted_instance(route, facts) is None:
        return Decision(Disposition.SERVICE_NOT_HERE, matched.step, route)
    return _locate_named(route, matched, facts, hosted)


def _decided(disposition: Disposition, matched: Match, route: Route, database: bytes | None = None) -> Decision:
    """A decision that depends on the conversation only when step 3 balanced."""
    return Decision(disposition, matched.step, route, database=database, is_by_conversation=matched.is_balanced)


def wanted_instance(route: Route | None, facts: RoutingFacts) -> bytes | None:
    """Return the broker instance that decides the database: the conversation's, or the route's, or None (R4.1)."""
    if not facts.is_open:
        return facts.to_broker_instance
    return route.broker_instance.bytes if route is not None and route.broker_instance is not None else None


# --- matching: the seven steps ---


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
    return Match(ANY_INSTANCE_STEP, routes) if routes else None


def _balanced(table: RouteTable, _hosted: Hosted, facts: RoutingFacts) -> Match | None:
    """Step 3: an open dialog picks one of the broker instances that have routes (R2.3)."""
    weights = table.instances(facts.to_service) if facts.is_open else {}
    if not weights:
        return None
    instance = pick_instance(facts.conversation_id, weights)
    return Match(3, table.routes(facts.to_service, instance), is_balanced=len(weights) > 1)


def _ask(table: RouteTable, _hosted: Hosted, facts: RoutingFacts) -> Match | None:
    """Step 4: a route to the configuration service exists, and it is not asked yet (R2.4); never about itself."""
    if facts.is_asked or facts.to_service in NEVER_ASKED_ABOUT:
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


def affected(table: RouteTable, before: RouteTable) -> AbstractSet[str] | None:
    """
    The services whose frames match other routes in one table than in another; None = it may be any.

    Steps 1 to 3 look at the routes of the service alone; those of steps 4 and 5 are for all services.
    """
    services = table.differing(before)
    if services is None or None in services or BROKER_CONFIGURATION in services:
        return None
    return {service for service in services if service is not None}


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

    Positive; over all conversations, candidate i wins with probability weight_i / sum of weights.
    """
    h = int.from_bytes(sha256(conversation_id + candidate).digest()[:8], "big")
    uniform = (h + 0.5) / 2.0**64
    # The largest hashes round to 1.0, whose logarithm is 0: such a candidate wins.
    return weight / -math.log(uniform) if uniform < 1.0 else math.inf


# --- choosing among the routes that matched ---


def choose(
    routes: Iterable[Route],
    facts: RoutingFacts,
    context: RoutingContext,
    *,
    unusable: Container[NetworkAddress] = frozenset(),
) -> RouteChoice | None:
    """The first class with a member that works, `unusable` addresses apart; None when there is none."""
    distinct = distinct_routes(routes)
    mirrored = tuple(route for route in distinct if class_of(route) is RouteClass.MIRRORED)
    if mirrored:
        return RouteChoice(RouteClass.MIRRORED, mirrored, _principal(mirrored, context))
    local = [route for route in distinct if class_of(route) is RouteClass.LOCAL]
    local = [route for route in local if is_here(route, context.hosted, facts)]
    if local:
        return RouteChoice(RouteClass.LOCAL, tuple(local))
    for route_class in (RouteClass.NETWORK, RouteClass.TRANSPORT):
        members = [(next_hop(route, facts), route) for route in distinct if class_of(route) is route_class]
        usable = [(hop, route) for hop, route in members if hop is not None and hop not in unusable]
        if usable:
            return _forwarded(route_class, usable, facts, context)
    return None


def distinct_routes(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Of identical routes the first (R1.5)."""
    first_of: dict[Identity, Route] = {}
    for route in routes:
        first_of.setdefault(route.identity, route)
    return tuple(first_of.values())


def class_of(route: Route) -> RouteClass:
    """The class that a route is tried in."""
    if route.mirror_address is not None:
        return RouteClass.MIRRORED
    if isinstance(route.address, NetworkAddress):
        return RouteClass.NETWORK
    return RouteClass.LOCAL if route.address == LOCAL else RouteClass.TRANSPORT


def next_hop(route: Route, facts: RoutingFacts) -> NetworkAddress | None:
    """Address that a route leads to: its own, or the one in the service name; None when that has none (R3.6)."""
    return route.address if isinstance(route.address, NetworkAddress) else transport_address(facts.to_service)


def is_here(route: Route, hosted: Hosted, facts: RoutingFacts) -> bool:
    """Whether LOCAL works: the service exists here and, where one is named, so does the broker instance (R3.7)."""
    instance = wanted_instance(route, facts)
    is_database_here = instance is None or instance in hosted.services_of
    return is_database_here and facts.to_service in hosted.databases_with


def preference(address: NetworkAddress, facts: RoutingFacts) -> float:
    """How much a conversation prefers an address among equally healthy ones: the higher wins (R3.5)."""
    return score(facts.conversation_id, str(address).encode())


def _principal(routes: Iterable[Route], context: RoutingContext) -> tuple[Candidate, ...]:
    """The principal of the first pair that has one."""
    for route in routes:
        address = None if route.pair is None else context.principals.get(route.pair)
        if address is not None:
            return (Candidate(address, route, context.health(address)),)
    return ()


def _forwarded(
    route_class: RouteClass, pairs: list[tuple[NetworkAddress, Route]], facts: RoutingFacts, context: RoutingContext
) -> RouteChoice:
    by_address = {address: Candidate(address, route, context.health(address)) for address, route in reversed(pairs)}
    candidates, refusals = list(by_address.values()), context.refused(facts)
    if len(candidates) > 1:
        candidates.sort(
            key=lambda c: (
                refusals.get(c.address, -math.inf),  # the one that refused last is the last one
                c.health,
                -preference(c.address, facts),
                str(c.address),
            )
        )
    return RouteChoice(route_class, tuple(route for _, route in pairs), tuple(candidates))
