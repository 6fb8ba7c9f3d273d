"""
The documented routing examples (1a to 7d), the further cases (R1 to R16) that are a routing decision, and the rest of
what the documentation says about a decision.

Each test is named after its case, has the tables of the case as statements, and says in words where a frame goes. A
decision is asked of a whole instance: the table of the database that sends, msdb's for what arrives. Cases that are
about dialogs and gateways at work are in tests/property/test_conformance_cases.py; docs/conformance.md lists them all.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any
from uuid import UUID

import pytest

from broker.ddl.parser import parse_script
from broker.ddl.statements import CreateRoute
from broker.flow import Disposition
from broker.protocol.layout import NO_GUID
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Decision, RoutingContext, RoutingFacts, decide, hosted
from broker.routing.route import AUTO_CREATED_LOCAL, BROKER_CONFIGURATION, Route, create_route
from broker.routing.table import build_table

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ID1, ID2, ID3 = UUID(int=0x1D1), UUID(int=0x1D2), UUID(int=0x1D3)
SENDER, OTHER = UUID(int=0x5E), UUID(int=0x07)  # two databases of this instance
DATABASES = {SENDER: "the sender's database", OTHER: "the other database"}
DIALOGS = range(64)

NOT_HERE = "service not here"
OFF = "forwarding disabled"
LOCALLY = "to the other database"


def _routes(script: str) -> list[Route]:
    """The routes that a script creates, behind AutoCreatedLocal."""
    created = [AUTO_CREATED_LOCAL]
    for statement in parse_script(script):
        assert isinstance(statement, CreateRoute)
        created.append(create_route(statement.name, statement.properties, now=NOW))
    return created


@dataclass
class Instance:
    """
    An instance with a sending database and another one.

    Shape: `database` and `msdb` route tables; `present` services of the other database, `own` of the sender's;
    `address` what leads to this instance.
    """

    database: list[Route] = field(default_factory=lambda: [AUTO_CREATED_LOCAL])
    msdb: list[Route] = field(default_factory=lambda: [AUTO_CREATED_LOCAL])
    present: Iterable[str] = ()
    own: Iterable[str] = ()
    is_forwarding: bool = True
    address: str = "this"
    health_of: Callable[[NetworkAddress], AddressHealth] = lambda _: AddressHealth.UNTRIED

    def begun(self, service: str, instance: UUID | None = None, *, dialog: int = 1) -> str:
        """What becomes of a conversation begun in the sender's database."""
        return _told(self.decide_begun(service, instance, dialog=dialog))

    def incoming(
        self, service: str, instance: UUID | None = None, *, dialog: int = 1, is_from_target: bool = False
    ) -> str:
        """What becomes of a frame from outside."""
        return _told(decide(_facts(service, instance, dialog, is_from_target=is_from_target), self._here(self.msdb)))

    def decide_begun(
        self, service: str, instance: UUID | None = None, *, dialog: int = 1, after: timedelta = timedelta(0)
    ) -> Decision:
        """The whole decision for a conversation begun here, now or later."""
        return decide(_facts(service, instance, dialog, SENDER), self._here(self.database, after))

    def _here(self, routes: list[Route], after: timedelta = timedelta(0)) -> RoutingContext:
        return RoutingContext(
            build_table(routes, now=NOW + after),
            hosted({SENDER.bytes: self.own, OTHER.bytes: self.present}),
            self.health_of,
            self.is_forwarding,
            msdb=build_table(self.msdb, now=NOW + after),
            own=frozenset({NetworkAddress(self.address)}),
        )


def _facts(
    service: str,
    instance: UUID | None,
    dialog: int = 1,
    database: UUID | None = None,
    *,
    is_from_target: bool = False,
) -> RoutingFacts:
    return RoutingFacts(
        service,
        NO_GUID if instance is None else instance.bytes,
        dialog.to_bytes(16, "big"),
        is_from_target,
        None if database is None else database.bytes,
    )


