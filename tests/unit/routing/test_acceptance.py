"""
The documented routing examples (1a to 7d), the further cases (R1 to R16) that are a routing decision, and the rest of
what the documentation says about a decision.

A decision is asked of a whole instance: the table of the database that sends, msdb's for what arrives. Cases about
dialogs and gateways at work are in tests/property/test_conformance_cases.py. All are in contributors/conformance.md.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from broker.ddl.parser import parse_script
from broker.ddl.statements import CreateRoute
from broker.flow import Disposition
from broker.protocol.layout import NO_GUID
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import AddressHealth, Decision, RoutingContext, RoutingFacts, decide, hosted
from broker.routing.route import AUTO_CREATED_LOCAL, BROKER_CONFIGURATION, MirroredPair, Route, create_route
from broker.routing.table import build_table

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ID1, ID2, ID3 = UUID(int=0x1D1), UUID(int=0x1D2), UUID(int=0x1D3)
SENDER, OTHER = UUID(int=0x5E), UUID(int=0x07)  # two databases of this instance
DATABASES = {SENDER: "the sender's database", OTHER: "the other database"}
DIALOGS = range(64)

NOT_HERE, INSTANCE_NOT_HERE = "service not here", "instance not here"
OFF, NO_ROUTE, INVALID, UNKNOWN = "forwarding disabled", "no route", "route invalid", "principal unknown"
HERE, OWN = "to the other database", "to the sender's database"


def _routes(script: str) -> list[Route]:
    """AutoCreatedLocal and the routes that a script creates."""
    created = [AUTO_CREATED_LOCAL]
    for statement in parse_script(script):
        assert isinstance(statement, CreateRoute)
        created.append(create_route(statement.name, statement.properties, now=NOW))
    return created


class Ask(NamedTuple):
    """A message: begun in the sender's database, or from outside."""

    service: str
    instance: UUID | None = None
    is_incoming: bool = False
    is_from_target: bool = False

    def facts(self, dialog: int = 1) -> RoutingFacts:
        return RoutingFacts(
            self.service,
            NO_GUID if self.instance is None else self.instance.bytes,
            dialog.to_bytes(16, "big"),
            self.is_from_target,
            None if self.is_incoming else SENDER.bytes,
        )


def begun(service: str = "A", instance: UUID | None = None, *, is_from_target: bool = False) -> Ask:
    return Ask(service, instance, is_from_target=is_from_target)


def arrives(service: str = "A", instance: UUID | None = None, *, is_from_target: bool = False) -> Ask:
    return Ask(service, instance, is_incoming=True, is_from_target=is_from_target)


@dataclass
class Instance:
    """An instance with a sending database (`database`, `own`) and another one (`present`)."""

    database: list[Route] = field(default_factory=lambda: [AUTO_CREATED_LOCAL])
    msdb: list[Route] = field(default_factory=lambda: [AUTO_CREATED_LOCAL])
    present: Iterable[str] = ()
    own: Iterable[str] = ()
    is_forwarding: bool = True
    addresses: Iterable[str] = ("this",)
    health_of: Callable[[NetworkAddress], AddressHealth] = lambda _: AddressHealth.UNTRIED
    mirrors: Iterable[UUID] = ()
    principals: Mapping[MirroredPair, NetworkAddress] = field(default_factory=dict)

    def decide(self, ask: Ask, dialog: int = 1, *, after: timedelta = timedelta(0)) -> Decision:
        """The decision, now or later."""
        here = RoutingContext(
            build_table(self.msdb if ask.is_incoming else self.database, now=NOW + after),
            hosted(
                {SENDER.bytes: self.own, OTHER.bytes: self.present}, mirrors=[mirror.bytes for mirror in self.mirrors]
            ),
            self.health_of,
            self.is_forwarding,
            msdb=build_table(self.msdb, now=NOW + after),
            own=frozenset(map(NetworkAddress, self.addresses)),
            principals=self.principals,
        )
        return decide(ask.facts(dialog), here)

    def spread(self, ask: Ask, dialogs: Iterable[int] = DIALOGS) -> list[str]:
        """Where each of these dialogs goes."""
        return [_told(self.decide(ask, dialog)) for dialog in dialogs]


