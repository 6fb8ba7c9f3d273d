"""The catalog of a database comes back as it was put: queues, services, types, contracts, priorities, routes."""

import sqlite3
from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec.structs import astuple

from broker.conversation.message_types import DEFAULT, Rule, SentBy, Validation
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.route import AUTO_CREATED_LOCAL, Route, RouteRow
from broker.security.grants import Permission, PermissionRule, PermissionState, RemoteServiceBinding
from broker.security.principal import parse_principal
from broker.store.sqlite import metadata as permission
from broker.store.sqlite.dialog_rules import PRIORITY_DEFAULT, message_rule, priority_for
from broker.store.sqlite.metadata import (
    Priority,
    QueueRow,
    Service,
    contracts,
    drop_queue,
    find_contract,
    find_message_type,
    find_priority,
    find_priority_about,
    find_route,
    find_user,
    put_contract,
    put_message_type,
    put_priority,
    put_queue,
    put_routes,
    put_service,
    queues,
    routes,
    services,
)
from tests.support.dialog import put_message


def test_queue_comes_back_as_put_and_keeps_its_id(db: sqlite3.Connection) -> None:
    put_queue(db, "Orders", is_receive_enabled=True)
    put_queue(db, "Billing", is_receive_enabled=False)
    before = queues(db)

    put_queue(db, "Orders", is_receive_enabled=False)

    orders, billing = before["Orders"], before["Billing"]
    assert (QueueRow(orders.queue_id, "Orders", True), QueueRow(billing.queue_id, "Billing", False)) == (
        orders,
        billing,
    )
    assert {"Orders": QueueRow(orders.queue_id, "Orders", False), "Billing": billing} == queues(db)


def test_queue_that_is_turned_on_counts_its_rollbacks_anew(db: sqlite3.Connection) -> None:
    put_queue(db, "Orders", is_receive_enabled=True, is_poison_message_handling_enabled=True)
    rollbacks = "SELECT rollbacks FROM broker_queue"
    db.execute("UPDATE broker_queue SET rollbacks = 3")

    put_queue(db, "Orders", is_receive_enabled=False, is_poison_message_handling_enabled=True)
    off = db.execute(rollbacks).fetchone()
    put_queue(db, "Orders", is_receive_enabled=True)

    assert ((3,), (0,)) == (off, db.execute(rollbacks).fetchone())
    assert not queues(db)["Orders"].is_poison_message_handling_enabled


def test_dropped_queue_takes_its_messages_along_and_no_others(db: sqlite3.Connection) -> None:
    for name in ("Orders", "Billing"):
        put_queue(db, name, is_receive_enabled=True)
        put_message(db, queue_id=queues(db)[name].queue_id)

    drop_queue(db, "Orders")

    billing = queues(db)["Billing"].queue_id
    assert list(queues(db)) == ["Billing"]
    assert db.execute("SELECT queue_id FROM broker_message").fetchall() == [(billing,)]


def test_service_comes_back_as_put_and_keeps_its_id(db: sqlite3.Connection) -> None:
    put_service(db, "//shop/Orders", 1, frozenset({"b", "a"}))
    put_service(db, "//shop/orders", 1, frozenset())
    before = services(db)

    put_service(db, "//shop/Orders", 2, frozenset({"'c'"}))

    first, second = before["//shop/Orders"], before["//shop/orders"]
    assert Service(first.service_id, "//shop/Orders", 1, frozenset({"a", "b"})) == first
    assert {
        "//shop/Orders": Service(first.service_id, "//shop/Orders", 2, frozenset({"'c'"})),
        "//shop/orders": Service(second.service_id, "//shop/orders", 1, frozenset()),
    } == services(db)