def _told(decision: Decision) -> str:
    """Where a frame goes, in words; of several next hops the first, and the number of others."""
    if decision.database is not None:
        return f"to {DATABASES[UUID(bytes=decision.database)]}"
    if decision.candidates:
        first, *others = decision.candidates
        return f"to {first.address}" + (f" or {len(others)} other" if others else "")
    return str(decision.disposition)


# --- 1: only AutoCreatedLocal ---


@pytest.mark.parametrize(
    ("instance", "expected"),
    [
        (Instance(present=["A"]), LOCALLY),
        (Instance(own=["A"]), "to the sender's database"),
        (Instance(own=["A"], present=["A"]), "to the sender's database"),
    ],
)
def test_case_1a_service_in_the_instance_is_delivered_here(instance: Instance, expected: str) -> None:
    assert expected == instance.begun("A")


def test_case_1b_absent_service_delays_what_was_begun_here() -> None:
    """9796 as the status; a message of the sender's own is never dropped."""
    assert NOT_HERE == Instance().begun("A")
    assert Disposition(NOT_HERE).number == 9796


def test_case_1c_incoming_for_a_present_service_is_delivered_here() -> None:
    assert LOCALLY == Instance(present=["A"]).incoming("A")


def test_case_1d_incoming_for_an_absent_service_is_dropped() -> None:
    assert NOT_HERE == Instance().incoming("A")


# --- 2: one service elsewhere ---

ONE_ELSEWHERE = _routes("CREATE ROUTE OrderPartsRoute WITH SERVICE_NAME = 'OrderParts', ADDRESS = 'tcp://host2:4022/';")


@pytest.mark.parametrize("present", [[], ["OrderParts"]])
def test_case_2a_named_service_goes_to_its_host_as_the_only_match(present: list[str]) -> None:
    assert "to tcp://host2:4022" == Instance(ONE_ELSEWHERE, present=present).begun("OrderParts")


def test_case_2b_other_service_that_is_present_stays_here() -> None:
    assert LOCALLY == Instance(ONE_ELSEWHERE, present=["A"]).begun("A")


def test_case_2c_other_service_that_is_absent_is_delayed() -> None:
    assert NOT_HERE == Instance(ONE_ELSEWHERE).begun("A")


# --- 3: a mirrored pair ---

MIRRORED = _routes(
    "CREATE ROUTE OrderPartsRoute WITH SERVICE_NAME = 'OrderParts', BROKER_INSTANCE = "
    f"'{ID1}', ADDRESS = 'tcp://partner1', MIRROR_ADDRESS = 'tcp://partner2';"
)
BARE_MIRROR = [
    AUTO_CREATED_LOCAL,
    Route("OrderPartsRoute", NetworkAddress("partner1"), "OrderParts", mirror_address=NetworkAddress("partner2")),
]


@pytest.mark.parametrize("present", [[], ["OrderParts"]])
@pytest.mark.parametrize("routes", [MIRRORED, BARE_MIRROR], ids=["with an instance", "as documented"])
def test_case_3a_mirrored_service_leaves_to_neither_address_while_no_principal_is_known(
    routes: list[Route], present: list[str]
) -> None:
    """CREATE ROUTE refuses the documented form (9661), but a row of that form is routed like any other."""
    assert "principal unknown" == Instance(routes, present=present).begun("OrderParts")


def test_mirrored_route_in_msdb_leads_to_neither_address_while_no_principal_is_known() -> None:
    assert "principal unknown" == Instance(msdb=MIRRORED, present=["OrderParts"]).incoming("OrderParts", ID1)
    assert Disposition.PRINCIPAL_UNKNOWN.number == 9794


def test_case_3b_other_service_that_is_present_stays_here() -> None:
    assert LOCALLY == Instance(MIRRORED, present=["A"]).begun("A")


def test_case_3c_other_service_that_is_absent_is_delayed() -> None:
    assert NOT_HERE == Instance(MIRRORED).begun("A")


# --- 4: everything else elsewhere ---