def _told(decision: Decision) -> str:
    """Where a frame goes, in words; of several next hops the first, and the number of others."""
    if decision.database is not None:
        return f"to {DATABASES[UUID(bytes=decision.database)]}"
    if decision.candidates:
        first, *others = decision.candidates
        return f"to {first.address}" + (f" or {len(others)} other" if others else "")
    return str(decision.disposition)


ONE_ELSEWHERE = _routes("CREATE ROUTE OrderPartsRoute WITH SERVICE_NAME = 'OrderParts', ADDRESS = 'tcp://host2:4022/';")
MIRRORED = _routes(
    "CREATE ROUTE OrderPartsRoute WITH SERVICE_NAME = 'OrderParts', BROKER_INSTANCE = "
    f"'{ID1}', ADDRESS = 'tcp://partner1', MIRROR_ADDRESS = 'tcp://partner2';"
)
BARE_MIRROR = [  # CREATE ROUTE refuses the documented form (9661), but a row of that form is routed like any other
    AUTO_CREATED_LOCAL,
    Route("OrderPartsRoute", NetworkAddress("partner1"), "OrderParts", mirror_address=NetworkAddress("partner2")),
]
REST_ELSEWHERE = _routes("CREATE ROUTE ExternalRoute WITH ADDRESS = 'tcp://forwarding';")
BALANCED = _routes(
    f"CREATE ROUTE BalancedRouteOne WITH SERVICE_NAME = 'S', BROKER_INSTANCE = '{ID1}', ADDRESS = 'tcp://server1';"
    f"CREATE ROUTE BalancedRouteTwo WITH SERVICE_NAME = 'S', BROKER_INSTANCE = '{ID2}', ADDRESS = 'tcp://server2';"
)
FORWARD_ONE = _routes("CREATE ROUTE ForwardingRoute WITH SERVICE_NAME = 'Elsewhere', ADDRESS = 'tcp://elsewhere';")
FORWARD_ALL = _routes("CREATE ROUTE ForwardingRoute WITH ADDRESS = 'tcp://forwarding';")
BY_NAME = _routes("CREATE ROUTE ByName WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://name';")[1:]
ASK = _routes(f"CREATE ROUTE Ask WITH SERVICE_NAME = '{BROKER_CONFIGURATION}', ADDRESS = 'LOCAL';")[1:]
ONLY_TRANSPORT = _routes("CREATE ROUTE Direct WITH ADDRESS = 'TRANSPORT';")[1:]
TO_THIS = _routes("CREATE ROUTE Round WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://this:4022';")
TO_OTHER = [Route("Full", LOCAL, "A", OTHER)]
PRINCIPAL_HERE = Route("Full", NetworkAddress("this"), "S", OTHER, mirror_address=NetworkAddress("partner"))
TO_FORWARDING, TO_NAME = "to tcp://forwarding:4022", "to tcp://name:4022"
TO_1, TO_2 = "to tcp://server1:4022", "to tcp://server2:4022"