ROUTES = [
    AUTO_CREATED_LOCAL,
    Route("r", TRANSPORT, lifetime=datetime(2093, 1, 19, 3, 14, 7, 123457, tzinfo=UTC)),
    Route("r", NetworkAddress("::1", 4023), "//shop/Órders", weight=1000, address_text="TCP://[::1]:4023/"),
    Route("r", LOCAL, "S", UUID(int=7), datetime(1999, 12, 31, tzinfo=UTC)),
    Route(
        "it's",
        NetworkAddress("east"),
        "S",
        UUID(int=7),
        mirror_address=NetworkAddress("west"),
        address_text="tcp://East",
        mirror_address_text="tcp://WEST:4022/",
    ),
]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.address_text)
def test_route_comes_back_as_put(db: sqlite3.Connection, route: Route) -> None:
    put_routes(db, [RouteRow.of(route)])

    assert astuple(RouteRow.of(route)) in set(routes(db))
    assert astuple(RouteRow.of(route)) == find_route(db, route.name)
    number = db.execute("SELECT max(route_id) FROM broker_route").fetchone()
    again = Route(route.name, LOCAL, "another")
    put_routes(db, [RouteRow.of(again)])
    assert (number, astuple(RouteRow.of(again))) == (
        db.execute("SELECT max(route_id) FROM broker_route").fetchone(),
        find_route(db, route.name),
    )


def test_routes_of_one_service_stand_together(db: sqlite3.Connection) -> None:
    put_routes(db, [RouteRow.of(Route(f"r{number}", LOCAL, "ABC"[number % 3])) for number in range(9)])

    services = [row[1] for row in routes(db)]

    assert services == [None, *"AAABBBCCC"]


def _invoicing(db: sqlite3.Connection) -> None:
    put_message_type(db, "Invoice", Validation.WELL_FORMED_XML)
    put_message_type(db, "Receipt", Validation.EMPTY)
    put_contract(db, "Invoicing", {"Invoice": SentBy.INITIATOR, "Receipt": SentBy.TARGET, DEFAULT: SentBy.ANY})


def test_message_type_comes_back_as_put_and_keeps_its_id(db: sqlite3.Connection) -> None:
    _invoicing(db)
    numbers = "SELECT message_type_id, name FROM broker_message_type ORDER BY message_type_id"
    before = db.execute(numbers).fetchall()

    put_message_type(db, "Invoice", Validation.JSON)

    assert [(14, DEFAULT), (65536, "Invoice"), (65537, "Receipt")] == before == db.execute(numbers).fetchall()
    assert (Validation.JSON, Validation.EMPTY) == (find_message_type(db, "Invoice"), find_message_type(db, "Receipt"))
    assert (None, Validation.NONE) == (find_message_type(db, "invoice"), find_message_type(db, DEFAULT))


def test_contract_comes_back_as_put(db: sqlite3.Connection) -> None:
    _invoicing(db)

    assert {"Invoice": SentBy.INITIATOR, "Receipt": SentBy.TARGET, DEFAULT: SentBy.ANY} == find_contract(
        db, "Invoicing"
    )
    assert find_contract(db, "invoicing") is None
    assert contracts(db) == {"Invoicing": frozenset({"Invoice", "Receipt", DEFAULT})}
    put_contract(db, "Invoicing", {"Receipt": SentBy.ANY})
    assert find_contract(db, "Invoicing") == {"Receipt": SentBy.ANY}
    assert db.execute("SELECT contract_id FROM broker_contract").fetchall() == [(65536,)]
    assert message_rule(db, "Invoicing", DEFAULT) == Rule(DEFAULT, None)


ANY = None
SPECIFIC_FIRST = [
    ("C", "L", "R"),
    ("C", "L", ANY),
    ("C", ANY, "R"),
    ("C", ANY, ANY),
    (ANY, "L", "R"),
    (ANY, "L", ANY),
    (ANY, ANY, "R"),
    (ANY, ANY, ANY),
]