REST_ELSEWHERE = _routes("CREATE ROUTE ExternalRoute WITH ADDRESS = 'tcp://forwarding';")


def test_case_4a_local_route_wins_while_the_service_is_here() -> None:
    assert LOCALLY == Instance(REST_ELSEWHERE, present=["A"]).begun("A")


def test_case_4b_absent_service_takes_the_network_route() -> None:
    assert "to tcp://forwarding:4022" == Instance(REST_ELSEWHERE).begun("A")


# --- 5: load shared ---

BALANCED = _routes(
    f"CREATE ROUTE BalancedRouteOne WITH SERVICE_NAME = 'S', BROKER_INSTANCE = '{ID1}', ADDRESS = 'tcp://server1';"
    f"CREATE ROUTE BalancedRouteTwo WITH SERVICE_NAME = 'S', BROKER_INSTANCE = '{ID2}', ADDRESS = 'tcp://server2';"
)


def test_case_5a_each_open_dialog_takes_one_route_and_dialogs_differ() -> None:
    instance = Instance(BALANCED)

    taken = [instance.begun("S", dialog=dialog) for dialog in DIALOGS]

    assert {"to tcp://server1:4022", "to tcp://server2:4022"} == set(taken)
    assert taken == [instance.begun("S", dialog=dialog) for dialog in DIALOGS]


def test_case_5b_dialog_that_names_the_second_instance_takes_its_route_whatever_its_hash() -> None:
    taken = {Instance(BALANCED).begun("S", ID2, dialog=dialog) for dialog in DIALOGS}

    assert {"to tcp://server2:4022"} == taken


def test_case_5c_dialog_that_names_the_first_instance_takes_its_route_whatever_its_hash() -> None:
    taken = {Instance(BALANCED).begun("S", ID1, dialog=dialog) for dialog in DIALOGS}

    assert {"to tcp://server1:4022"} == taken


def test_case_5d_other_service_that_is_present_stays_here() -> None:
    assert LOCALLY == Instance(BALANCED, present=["A"]).begun("A")


def test_case_5e_other_service_that_is_absent_is_delayed() -> None:
    assert NOT_HERE == Instance(BALANCED).begun("A")


# --- 6: one service forwarded ---

FORWARD_ONE = _routes("CREATE ROUTE ForwardingRoute WITH SERVICE_NAME = 'Elsewhere', ADDRESS = 'tcp://elsewhere';")


@pytest.mark.parametrize(("present", "expected"), [(["Elsewhere"], LOCALLY), ([], NOT_HERE)])
def test_case_6a_route_of_msdb_is_none_for_what_begins_in_a_database(present: list[str], expected: str) -> None:
    assert expected == Instance(msdb=FORWARD_ONE, present=present).begun("Elsewhere")


@pytest.mark.parametrize("present", [[], ["Elsewhere"]])
def test_case_6b_incoming_is_forwarded_even_if_the_service_is_here(present: list[str]) -> None:
    assert "to tcp://elsewhere:4022" == Instance(msdb=FORWARD_ONE, present=present).incoming("Elsewhere")


@pytest.mark.parametrize("present", [[], ["Elsewhere"]])
def test_case_6c_incoming_is_dropped_while_forwarding_is_off(present: list[str]) -> None:
    assert OFF == Instance(msdb=FORWARD_ONE, present=present, is_forwarding=False).incoming("Elsewhere")


@pytest.mark.parametrize(("present", "expected"), [(["A"], LOCALLY), ([], NOT_HERE)])
def test_case_6d_incoming_for_another_service_is_delivered_here_or_dropped(present: list[str], expected: str) -> None:
    assert expected == Instance(msdb=FORWARD_ONE, present=present).incoming("A")


# --- 7: everything forwarded ---

FORWARD_ALL = _routes("CREATE ROUTE ForwardingRoute WITH ADDRESS = 'tcp://forwarding';")