CASES: list[tuple[str, Instance, Ask, int, str]] = [
    ("1a", Instance(present=["A"]), begun(), 5, HERE),
    ("1a", Instance(own=["A"]), begun(), 5, OWN),
    ("1a", Instance(own=["A"], present=["A"]), begun(), 5, OWN),
    ("1b", Instance(), begun(), 5, NOT_HERE),
    ("1c", Instance(present=["A"]), arrives(), 5, HERE),
    ("1d", Instance(), arrives(), 5, NOT_HERE),
    ("2a", Instance(ONE_ELSEWHERE), begun("OrderParts"), 2, "to tcp://host2:4022"),
    ("2a", Instance(ONE_ELSEWHERE, present=["OrderParts"]), begun("OrderParts"), 2, "to tcp://host2:4022"),
    ("2b", Instance(ONE_ELSEWHERE, present=["A"]), begun(), 5, HERE),
    ("2c", Instance(ONE_ELSEWHERE), begun(), 5, NOT_HERE),
    ("3a", Instance(MIRRORED), begun("OrderParts"), 3, UNKNOWN),
    ("3a", Instance(MIRRORED, present=["OrderParts"]), begun("OrderParts"), 3, UNKNOWN),
    ("3a", Instance(BARE_MIRROR), begun("OrderParts"), 2, UNKNOWN),
    ("3a in msdb", Instance(msdb=MIRRORED, present=["OrderParts"]), arrives("OrderParts", ID1), 1, UNKNOWN),
    ("3b", Instance(MIRRORED, present=["A"]), begun(), 5, HERE),
    ("3c", Instance(MIRRORED), begun(), 5, NOT_HERE),
    ("4a", Instance(REST_ELSEWHERE, present=["A"]), begun(), 5, HERE),
    ("4b", Instance(REST_ELSEWHERE), begun(), 5, TO_FORWARDING),
    ("4b", Instance(REST_ELSEWHERE, is_forwarding=False), begun(), 5, TO_FORWARDING),
    ("4b another instance", Instance(REST_ELSEWHERE, own=["A"]), begun("A", ID1), 5, TO_FORWARDING),
    ("5d", Instance(BALANCED, present=["A"]), begun(), 5, HERE),
    ("5e", Instance(BALANCED), begun(), 5, NOT_HERE),
    ("6a", Instance(msdb=FORWARD_ONE, present=["Elsewhere"]), begun("Elsewhere"), 5, HERE),
    ("6a", Instance(msdb=FORWARD_ONE), begun("Elsewhere"), 5, NOT_HERE),
    ("6b", Instance(msdb=FORWARD_ONE), arrives("Elsewhere"), 2, "to tcp://elsewhere:4022"),
    ("6b", Instance(msdb=FORWARD_ONE, present=["Elsewhere"]), arrives("Elsewhere"), 2, "to tcp://elsewhere:4022"),
    ("6c", Instance(msdb=FORWARD_ONE, is_forwarding=False), arrives("Elsewhere"), 2, OFF),
    ("6c", Instance(msdb=FORWARD_ONE, present=["Elsewhere"], is_forwarding=False), arrives("Elsewhere"), 2, OFF),
    ("6d", Instance(msdb=FORWARD_ONE, present=["A"]), arrives(), 5, HERE),
    ("6d", Instance(msdb=FORWARD_ONE), arrives(), 5, NOT_HERE),
    ("7a", Instance(msdb=FORWARD_ALL, present=["A"]), begun(), 5, HERE),
    ("7a", Instance(msdb=FORWARD_ALL), begun(), 5, NOT_HERE),
    ("7b", Instance(msdb=FORWARD_ALL, present=["A"]), arrives(), 5, HERE),
    ("7b", Instance(msdb=FORWARD_ALL, present=["A"], is_forwarding=False), arrives(), 5, HERE),
    ("7c", Instance(msdb=FORWARD_ALL), arrives(), 5, TO_FORWARDING),
    ("7d", Instance(msdb=FORWARD_ALL, is_forwarding=False), arrives(), 5, OFF),
    ("R1", Instance([*BY_NAME, *BALANCED]), begun("S", ID1), 1, TO_1),
    ("R2", Instance([*BALANCED, *BY_NAME]), begun("S"), 2, TO_NAME),
    ("R3", Instance([*BALANCED, *ASK]), begun("S", ID3), 4, "asking for route"),
    ("R3", Instance([*BALANCED[1:], *REST_ELSEWHERE[1:]]), begun("S", ID3), 5, TO_FORWARDING),
    ("R3", Instance([*BALANCED[1:], *REST_ELSEWHERE[1:]], present=["S"]), begun("S", ID3), 5, TO_FORWARDING),
    ("R3", Instance(BALANCED[1:], present=["S"]), begun("S", ID3), 6, INSTANCE_NOT_HERE),
    ("R3", Instance(BALANCED[1:], present=["S"]), begun("S", OTHER), 6, HERE),
    ("R3", Instance(BALANCED[1:]), begun("S", ID3), 7, NO_ROUTE),
    ("R4", Instance([], present=["S"], own=["S"]), begun("S", OTHER), 6, HERE),
    ("R4", Instance([], present=["S"], own=["S"]), begun("S", SENDER), 6, OWN),
    ("R4", Instance([], present=["S"], own=["S"]), begun("S", ID1), 6, INSTANCE_NOT_HERE),
    # so that it is this database which tells the sender (-8490)
    ("R4 without the service", Instance([], present=["S"]), begun("S", SENDER), 6, OWN),
    ("R4 nowhere here", Instance([]), begun("S", OTHER), 7, NO_ROUTE),
    ("R4 no instance named", Instance([], own=["S"]), begun("S"), 7, NO_ROUTE),
    ("R4 arriving", Instance(msdb=[], own=["S"]), arrives("S"), 7, NO_ROUTE),
    ("R5", Instance(msdb=[*FORWARD_ALL, *BALANCED, *BY_NAME]), arrives("S", OTHER, is_from_target=True), 0, HERE),
    ("R5", Instance(msdb=FORWARD_ALL, is_forwarding=False), arrives("x", OTHER, is_from_target=True), 0, HERE),
    ("R5 elsewhere", Instance(msdb=BALANCED), arrives("S", ID1, is_from_target=True), 1, TO_1),
    ("R5 no instance", Instance(msdb=BY_NAME), arrives("S", is_from_target=True), 2, TO_NAME),
    ("R5 no reply", Instance(msdb=BY_NAME), arrives("S", SENDER), 2, TO_NAME),
    ("R5 begun here", Instance(BY_NAME), begun("S", OTHER, is_from_target=True), 2, TO_NAME),
    ("R9", Instance(TO_THIS, present=["S"]), begun("S"), 5, HERE),
    ("R9", Instance(TO_THIS), begun("S"), 5, NOT_HERE),
    ("R9", Instance(TO_THIS, BY_NAME), begun("S"), 2, TO_NAME),
    ("R9", Instance(TO_THIS, BY_NAME, present=["S"], is_forwarding=False), begun("S"), 2, OFF),
    ("R9", Instance(TO_THIS, FORWARD_ALL, is_forwarding=False), begun("S"), 5, OFF),
    ("R9", Instance(TO_THIS, []), begun("S"), 7, NO_ROUTE),
    # once: an address of this instance in msdb, too, leads nowhere
    ("R9 twice", Instance(TO_THIS, TO_THIS, present=["S"]), begun("S"), 2, INVALID),
    ("R9 arriving", Instance(msdb=TO_THIS, present=["S"]), arrives("S"), 2, INVALID),
    ("R15", Instance(ONLY_TRANSPORT), begun("tcp://h:4022/x"), 5, "to tcp://h:4022"),
    ("R15", Instance(msdb=ONLY_TRANSPORT), arrives("tcp://h:4022/x"), 5, "to tcp://h:4022"),
    ("R15 no address", Instance(ONLY_TRANSPORT), begun("x"), 5, INVALID),
    ("R15 no address", Instance(ONLY_TRANSPORT, present=["x"]), begun("x", OTHER), 5, INVALID),
    ("R15 after LOCAL", Instance([*ONLY_TRANSPORT, AUTO_CREATED_LOCAL]), begun("x"), 5, NOT_HERE),
    ("R16", Instance(msdb=BY_NAME, is_forwarding=False), arrives("S"), 2, OFF),
    ("R16", Instance(msdb=BALANCED, is_forwarding=False), arrives("S", ID1), 1, OFF),
    ("R16", Instance(msdb=MIRRORED, is_forwarding=False), arrives("OrderParts"), 3, OFF),
    ("R16", Instance(msdb=ONLY_TRANSPORT, is_forwarding=False), arrives("tcp://h/x"), 5, OFF),
    # LOCAL counts only in the table that is searched
    ("no LOCAL", Instance(database=[], present=["A"]), begun(), 7, NO_ROUTE),
    ("no LOCAL", Instance(msdb=[], present=["A"]), arrives(), 7, NO_ROUTE),
    # what matches
    ("by name", Instance(BY_NAME), begun("S", ID3), 2, TO_NAME),
    ("no name", Instance(REST_ELSEWHERE), begun("anything", ID1), 5, TO_FORWARDING),
    # a mirror address is no advantage in matching: an open dialog finds the route by name first
    (
        "mirror",
        Instance([*MIRRORED, Route("n", NetworkAddress("name"), "OrderParts")]),
        begun("OrderParts"),
        2,
        TO_NAME,
    ),
    # the broker instance in the route or in the dialog decides the database
    ("in the route", Instance(TO_OTHER, own=["A"], present=["A"]), begun(), 3, HERE),
    ("in the dialog", Instance(own=["A"], present=["A"]), begun("A", OTHER), 5, HERE),
    ("elsewhere", Instance([Route("Full", LOCAL, "A", ID1)], own=["A"]), begun(), 3, INSTANCE_NOT_HERE),
    ("elsewhere", Instance(present=["S"]), arrives("S", ID1), 5, INSTANCE_NOT_HERE),
    ("elsewhere", Instance(msdb=BALANCED, present=["S"]), arrives("S", ID1), 1, TO_1),
    ("without the service", Instance(own=["A"]), arrives("A", OTHER), 5, HERE),
    ("without the service", Instance(), arrives("A", OTHER), 5, HERE),
    # a LOCAL route for each service does without AutoCreatedLocal
    ("LOCAL by name", Instance(TO_OTHER, present=["A", "B"]), begun(), 3, HERE),
    ("LOCAL by name", Instance(TO_OTHER, present=["A", "B"]), begun("B"), 7, NO_ROUTE),
    ("LOCAL by name", Instance(msdb=TO_OTHER, present=["A", "B"]), arrives("A", OTHER), 1, HERE),
    ("LOCAL by name", Instance(msdb=TO_OTHER, present=["A", "B"]), arrives("B"), 7, NO_ROUTE),
    # asking for a route comes before the last resort, and never for the service that is asked
    ("asking", Instance([*REST_ELSEWHERE, *ASK], present=["A"]), begun(), 4, "asking for route"),
    ("asking", Instance(msdb=[*FORWARD_ALL, *ASK], present=["A"]), arrives(), 4, "asking for route"),
    ("asking", Instance([*BY_NAME, *ASK]), begun("S"), 2, TO_NAME),
    ("asking", Instance([*BY_NAME, *ASK], present=[BROKER_CONFIGURATION]), begun(BROKER_CONFIGURATION), 2, HERE),
]