def test_most_specific_priority_counts(db: sqlite3.Connection) -> None:
    found = [priority_for(db, "C", "L", "R")]
    for level, criteria in enumerate(reversed(SPECIFIC_FIRST), 1):
        put_priority(db, Priority(f"p{level}", *criteria, priority_level=level))
        found.append(priority_for(db, "C", "L", "R"))

    assert [PRIORITY_DEFAULT, 1, 2, 3, 4, 5, 6, 7, 8] == found
    assert [8, 7, 6, 5, 4, 3, 2, 1] == [
        priority_for(db, contract or "c", local or "l", remote or "r") for contract, local, remote in SPECIFIC_FIRST
    ]


def test_priority_comes_back_as_put(db: sqlite3.Connection) -> None:
    put_priority(db, Priority("p", "C", None, "R", 9))
    put_priority(db, Priority("p", None, "L", None, 1))

    assert tuple(find_user(db, "service", name, by="priority") for name in "LC") == ("p", None)
    assert (Priority("p", None, "L", None, 1), None) == (find_priority(db, "p"), find_priority(db, "P"))
    about = [find_priority_about(db, Priority("q", *criteria)) for criteria in ((None, "L", None), ("C", None, "R"))]
    assert ["p", None] == about


def rule(state: PermissionState, principal: str = "a", service: str = "s") -> PermissionRule:
    return PermissionRule(Permission.SEND, service, parse_principal(principal), state)


def test_there_is_one_rule_about_the_same(db: sqlite3.Connection) -> None:
    for state in (PermissionState.GRANT, PermissionState.DENY):
        permission.put_permission(db, rule(state))
    permission.put_permission(db, rule(PermissionState.GRANT, "b"))

    assert ((rule(PermissionState.DENY), rule(PermissionState.GRANT, "b")), []) == permission.permissions(db)
    assert PermissionState.DENY is permission.find_state(db, rule(PermissionState.GRANT))
    assert permission.find_state(db, rule(PermissionState.GRANT, "c")) is None
    permission.drop_permission(db, rule(PermissionState.GRANT))
    assert ((rule(PermissionState.GRANT, "b"),), []) == permission.permissions(db)


def test_rules_go_with_their_service_and_those_of_connect_stay(db: sqlite3.Connection) -> None:
    connect = PermissionRule(Permission.CONNECT, "s", parse_principal("a"), PermissionState.GRANT)
    for one in (
        connect,
        rule(PermissionState.GRANT),
        rule(PermissionState.DENY, "b"),
        rule(PermissionState.GRANT, service="s*"),
    ):
        permission.put_permission(db, one)

    permission.drop_permissions_on(db, "s")

    assert {connect, rule(PermissionState.GRANT, service="s*")} == set(permission.permissions(db)[0])


def test_what_cannot_be_read_grants_nothing_and_denies_everybody(db: sqlite3.Connection) -> None:
    db.executemany(
        "INSERT INTO broker_permission (permission, securable, principal, state) VALUES ('SEND', 's', ?, ?)",
        [("sha256:1", "GRANT"), ("CN=a,b", "DENY")],
    )

    rules, unreadable = permission.permissions(db)

    assert (rule(PermissionState.DENY, "public"),) == rules
    assert ["CN=a,b", "sha256:1"] == sorted(unreadable)


def test_binding_is_found_by_name_and_by_service(db: sqlite3.Connection) -> None:
    first, second = RemoteServiceBinding("b", "//a", "a"), RemoteServiceBinding("c", "//c", "c", is_anonymous_on=True)
    changed = RemoteServiceBinding("b", "//b", "x")
    for one in (first, second, changed):
        permission.put_binding(db, one)

    assert {"b": changed, "c": second} == permission.bindings(db)
    assert (changed, second) == (
        permission.find_binding(db, "b"),
        permission.find_binding_of(db, "//c"),
    )
    assert (None, None) == (
        permission.find_binding(db, "x"),
        permission.find_binding_of(db, "//a"),
    )