@pytest.mark.parametrize(("present", "expected"), [(["A"], LOCALLY), ([], NOT_HERE)])
def test_case_7a_route_of_msdb_is_none_for_what_begins_in_a_database(present: list[str], expected: str) -> None:
    assert expected == Instance(msdb=FORWARD_ALL, present=present).begun("A")


@pytest.mark.parametrize("is_forwarding", [True, False])
def test_case_7b_incoming_for_a_present_service_is_delivered_here(*, is_forwarding: bool) -> None:
    assert LOCALLY == Instance(msdb=FORWARD_ALL, present=["A"], is_forwarding=is_forwarding).incoming("A")


def test_case_7c_incoming_for_an_absent_service_is_forwarded() -> None:
    assert "to tcp://forwarding:4022" == Instance(msdb=FORWARD_ALL).incoming("A")


def test_case_7d_incoming_for_an_absent_service_is_dropped_while_forwarding_is_off() -> None:
    assert OFF == Instance(msdb=FORWARD_ALL, is_forwarding=False).incoming("A")


# --- further cases ---

BY_NAME = _routes("CREATE ROUTE ByName WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://name';")[1:]
ASK = _routes(f"CREATE ROUTE Ask WITH SERVICE_NAME = '{BROKER_CONFIGURATION}', ADDRESS = 'LOCAL';")[1:]
ONLY_TRANSPORT = _routes("CREATE ROUTE Direct WITH ADDRESS = 'TRANSPORT';")[1:]


def test_case_r1_full_route_comes_before_the_route_by_name() -> None:
    assert "to tcp://server1:4022" == Instance([*BY_NAME, *BALANCED]).begun("S", ID1)


def test_case_r2_one_route_by_name_turns_balancing_off() -> None:
    instance = Instance([*BALANCED, *BY_NAME])

    assert {"to tcp://name:4022"} == {instance.begun("S", dialog=dialog) for dialog in DIALOGS}


@pytest.mark.parametrize(
    ("instance", "expected"),
    [
        (Instance([*BALANCED, *ASK]), (4, "asking for route")),
        (Instance([*BALANCED[1:], *REST_ELSEWHERE[1:]]), (5, "to tcp://forwarding:4022")),
        (Instance([*BALANCED[1:], *REST_ELSEWHERE[1:]], present=["S"]), (5, "to tcp://forwarding:4022")),
        (Instance(BALANCED[1:], present=["S"]), (6, "instance not here")),
        (Instance(BALANCED[1:]), (7, "no route")),
    ],
)
def test_case_r3_full_routes_of_other_instances_do_not_match(instance: Instance, expected: tuple[int, str]) -> None:
    decision = instance.decide_begun("S", ID3)

    assert expected == (decision.step, _told(decision))


@pytest.mark.parametrize(
    ("named", "expected"), [(OTHER, LOCALLY), (SENDER, "to the sender's database"), (ID1, "instance not here")]
)
def test_case_r4_named_instance_decides_where_the_service_is_as_if_local(named: UUID, expected: str) -> None:
    decision = Instance([], present=["S"], own=["S"]).decide_begun("S", named)

    assert (6, expected) == (decision.step, _told(decision))


def test_case_r4_database_that_is_named_gets_it_even_without_the_service() -> None:
    """So that it is this database which tells the sender (-8490)."""
    assert "to the sender's database" == Instance([], present=["S"]).begun("S", SENDER)


@pytest.mark.parametrize("service", ["S", "elsewhere altogether"])
def test_case_r5_reply_to_a_database_here_is_delivered_before_any_matching(service: str) -> None:
    instance = Instance(msdb=[*FORWARD_ALL, *BALANCED, *BY_NAME], is_forwarding=False)

    assert LOCALLY == instance.incoming(service, OTHER, is_from_target=True)


def test_case_r5_reply_to_a_database_that_is_elsewhere_is_matched() -> None:
    assert "to tcp://server1:4022" == Instance(msdb=BALANCED).incoming("S", ID1, is_from_target=True)