@pytest.mark.parametrize(
    ("instance", "ask", "step", "to"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_case(instance: Instance, ask: Ask, step: int, to: str) -> None:
    """Each row has the mark of its case in contributors/conformance.md, its step of matching, and where it goes."""
    decision = instance.decide(ask)

    assert (step, to, False) == (decision.step, _told(decision), decision.is_by_conversation)


def test_a_decision_names_the_route_it_followed_or_the_local_one_that_did_not_work() -> None:
    local_and_more = Instance([*REST_ELSEWHERE[1:], AUTO_CREATED_LOCAL, *ONLY_TRANSPORT], own=["A"])
    transport = Instance([*ONLY_TRANSPORT, AUTO_CREATED_LOCAL])

    decided = [local_and_more.decide(begun("A")), local_and_more.decide(begun("B")), transport.decide(begun("x"))]

    assert [AUTO_CREATED_LOCAL, REST_ELSEWHERE[1], AUTO_CREATED_LOCAL] == [one.route for one in decided]


@pytest.mark.promise("R2.3", "5a", "routing 11", "routes 12", "multiple 6", "multiple 7", "multiple 9", "multiple 26")
def test_case_5a_each_open_dialog_takes_one_route_and_dialogs_differ() -> None:
    instance = Instance(BALANCED)

    taken, decided = instance.spread(begun("S"), range(2000)), instance.decide(begun("S"))

    assert Counter(taken) == pytest.approx({TO_1: 1000, TO_2: 1000}, abs=100)
    assert taken[:64] == instance.spread(begun("S"))
    assert (3, True) == (decided.step, decided.is_by_conversation)


@pytest.mark.parametrize(("named", "to"), [(ID2, TO_2), (ID1, TO_1)], ids=["5b", "5c"])
@pytest.mark.promise("5b", "5c", "routes 7", "routes 13", "multiple 8", "multiple 13")
def test_case_5b_5c_dialog_that_names_an_instance_takes_its_route_whatever_its_hash(named: UUID, to: str) -> None:
    assert {to} == set(Instance(BALANCED).spread(begun("S", named)))


@pytest.mark.promise("case R6", "multiple 9", "multiple 15")
def test_case_r6_route_listed_twice_does_not_change_the_split() -> None:
    again = Route("BalancedRouteThree", NetworkAddress("server2"), "S", ID2)
    other = Route("BalancedRouteFour", NetworkAddress("server4"), "S", ID2)

    one, two, three = (Instance([*BALANCED, *more]).spread(begun("S"), range(500)) for more in ([], [again], [other]))

    assert one == two
    assert [to == TO_1 for to in one] == [to == TO_1 for to in three]


GATEWAYS = [Route(host, NetworkAddress(host), "S", ID1) for host in ("gateway-a", "gateway-b")]
HOSTS = [Route(host, NetworkAddress(host), "S") for host in ("gateway-a", "gateway-b")]


@pytest.mark.parametrize("lost", ["gateway-a", "gateway-b"])
@pytest.mark.parametrize("routes", [GATEWAYS, HOSTS], ids=["R7 one instance", "R8 by name"])
@pytest.mark.promise("R3.5", "case R8", "routes 10", "multiple 12", "multiple 16", "multiple 22")
def test_case_r7_r8_every_matching_address_is_a_candidate_and_a_lost_one_comes_last(
    routes: list[Route], lost: str
) -> None:
    kept = next(route.address for route in routes if route.name != lost)
    instance = Instance(
        routes, health_of=lambda address: AddressHealth.SUPPRESSED if address.host == lost else AddressHealth.CONNECTED
    )

    assert {f"to {kept} or 1 other"} == set(instance.spread(begun("S")))
    assert instance.decide(begun("S")).is_by_conversation


@pytest.mark.promise("case R10", "routing 3")
def test_case_r10_expired_route_is_ignored_at_the_next_classification() -> None:
    script = "CREATE ROUTE Passing WITH SERVICE_NAME = 'S', LIFETIME = 60, ADDRESS = 'tcp://passing';"
    instance = Instance(_routes(script), present=["S"])

    told = [_told(instance.decide(begun("S"), after=timedelta(seconds=seconds))) for seconds in (0, 59, 60, 3600)]

    assert ["to tcp://passing:4022"] * 2 + [HERE] * 2 == told


def test_an_own_address_counts_as_connected() -> None:
    routes = [Route(host, NetworkAddress(host), "S") for host in ("this", "far")]
    instance = Instance(routes, msdb=[], health_of=lambda _: AddressHealth.SUPPRESSED)

    assert [NO_ROUTE] * 64 == instance.spread(begun("S"))
    assert instance.decide(begun("S")).is_by_conversation  # either pass has a say


@pytest.mark.parametrize(
    "routes", [ONE_ELSEWHERE, MIRRORED, REST_ELSEWHERE, BALANCED, FORWARD_ONE, BY_NAME, ASK, ONLY_TRANSPORT, []]
)
@pytest.mark.promise("routing 2", "forwarding 4", "multiple 28")
def test_same_table_leads_alike_what_begins_here_and_what_arrives(routes: list[Route]) -> None:
    """While forwarding is on; so a gateway picks for an open dialog what its sender would have picked."""
    here = Instance(routes, routes, present=["S", "A"])

    for service in ("OrderParts", "S", "Elsewhere", "A", "tcp://h/x"):
        for named in (None, ID1, ID3, OTHER):
            assert here.spread(begun(service, named), range(8)) == here.spread(arrives(service, named), range(8))


@pytest.mark.parametrize("service", ["s", "S ", " S", "\u0405", "SS", ""])
@pytest.mark.promise("R1.2", "routes 3")
def test_names_compare_byte_for_byte(service: str) -> None:
    assert NO_ROUTE == _told(Instance(BY_NAME).decide(begun(service)))


@pytest.mark.promise("R1.2")
def test_broker_instances_compare_as_values() -> None:
    text = str(ID1).upper()
    spelt = f"CREATE ROUTE Full WITH SERVICE_NAME = 'S', BROKER_INSTANCE = '{{{text}}}', ADDRESS = 'tcp://full';"

    assert "to tcp://full:4022" == _told(Instance(_routes(spelt)[1:]).decide(begun("S", ID1)))


@pytest.mark.promise("case R7", "multiple 18", "multiple 29")
def test_four_gateways_in_two_pairs_share_the_dialogs_and_each_dialog_has_one_pair() -> None:
    places = (("a", ID1), ("b", ID1), ("c", ID2), ("d", ID2))
    gateways = [Route(host, NetworkAddress(f"gateway-{host}"), "S", instance) for host, instance in places]
    decided = [Instance(gateways).decide(begun("S"), dialog) for dialog in range(1000)]

    pairs = Counter(frozenset(candidate.address.host[-1] for candidate in one.candidates) for one in decided)

    assert pairs == pytest.approx({frozenset("ab"): 500, frozenset("cd"): 500}, abs=60)
    assert {f"to tcp://gateway-{host}:4022 or 1 other" for host in "abcd"} == {_told(one) for one in decided}


@pytest.mark.promise("R4.2", "routing 28", "multiple 6")
def test_databases_with_the_service_share_open_dialogs_and_each_dialog_stays_with_one() -> None:
    instance = Instance(own=["S"], present=["S"])

    taken = instance.spread(arrives("S"), range(400))

    assert Counter(taken) == pytest.approx({HERE: 200, OWN: 200}, abs=60)
    assert taken[:64] == instance.spread(arrives("S"))
    assert instance.decide(arrives("S")).is_by_conversation


TO_SERVER2 = Route("two", NetworkAddress("server2"), "S", ID2)


@pytest.mark.parametrize(
    ("route", "more", "to"),
    [
        (Route("l", LOCAL, "S", ID1), {}, INSTANCE_NOT_HERE),
        (Route("l", LOCAL, "S", OTHER), {}, HERE),
        (Route("m", NetworkAddress("a"), "S", ID1, mirror_address=NetworkAddress("b")), {}, UNKNOWN),
        (Route("l", LOCAL, "S", OTHER), {"present": ["S"], "is_forwarding": False}, HERE),
    ],
    ids=["not here", "answers with an error", "no principal", "forwarding off"],
)
def test_balanced_decision_is_by_conversation_whatever_becomes_of_it(
    route: Route, more: dict[str, Any], to: str
) -> None:
    """A drop remembered for one dialog must not drop the dialogs that pick another instance."""
    instance = Instance(msdb=[route, TO_SERVER2], **more)
    decided = [instance.decide(arrives("S"), dialog) for dialog in range(32)]

    assert {to, OFF if more else TO_2} == {_told(decision) for decision in decided}
    assert all(decision.is_by_conversation for decision in decided)


# --- mirrors here, and mirrored routes ---


@pytest.mark.parametrize(
    ("ask", "routes", "step"),
    [
        (arrives("S", ID1), [AUTO_CREATED_LOCAL], 5),
        (arrives("S", ID1), [Route("l", LOCAL, "S", ID1)], 1),
        (arrives("S"), [Route("l", LOCAL, "S", ID1)], 3),
        (arrives("S", ID1), [], 6),
        (arrives("S", ID1, is_from_target=True), BY_NAME, 0),
        (begun("S", ID1), [AUTO_CREATED_LOCAL], 5),
    ],
)
@pytest.mark.parametrize("present", [[], ["S"]])
def test_what_is_for_a_mirror_here_is_refused(ask: Ask, routes: list[Route], step: int, present: list[str]) -> None:
    decision = Instance(routes, routes, present=present, mirrors=[ID1]).decide(ask)

    assert (Disposition.DATABASE_IS_MIRROR, step, None) == (decision.disposition, decision.step, decision.database)
    assert HERE == _told(Instance(present=["S"], mirrors=[ID1]).decide(arrives("S", OTHER)))


def _led(pair: Route, principal: str, **more: Any) -> Instance:
    assert pair.pair is not None
    return Instance([pair], [pair], principals={pair.pair: NetworkAddress(principal)}, **more)


@pytest.mark.parametrize("ask", [begun("OrderParts", ID1), begun("OrderParts"), arrives("OrderParts", ID1)])
@pytest.mark.parametrize("principal", ["partner1", "partner2"])
@pytest.mark.promise("R6.2", "routing 34")
def test_everything_goes_to_the_principal(ask: Ask, principal: str) -> None:
    decision = _led(MIRRORED[1], principal, health_of=lambda _: AddressHealth.SUPPRESSED).decide(ask)

    assert MIRRORED[1] == decision.route
    assert [(principal, AddressHealth.SUPPRESSED)] == [(one.address.host, one.health) for one in decision.candidates]
    assert not decision.is_by_conversation


@pytest.mark.parametrize("ask", [begun("S", OTHER), arrives("S", OTHER), arrives("S")])
def test_what_comes_to_the_principal_itself_is_delivered(ask: Ask) -> None:
    """Both partners may have the same routes."""
    decision = _led(PRINCIPAL_HERE, "this", present=["S"], is_forwarding=False).decide(ask)

    assert (HERE, PRINCIPAL_HERE) == (_told(decision), decision.route)


def test_what_arrives_for_a_principal_elsewhere_or_one_without_its_database_goes_nowhere() -> None:
    off = _led(MIRRORED[1], "partner1", is_forwarding=False)
    gone = _led(MIRRORED[1], "partner1", addresses=["partner1"])
    mirror = _led(MIRRORED[1], "partner1", addresses=["partner1"], mirrors=[ID1])
    partner = _led(MIRRORED[1], "partner2", addresses=["partner1"])

    told = [_told(one.decide(arrives("OrderParts", ID1))) for one in (off, gone, mirror, partner)]

    assert [OFF, INSTANCE_NOT_HERE, "database is a mirror", "to tcp://partner2:4022"] == told


# --- cost ---


def _steps(here: RoutingContext, facts: RoutingFacts) -> int:
    """How many byte codes a decision takes, all functions together."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    decide(facts, here)  # what is remembered from the first time on is no part of it
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        decide(facts, here)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("named", [None, ID1])
@pytest.mark.parametrize("service", ["service 7", "absent"])
@pytest.mark.promise("R1.7")
def test_decision_takes_as_many_steps_in_a_large_table_as_in_a_small_one(service: str, named: UUID | None) -> None:
    def here(size: int) -> RoutingContext:
        services = [Route(f"route {n}", NetworkAddress("far"), f"service {n}") for n in range(size)]
        full = [Route(f"full {n}", NetworkAddress("far"), f"service {n}", ID1) for n in range(size)]
        return RoutingContext(
            build_table([AUTO_CREATED_LOCAL, *services, *full], now=NOW),
            hosted({}),
            lambda _: AddressHealth.UNTRIED,
            is_forwarding=True,
        )

    assert (
        _steps(here(10), arrives(service, named).facts()) == _steps(here(10_000), arrives(service, named).facts()) > 0
    )
