"""
A second router: slow, obvious, and written from the prose alone.

One function for each paragraph of "Service Broker Routing"; its docstring gives the mark of the rule and the sense of
the sentence. Tables are plain sequences of routes that are read from end to end; a route is held against the clock at
every classification. It shares with the router the values that go in (routes, addresses, facts) and the names of the
outcomes, and not one line of what happens in between, so a disagreement is an error in one of them or a hole in the
prose.

Where the prose leaves something open, the answer leaves it open too: `databases` is every database that would be
right.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal, localcontext
from hashlib import sha256
from uuid import UUID

from msgspec import structs

from broker.flow import Disposition
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.decide import AddressHealth, RoutingFacts
from broker.routing.route import Route

DYNAMIC_ROUTING_SERVICE = "SQL/ServiceBroker/BrokerConfiguration"
SERVICE_THAT_ASKS = "http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker"

_ADDRESS_AT_THE_BEGINNING = re.compile(r"tcp://([a-z0-9_.-]+)(?::([0-9]+))?(?:/.*)?", re.IGNORECASE | re.DOTALL)
_PORT_OF_SERVICE_BROKER = 4022
_BEST_FIRST = (AddressHealth.CONNECTED, AddressHealth.LEAVING, AddressHealth.UNTRIED, AddressHealth.SUPPRESSED)


@dataclass(frozen=True)
class Instance:
    """
    One instance of the server, as the prose speaks of it.

    Shape: `routes` broker instance of a database -> its sys.routes; `msdb` msdb.sys.routes; `services` broker
    instance of a database -> the services in it; `health` what is remembered of an address, nothing if absent; `own`
    the addresses that resolve to this instance; `now` UTC.
    """

    now: datetime
    msdb: tuple[Route, ...] = ()
    routes: Mapping[bytes, tuple[Route, ...]] = field(default_factory=dict)
    services: Mapping[bytes, frozenset[str]] = field(default_factory=dict)
    health: Mapping[NetworkAddress, AddressHealth] = field(default_factory=dict)
    own: frozenset[NetworkAddress] = frozenset()
    is_forwarding: bool = True

    def health_of(self, address: NetworkAddress) -> AddressHealth:
        """What is remembered of an address; this instance always reaches itself (R3.9)."""
        return AddressHealth.CONNECTED if address in self.own else self.health.get(address, AddressHealth.UNTRIED)


@dataclass(frozen=True)
class Answer:
    """
    What becomes of the message.

    Shape: `step` 0 .. 7 of the last classification; `route` the name of the route chosen, None when none is;
    `addresses` where the transport may send it, best first; `databases` the broker instances it may be delivered to,
    each as right as the other; `matching` the names of the routes that matched; `passes` 2 when it was classified
    again because an address led back here.
    """

    disposition: Disposition
    step: int
    route: str | None = None
    addresses: tuple[NetworkAddress, ...] = ()
    databases: frozenset[bytes] = frozenset()
    matching: tuple[str, ...] = field(default=(), compare=False)
    passes: int = 1


def answer_of(facts: RoutingFacts, here: Instance) -> Answer:
    """
    R3.9.

    "If the matching route contains a network address that resolves to the current instance, the conversation is
    treated as though it originated outside of the instance ... In particular, message forwarding must be active."
    Ours: it is never treated so a third time.
    """
    answer = _classify(facts, here, leads_back=frozenset())
    if not (answer.addresses and answer.addresses[0] in here.own):
        return answer
    return replace(_classify(structs.replace(facts, database=None), here, leads_back=here.own), passes=2)


def outcome_of(facts: RoutingFacts, answer: Answer) -> str:
    """
    R2.7, R3.1: what becomes of it in one word.

    "Failure to find a matching route is not considered an error", the conversation is delayed; ours: only one that
    begins here can be. What waits for its principal is held, wherever it comes from.
    """
    if answer.disposition in (Disposition.FORWARDED, Disposition.DELIVERED):
        return answer.disposition.value
    if answer.disposition is Disposition.PRINCIPAL_UNKNOWN:
        return "held"
    return "dropped" if facts.is_incoming else "delayed"


def _classify(facts: RoutingFacts, here: Instance, *, leads_back: frozenset[NetworkAddress]) -> Answer:
    """R2, R3: "first, finding matching routes; second, choosing a route; third, locating the destination service"."""
    if _is_reply_to_a_database_here(facts, here):
        return Answer(Disposition.DELIVERED, 0, databases=frozenset({facts.to_broker_instance}))
    step, matching = _find_matching_routes(facts, _live_routes(facts, here), here)
    if step == 7:
        return Answer(Disposition.NO_ROUTE, step)
    if step == 4:
        answer = Answer(Disposition.ASKING_FOR_ROUTE, step, matching[0].name)
    else:
        different = _different(matching)
        chosen = _choose(facts, different, here, leads_back)
        answer = _follow(facts, chosen, here) if chosen else _nothing_works(facts, different, here)
    return replace(answer, step=step, matching=tuple(route.name for route in matching))


# --- reply messages from a target service -------------------------------------------------------------------


def _is_reply_to_a_database_here(facts: RoutingFacts, here: Instance) -> bool:
    """
    R2.0.

    "When a message arriving from outside of the instance is from a target service, check to see if the current
    instance contains the service broker identifier in the message. If so, it is delivered within the instance."
    """
    return facts.is_incoming and facts.is_from_target and facts.to_broker_instance in here.services


# --- finding matching routes --------------------------------------------------------------------------------


def _live_routes(facts: RoutingFacts, here: Instance) -> list[Route]:
    """
    R1.1, R1.4.

    "Each database contains a local routing table, sys.routes, for conversations begun in that database. For
    conversations that arrive from outside the instance, msdb.sys.routes is searched." "The process ignores routes
    that have expired." Ours: by name, so that "the first" means something.
    """
    table = here.msdb if facts.database is None else here.routes[facts.database]
    live = [route for route in table if route.lifetime is None or here.now < route.lifetime]
    return sorted(live, key=lambda route: route.name)


def _find_matching_routes(facts: RoutingFacts, live: list[Route], here: Instance) -> tuple[int, list[Route]]:
    """R2: "at each step, if one or more routes match, the matching process ends"."""
    steps = (
        _same_service_and_instance(facts, live),
        _same_service_without_instance(facts, live),
        _same_service_one_of_the_instances(facts, live),
        _dynamic_routing_service(facts, live),
        _neither_service_nor_instance(live),
        _as_though_local(facts, here),
    )
    for step, matching in enumerate(steps, start=1):
        if matching:
            return step, matching
    return 7, []


def _same_service_and_instance(facts: RoutingFacts, live: list[Route]) -> list[Route]:
    """
    R2.1.

    "If the conversation specifies a service broker identifier, find a route with an exact match for both the service
    name and the service broker identifier."
    """
    if facts.is_open:
        return []
    wanted = UUID(bytes=facts.to_broker_instance)
    return [r for r in live if r.remote_service_name == facts.to_service and r.broker_instance == wanted]


def _same_service_without_instance(facts: RoutingFacts, live: list[Route]) -> list[Route]:
    """R2.2: "an exact match for the service name among routes that do not specify a service broker identifier"."""
    return [r for r in live if r.remote_service_name == facts.to_service and r.broker_instance is None]


def _same_service_one_of_the_instances(facts: RoutingFacts, live: list[Route]) -> list[Route]:
    """
    R2.3.

    "If the conversation does not specify a service broker identifier, find an exact match for the service name among
    routes that specify one. If there are different service broker identifiers, arbitrarily pick one and match only
    the routes that use it."
    """
    if not facts.is_open:
        return []
    named = [r for r in live if r.remote_service_name == facts.to_service and r.broker_instance is not None]
    picked = _pick_instance(facts.conversation_id, named)
    return [r for r in named if r.broker_instance == picked]


def _pick_instance(conversation_id: bytes, named: list[Route]) -> UUID | None:
    """
    R2.3: a hash of the dialog's identifier, so that every message of a dialog goes to the same instance.

    "The number of routes with the same broker ID doesn't change the probability of that ID being picked up." Ours:
    rendezvous hashing, an instance weighing as much as the heaviest route to it; the lower GUID on a tie.
    """
    weights: dict[UUID, int] = {}
    for route in named:
        if route.broker_instance is not None:
            weights[route.broker_instance] = max(route.weight, weights.get(route.broker_instance, 0))
    best: UUID | None = None
    best_score = Decimal(0)
    for instance in sorted(weights, key=lambda each: each.bytes):
        score = _score(conversation_id + instance.bytes, weights[instance])
        if score > best_score:
            best, best_score = instance, score
    return best


def _score(hashed: bytes, weight: int) -> Decimal:
    """R2.3: weight / -ln((h + 0.5) / 2^64), h the first 8 bytes of the SHA-256; in more digits than a float has."""
    with localcontext() as context:
        context.prec = 60
        h = Decimal(int.from_bytes(sha256(hashed).digest()[:8], "big"))
        return Decimal(weight) / -((h + Decimal("0.5")) / Decimal(2**64)).ln()


def _dynamic_routing_service(facts: RoutingFacts, live: list[Route]) -> list[Route]:
    """
    R2.4: "if a route to a dynamic routing service is present ... mark the conversation delayed and request routing
    information from that service".

    While a request is pending it is waited for. That service itself, and the one that asks, are reached without it.
    """
    if facts.to_service in (DYNAMIC_ROUTING_SERVICE, SERVICE_THAT_ASKS):
        return []
    return [r for r in live if r.remote_service_name == DYNAMIC_ROUTING_SERVICE]


def _neither_service_nor_instance(live: list[Route]) -> list[Route]:
    """R2.5: "find a route that specifies neither the service name nor the service broker identifier"."""
    return [r for r in live if r.remote_service_name is None and r.broker_instance is None]


def _as_though_local(facts: RoutingFacts, here: Instance) -> list[Route]:
    """
    R2.6.

    "If the conversation specifies a service broker identifier and if the instance contains one or more databases
    that contain services with names that match, route the conversation as though the routing table contained a route
    with the service name and the network address 'LOCAL'."
    """
    if facts.is_open or not _databases_with(facts.to_service, here):
        return []
    return [Route("", LOCAL, facts.to_service)]


# --- choosing a route ---------------------------------------------------------------------------------------


def _different(matching: Iterable[Route]) -> list[Route]:
    """
    R1.5: "routes that have the same service broker identifier, service name, and network address are considered to
    be identical"; ours: and the same mirror address. The first stands for all of them.
    """
    different: dict[object, Route] = {}
    for r in matching:
        different.setdefault((r.broker_instance, r.remote_service_name, r.address, r.mirror_address), r)
    return list(different.values())


def _choose(
    facts: RoutingFacts, routes: list[Route], here: Instance, leads_back: frozenset[NetworkAddress]
) -> list[Route]:
    """R3: "at each step, the process continues if there are no routes that match the address specification"."""
    return (
        _mirrored(routes)
        or _local_and_here(facts, routes, here)
        or _network(routes, leads_back)
        or _transport(facts, routes, leads_back)
    )


def _mirrored(routes: list[Route]) -> list[Route]:
    """R3.1: "the routes that specify a mirror address"."""
    return [r for r in routes if r.mirror_address is not None]


def _local_and_here(facts: RoutingFacts, routes: list[Route], here: Instance) -> list[Route]:
    """
    R3.2: "the routes that specify 'LOCAL'. If this instance does not contain a service that matches the name specified
    in the conversation, continue".

    R3.7: likewise when the database named by conversation or route is not in this instance.
    """
    if not _databases_with(facts.to_service, here):
        return []
    return [r for r in _local(routes) if _named_instance(facts, r) in (None, *here.services)]


def _network(routes: list[Route], leads_back: frozenset[NetworkAddress]) -> list[Route]:
    """R3.3: "the routes that specify a network address"."""
    return [r for r in routes if isinstance(r.address, NetworkAddress) and r.address not in leads_back]


def _transport(facts: RoutingFacts, routes: list[Route], leads_back: frozenset[NetworkAddress]) -> list[Route]:
    """R3.4, R3.6: "the routes that specify 'TRANSPORT'": "the transport layer deduces the address from the name"."""
    address = _address_in(facts.to_service)
    return [r for r in routes if r.address == TRANSPORT and address is not None and address not in leads_back]


def _follow(facts: RoutingFacts, chosen: list[Route], here: Instance) -> Answer:
    """
    R3.8.

    "If broker forwarding is not active, Service Broker drops the message if the conversation does not originate in
    the current instance and the address of the route chosen is not 'LOCAL'."

    R3.1: while the principal of a mirrored route is not known the message is held; it does not go another way.
    """
    route = chosen[0]
    if route.address == LOCAL:
        return Answer(Disposition.DELIVERED, 0, route.name, databases=_locate(facts, route, here))
    if facts.is_incoming and not here.is_forwarding:
        return Answer(Disposition.FORWARDING_DISABLED, 0, route.name)
    if route.mirror_address is not None:
        return Answer(Disposition.PRINCIPAL_UNKNOWN, 0, route.name)
    return _pass_to_the_transport(facts, chosen, here)


def _pass_to_the_transport(facts: RoutingFacts, chosen: list[Route], here: Instance) -> Answer:
    """
    R3.5: "broker passes all matching routes to the underlying transport layer".

    Ours: a connected address before one not yet tried before a suppressed one; among equals the hash of conversation
    and address, then the text. The route is the first of those to the best address.
    """
    first_to: dict[NetworkAddress, str] = {}
    for route in chosen:
        address = route.address if isinstance(route.address, NetworkAddress) else _address_in(facts.to_service)
        if address is not None:
            first_to.setdefault(address, route.name)

    def rank(address: NetworkAddress) -> tuple[int, Decimal, str]:
        health = _BEST_FIRST.index(here.health_of(address))
        return health, -_score(facts.conversation_id + str(address).encode(), 1), str(address)

    addresses = tuple(sorted(first_to, key=rank))
    return Answer(Disposition.FORWARDED, 0, first_to[addresses[0]], addresses)


def _address_in(service_name: str) -> NetworkAddress | None:
    """
    R3.6: "works only when the service name itself starts with something valid as a next-hop address".

    The port may be left out. Host names only: an IPv6 address is a matter of the parser's own tests.
    """
    found = _ADDRESS_AT_THE_BEGINNING.fullmatch(service_name)
    if found is None:
        return None
    port = _PORT_OF_SERVICE_BROKER if found[2] is None else int(found[2])
    return NetworkAddress(found[1].lower(), port) if 1 <= port <= 65535 else None


def _nothing_works(facts: RoutingFacts, routes: list[Route], here: Instance) -> Answer:
    """
    R3.7, R4.1, R4.3: the reason why no route among those that matched can be used.

    "Error only when the named database is here and the service is not": that database is given the message, and
    answers so.
    """
    if not _local(routes):
        return Answer(Disposition.ROUTE_INVALID, 0, routes[0].name)
    route = _local(routes)[0]
    instance = _named_instance(facts, route)
    if instance is None:
        return Answer(Disposition.SERVICE_NOT_HERE, 0, route.name)
    if instance not in here.services:
        return Answer(Disposition.INSTANCE_NOT_HERE, 0, route.name)
    return Answer(Disposition.DELIVERED, 0, route.name, databases=frozenset({instance}))


def _local(routes: list[Route]) -> list[Route]:
    return [r for r in routes if r.address == LOCAL]


# --- locating the destination service -----------------------------------------------------------------------


def _locate(facts: RoutingFacts, route: Route, here: Instance) -> frozenset[bytes]:
    """
    R4.1: "when a service broker identifier exists in either the conversation or the route, deliver to the database
    identified by it".

    R4.2: "otherwise first search the database that contains the conversation, then the other databases; the order is
    unspecified".
    """
    instance = _named_instance(facts, route)
    if instance is not None:
        return frozenset({instance})
    databases = _databases_with(facts.to_service, here)
    if facts.database is not None and facts.database in databases:
        return frozenset({facts.database})
    return databases


def _named_instance(facts: RoutingFacts, route: Route) -> bytes | None:
    """R4.1: the service broker identifier "in either the conversation or the route"."""
    if not facts.is_open:
        return facts.to_broker_instance
    return None if route.broker_instance is None else route.broker_instance.bytes


def _databases_with(service: str, here: Instance) -> frozenset[bytes]:
    """The databases of this instance that contain a service of exactly this name."""
    return frozenset(database for database, services in here.services.items() if service in services)