def test_case_r6_route_listed_twice_does_not_change_the_split() -> None:
    again = Route("BalancedRouteThree", NetworkAddress("server2"), "S", ID2)
    other = Route("BalancedRouteFour", NetworkAddress("server4"), "S", ID2)
    plain, twice, two_ways = Instance(BALANCED), Instance([*BALANCED, again]), Instance([*BALANCED, other])

    split = [plain.begun("S", dialog=dialog) for dialog in range(2000)]

    assert Counter(split)["to tcp://server1:4022"] == pytest.approx(1000, abs=100)
    assert split == [twice.begun("S", dialog=dialog) for dialog in range(2000)]
    assert [to == "to tcp://server1:4022" for to in split] == [
        two_ways.begun("S", dialog=dialog) == "to tcp://server1:4022" for dialog in range(2000)
    ]


GATEWAYS = [Route(host, NetworkAddress(host), "S", ID1) for host in ("gateway-a", "gateway-b")]
HOSTS = [Route(host, NetworkAddress(host), "S") for host in ("gateway-a", "gateway-b")]


@pytest.mark.parametrize("lost", ["gateway-a", "gateway-b"])
@pytest.mark.parametrize("routes", [GATEWAYS, HOSTS], ids=["one instance", "by name"])
def test_case_r7_r8_every_matching_address_is_a_candidate_and_a_lost_one_comes_last(
    routes: list[Route], lost: str
) -> None:
    """R7: gateways to one instance. R8: hosts by name, which may be two targets."""
    kept = next(route.address for route in routes if route.name != lost)
    instance = Instance(
        routes, health_of=lambda address: AddressHealth.SUPPRESSED if address.host == lost else AddressHealth.CONNECTED
    )

    assert {f"to {kept} or 1 other"} == {instance.begun("S", dialog=dialog) for dialog in DIALOGS}


def test_case_r7_both_gateways_are_used_while_both_work() -> None:
    taken = {Instance(GATEWAYS).begun("S", dialog=dialog) for dialog in DIALOGS}

    assert {"to tcp://gateway-a:4022 or 1 other", "to tcp://gateway-b:4022 or 1 other"} == taken


TO_THIS = _routes("CREATE ROUTE Round WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://this:4022';")


@pytest.mark.parametrize(
    ("instance", "expected"),
    [
        (Instance(TO_THIS, present=["S"]), LOCALLY),
        (Instance(TO_THIS), NOT_HERE),
        (Instance(TO_THIS, BY_NAME), "to tcp://name:4022"),
        (Instance(TO_THIS, BY_NAME, is_forwarding=False), OFF),
        (Instance(TO_THIS, BY_NAME, present=["S"], is_forwarding=False), OFF),
        (Instance(TO_THIS, FORWARD_ALL, is_forwarding=False), OFF),
        (Instance(TO_THIS, []), "no route"),
        (Instance(TO_THIS, TO_THIS, present=["S"]), "route invalid"),
    ],
)
def test_case_r9_address_of_this_very_instance_is_routed_again_as_incoming(instance: Instance, expected: str) -> None:
    """Once: an address of this instance in msdb, too, leads nowhere."""
    assert expected == instance.begun("S")


@pytest.mark.parametrize("present", [[], ["S"]])
def test_case_r9_incoming_whose_route_leads_back_here_is_not_sent_round(present: list[str]) -> None:
    assert "route invalid" == Instance(msdb=TO_THIS, present=present).incoming("S")


def test_case_r10_expired_route_is_ignored_at_the_next_classification() -> None:
    script = "CREATE ROUTE Passing WITH SERVICE_NAME = 'S', LIFETIME = 60, ADDRESS = 'tcp://passing';"
    instance = Instance(_routes(script), present=["S"])

    told = [_told(instance.decide_begun("S", after=timedelta(seconds=seconds))) for seconds in (0, 59, 60, 3600)]

    assert ["to tcp://passing:4022"] * 2 + [LOCALLY] * 2 == told


def test_case_r15_address_in_the_service_name_is_taken_by_transport() -> None:
    assert "to tcp://h:4022" == Instance(ONLY_TRANSPORT).begun("tcp://h:4022/x")
    assert "to tcp://h:4022" == Instance(msdb=ONLY_TRANSPORT).incoming("tcp://h:4022/x")


@pytest.mark.parametrize("present", [[], ["x"]])
def test_case_r15_service_name_without_an_address_cannot_take_transport(present: list[str]) -> None:
    assert "route invalid" == Instance(ONLY_TRANSPORT, present=present).begun("x")


@pytest.mark.parametrize(
    ("routes", "service"),
    [(FORWARD_ALL, "S"), (BY_NAME, "S"), (BALANCED, "S"), (MIRRORED, "OrderParts"), (ONLY_TRANSPORT, "tcp://h/x")],
    ids=["last resort", "by name", "full", "mirrored", "TRANSPORT"],
)
def test_case_r16_incoming_whose_route_leads_on_is_dropped_while_forwarding_is_off(
    routes: list[Route], service: str
) -> None:
    assert OFF == Instance(msdb=routes, is_forwarding=False).incoming(service)
    assert Disposition(OFF).number == 9792


# --- which table ---


def test_local_counts_only_in_the_table_that_is_searched() -> None:
    assert "no route" == Instance(database=[], present=["A"]).begun("A")
    assert "no route" == Instance(msdb=[], present=["A"]).incoming("A")


@pytest.mark.parametrize(
    "routes",
    [ONE_ELSEWHERE, MIRRORED, REST_ELSEWHERE, BALANCED, FORWARD_ONE, BY_NAME, ASK, ONLY_TRANSPORT, []],
)
@pytest.mark.parametrize("named", [None, ID1, ID3, OTHER])
@pytest.mark.parametrize("service", ["OrderParts", "S", "Elsewhere", "A", "tcp://h/x"])
def test_same_table_leads_alike_what_begins_here_and_what_arrives(
    routes: list[Route], named: UUID | None, service: str
) -> None:
    """While forwarding is on."""
    here = Instance(routes, routes, present=["S", "A"])

    for dialog in range(8):
        assert here.begun(service, named, dialog=dialog) == here.incoming(service, named, dialog=dialog)


def test_local_route_for_each_service_does_without_auto_created_local() -> None:
    own = _routes("CREATE ROUTE Own WITH SERVICE_NAME = 'A', ADDRESS = 'LOCAL';")[1:]
    instance = Instance(own, present=["A", "B"])

    assert [LOCALLY, "no route"] == [instance.begun("A"), instance.begun("B")]


def test_full_local_routes_in_msdb_close_the_way_for_dialogs_open_and_bound_and_for_answers() -> None:
    own = _routes(f"CREATE ROUTE Own WITH SERVICE_NAME = 'S', BROKER_INSTANCE = '{OTHER}', ADDRESS = 'LOCAL';")[1:]
    instance = Instance(msdb=own, present=["S", "B"])

    assert [LOCALLY] * 2 == [instance.incoming("S"), instance.incoming("S", OTHER)]
    assert LOCALLY == instance.incoming("S", OTHER, is_from_target=True)
    assert "no route" == instance.incoming("B")


# --- what matches ---


@pytest.mark.parametrize("service", ["s", "S ", " S", "\u0405", "SS", ""])
def test_names_compare_byte_for_byte(service: str) -> None:
    assert "no route" == Instance(BY_NAME).begun(service)


def test_broker_instances_compare_as_values() -> None:
    text = str(ID1).upper()
    spelt = f"CREATE ROUTE Full WITH SERVICE_NAME = 'S', BROKER_INSTANCE = '{{{text}}}', ADDRESS = 'tcp://full';"

    assert "to tcp://full:4022" == Instance(_routes(spelt)[1:]).begun("S", ID1)


@pytest.mark.parametrize("named", [None, ID1, ID3])
def test_route_by_name_matches_whatever_instance_is_named(named: UUID | None) -> None:
    assert "to tcp://name:4022" == Instance(BY_NAME).begun("S", named)


@pytest.mark.parametrize("named", [None, ID1])
@pytest.mark.parametrize("service", ["S", "A", "anything"])
def test_route_without_a_name_matches_every_name_and_instance(service: str, named: UUID | None) -> None:
    assert "to tcp://forwarding:4022" == Instance(REST_ELSEWHERE).begun(service, named)


def test_mirror_address_is_no_advantage_in_matching() -> None:
    """An open dialog finds the route by name first, so the mirrored one is never chosen from."""
    by_name = Route("ByName", NetworkAddress("name"), "OrderParts")

    assert "to tcp://name:4022" == Instance([*MIRRORED, by_name]).begun("OrderParts")


def test_asking_for_a_route_comes_before_the_last_resort_and_never_for_the_service_that_is_asked() -> None:
    instance = Instance([*REST_ELSEWHERE, *BY_NAME, *ASK], [*FORWARD_ALL, *ASK], present=["A", BROKER_CONFIGURATION])

    assert ["asking for route"] * 2 == [instance.begun("A"), instance.incoming("A")]
    assert "to tcp://name:4022" == instance.begun("S")
    assert LOCALLY == instance.begun(BROKER_CONFIGURATION)


# --- load and availability together ---

FOUR_GATEWAYS = [
    Route(f"gateway-{host}", NetworkAddress(f"gateway-{host}"), "S", instance)
    for host, instance in (("a", ID1), ("b", ID1), ("c", ID2), ("d", ID2))
]


def test_four_gateways_in_two_pairs_share_the_dialogs_and_each_dialog_has_one_pair() -> None:
    pairs = Counter(
        frozenset(
            candidate.address.host[-1] for candidate in Instance(FOUR_GATEWAYS).decide_begun("S", dialog=n).candidates
        )
        for n in range(2000)
    )
    first = {Instance(FOUR_GATEWAYS).begun("S", dialog=dialog) for dialog in DIALOGS}

    assert pairs == pytest.approx({frozenset("ab"): 1000, frozenset("cd"): 1000}, abs=100)
    assert {f"to tcp://gateway-{host}:4022 or 1 other" for host in "abcd"} == first


def test_gateway_picks_for_an_open_dialog_what_its_sender_would_have_picked() -> None:
    """And it distributes them, about evenly, as the sender would have."""
    sender, gateway = Instance(BALANCED), Instance(msdb=BALANCED)

    picked = [gateway.incoming("S", dialog=n) for n in DIALOGS]

    assert [sender.begun("S", dialog=n) for n in DIALOGS] == picked
    assert len(set(picked)) == 2
    assert min(picked.count(one) for one in set(picked)) > len(picked) / 4


# --- which database here ---


def test_instance_in_the_route_decides_the_database() -> None:
    full = _routes(f"CREATE ROUTE Full WITH SERVICE_NAME = 'A', BROKER_INSTANCE = '{OTHER}', ADDRESS = 'LOCAL';")

    assert LOCALLY == Instance(full, own=["A"], present=["A"]).begun("A")


def test_incoming_for_an_instance_that_is_not_here_is_dropped() -> None:
    """Unless a route leads on: it was meant for another instance of the service."""
    assert "instance not here" == Instance(present=["S"]).incoming("S", ID1)
    assert "to tcp://server1:4022" == Instance(msdb=BALANCED, present=["S"]).incoming("S", ID1)


def test_databases_with_the_service_share_open_dialogs_and_each_dialog_stays_with_one() -> None:
    instance = Instance(own=["S"], present=["S"])

    taken = [instance.incoming("S", dialog=dialog) for dialog in DIALOGS]

    assert {LOCALLY, "to the sender's database"} == set(taken)
    assert taken == [instance.incoming("S", dialog=dialog) for dialog in DIALOGS]


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

    assert _steps(here(10), _facts(service, named)) == _steps(here(10_000), _facts(service, named)) > 0
