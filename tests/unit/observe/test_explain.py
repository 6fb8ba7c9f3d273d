"""Questions become facts, instances become places; both kinds of place answer with the same words."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

import broker
from broker.catalog.execute import execute
from broker.config.load import load_settings
from broker.daemon.instance import Instance
from broker.ddl.parser import parse_script
from broker.errors import BadRequestError, BrokerError, UnknownNameError
from broker.net.peer_table import DialHistory
from broker.observe.explain import (
    ExplainRequest,
    InstanceView,
    SendingDatabase,
    answer,
    configured_place,
    find_contact,
    frozen_place,
    running_place,
)
from broker.protocol.layout import show_guid
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import AddressHealth, RoutingContext, hosted
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.security.grants import Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import Who, parse_principal
from broker.store.sqlite.database import open_store
from broker.store.sqlite.metadata import put_queue, put_service
from tests.support.certificates import make

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ORDERS, STOCK, FAR = UUID(int=0x0D), UUID(int=0x57), UUID(int=0xFA)
GUID = UUID(int=9)


def table(host: str) -> Any:
    return build_table([Route(f"to {host}", NetworkAddress(host))], now=NOW)


def place(*names: str, files: dict[str, Path] | None = None) -> InstanceView:
    """An instance with these databases; each has a route to a host of its own name, msdb to the host msdb."""
    known = {"orders": ORDERS, "stock": STOCK}
    homes = {
        name: SendingDatabase(known[name].bytes, table(name), (files or {}).get(name, Path("none"))) for name in names
    }
    here = RoutingContext(
        table("msdb"), hosted({}), lambda _: AddressHealth.UNTRIED, is_forwarding=True, msdb=table("msdb")
    )
    return InstanceView("one", GUID.bytes, here, homes)


def rule(permission: str, principal: str, securable: str = "*") -> PermissionRule:
    return PermissionRule(Permission(permission), securable, parse_principal(principal), PermissionState.GRANT)


def next_hop(place: InstanceView, **request: Any) -> str | None:
    return answer(place, ExplainRequest("S", **request)).explanation.next_hop


@pytest.mark.parametrize(
    ("names", "question", "host"),
    [
        (["orders"], {}, "orders"),
        (["orders", "stock"], {}, "msdb"),
        ([], {}, "msdb"),
        (["orders", "stock"], {"database": "stock"}, "stock"),
        (["orders"], {"database": "ORDERS"}, "orders"),
        (["orders"], {"database": "msdb"}, "msdb"),
        (["orders"], {"incoming": True}, "msdb"),
        (["orders"], {"incoming": True, "database": "msdb"}, "msdb"),
    ],
)
def test_the_routes_of_the_database_that_is_meant_decide(names: list[str], question: dict[str, Any], host: str) -> None:
    assert f"tcp://{host}:4022" == next_hop(place(*names), **question)


@pytest.mark.parametrize(
    ("question", "kind", "problem"),
    [
        ({"database": "orders", "incoming": True}, BadRequestError, "leave out one of the two"),
        ({"database": "orders", "peer": "CN=a"}, BadRequestError, "leave out one of the two"),
        ({"current_database": True, "incoming": True}, BadRequestError, "CURRENT DATABASE"),
        ({"current_database": True, "broker_instance": GUID}, BadRequestError, "CURRENT DATABASE"),
        ({"peer": "*"}, BadRequestError, "more than one"),
        ({"peer": "sha256:1"}, BadRequestError, "fingerprint"),
        ({"database": "nope"}, UnknownNameError, "'nope' does not exist here; there are: msdb, orders"),
    ],
)
def test_what_contradicts_itself_or_names_nothing_that_there_is_is_refused(
    question: dict[str, Any], kind: type[BrokerError], problem: str
) -> None:
    with pytest.raises(kind, match=problem):
        next_hop(place("orders"), **question)


def test_the_answer_has_the_question_and_the_instance() -> None:
    one = replace(place("orders"), problem_of=lambda address: f"{address} is down", principal="CN=one")
    own = frozenset({NetworkAddress("b"), NetworkAddress("a")})
    one = replace(one, surroundings=replace(one.surroundings, own=own))

    found = answer(one, ExplainRequest("S", FAR, GUID, from_target=True))
    drawn = [answer(one, ExplainRequest("S")) for _ in range(2)]

    assert ("one", show_guid(GUID), "CN=one") == (found.instance, found.broker_instance, found.principal)
    assert ["tcp://a:4022", "tcp://b:4022"] == found.addresses
    told = found.explanation
    assert ("S", show_guid(FAR), show_guid(GUID)) == (told.to_service, told.to_broker_instance, told.conversation_id)
    assert (True, "orders") == (told.is_from_target, told.passes[0].table)
    assert "tcp://orders:4022 is down" == told.passes[0].candidates[0].problem
    assert [False, True, True] == [one.is_conversation_drawn for one in (found, *drawn)]
    assert 2 == len({one.explanation.conversation_id for one in drawn})


@pytest.mark.parametrize(
    ("principal", "question", "is_told"),
    [
        ("CN=a", {"incoming": True}, True),
        ("public", {"incoming": True}, False),
        ("CN=a", {"incoming": True, "from_target": True}, False),
        ("CN=a", {"database": "orders"}, False),
    ],
)
def test_a_database_that_answers_what_begins_with_an_error_is_told(
    principal: str, question: dict[str, Any], *, is_told: bool
) -> None:
    grants = Grants([rule("SEND", principal, "S")])
    one, here = place("orders"), build_table([Route("here", LOCAL)], now=NOW)
    around = replace(one.surroundings, table=here, msdb=here, hosted=hosted({ORDERS.bytes: ["S"]}))
    one = replace(one, surroundings=around, homes={"orders": replace(one.homes["orders"], table=here, grants=grants)})

    told = answer(one, ExplainRequest("S", **question)).explanation

    assert "delivered here, to the database orders" in told.sentence
    missing = "GRANT SEND ON SERVICE::[S] TO [public]"
    assert is_told == (f"ends in an Error: no {missing}" in told.sentence)
    assert is_told == any(f"USE [orders]; {missing};" in one for one in told.hints)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders.db"
    with closing(open_store(path, broker_instance=ORDERS)) as db:
        put_queue(db, "Q", is_receive_enabled=True)
        put_service(db, "//a", 1, frozenset())
    return path


def begin(path: Path) -> broker.Dialog:
    with closing(sqlite3.connect(path)) as db, db:
        return broker.begin_dialog(db, from_service="//a", to_service="//b", broker_instance=FAR)


@pytest.mark.parametrize(
    ("question", "instance", "host"),
    [
        ({}, FAR, "orders"),
        ({"database": "orders"}, FAR, "orders"),
        ({"incoming": True}, FAR, "msdb"),
        ({"database": "msdb"}, FAR, "msdb"),
        ({"broker_instance": GUID}, GUID, "orders"),
        ({"current_database": True}, ORDERS, "orders"),
    ],
)
@pytest.mark.promise("statements 1")
def test_a_conversation_that_lives_here_has_the_rest_of_the_question(
    orders: Path, question: dict[str, Any], instance: UUID, host: str
) -> None:
    dialog = begin(orders)
    both = place("stock", "orders", files={"orders": orders})
    request = ExplainRequest(conversation=dialog.conversation_handle, **question)

    found = answer(both, request, find_contact(both, request))

    told = found.explanation
    assert ("//b", show_guid(dialog.conversation_id)) == (told.to_service, told.conversation_id)
    assert (show_guid(instance), f"tcp://{host}:4022") == (told.to_broker_instance, told.next_hop)
    assert not found.is_conversation_drawn


def test_a_conversation_that_is_not_in_the_databases_asked_about_is_8426(orders: Path) -> None:
    dialog = begin(orders)
    both = place("stock", "orders", files={"orders": orders})

    for request in (ExplainRequest(conversation=uuid4()), ExplainRequest(None, None, dialog.conversation_id, "stock")):
        with pytest.raises(UnknownNameError, match="no database here has the conversation") as caught:
            find_contact(both, request)
        assert 8426 == caught.value.number
    with pytest.raises(BadRequestError, match="name the service"):
        find_contact(place("orders"), ExplainRequest())


SCRIPT = "CREATE QUEUE Q; CREATE SERVICE [//a] ON QUEUE Q; CREATE ROUTE far WITH ADDRESS = 'tcp://far:4022';"


async def test_a_running_instance_answers_by_what_holds_now(instance: Instance) -> None:
    await execute(instance.catalog, parse_script(SCRIPT), database="orders")

    told = answer(running_place(instance), ExplainRequest("//b"))
    arriving = answer(running_place(instance), ExplainRequest("//a", incoming=True))

    assert ("orders", "AutoCreatedLocal") == (arriving.explanation.database, arriving.explanation.route)
    assert ("one", "tcp://far:4022") == (told.instance, told.explanation.next_hop)
    assert show_guid(instance.broker_instance) == told.broker_instance
    assert f"tcp://127.0.0.1:{instance.listeners[0].port}" in told.addresses


def described(tmp_path: Path, script: str, endpoint: str = 'listen = ["127.0.0.1:4022"]') -> InstanceView:
    """The instance that a configuration describes."""
    (tmp_path / "orders.sql").write_text(script)
    config = tmp_path / "broker.toml"
    config.write_text(
        f'[instance]\nname = "two"\nstate_dir = "state"\n[endpoint]\n{endpoint}\n'
        '[databases.orders]\npath = "orders.db"\nscripts = ["orders.sql"]\n'
    )
    return configured_place(load_settings(config, environ={}), now=NOW)


def test_a_configuration_answers_by_its_scripts(tmp_path: Path) -> None:
    two = described(tmp_path, SCRIPT)

    away = answer(two, ExplainRequest("//b"))
    arriving = answer(two, ExplainRequest("//a", incoming=True))

    assert ("two", None, "tcp://far:4022") == (away.instance, away.broker_instance, away.explanation.next_hop)
    assert "untried" == away.explanation.passes[0].candidates[0].health
    assert "orders" == arriving.explanation.database


@pytest.mark.parametrize(
    ("encryption", "name", "principal"),
    [("required", "two", "CN=two"), ("required", "gone", ""), ("disabled", "two", None)],
)
def test_a_configuration_has_the_principal_of_its_certificate(
    tmp_path: Path, encryption: str, name: str, principal: str | None
) -> None:
    make("two").store(tmp_path, "two")
    files = f'certificate = "{name}.pem"\nprivate_key = "two.key"'

    two = described(tmp_path, SCRIPT, f'encryption = "{encryption}"\n{files}')

    assert principal == answer(two, ExplainRequest("//b")).principal


def test_a_configuration_knows_the_certificates_of_its_peers_that_can_be_read(tmp_path: Path) -> None:
    for name in ("two", "peer"):
        make(name).store(tmp_path, name)
    (tmp_path / "bad.pem").write_text("nothing")
    files = 'certificate = "two.pem"\nprivate_key = "two.key"\npeers = ["peer.pem", "bad.pem"]'

    two = described(tmp_path, SCRIPT, f'encryption = "required"\n{files}')

    assert ["CN=peer"] == [who.name for who in two.certified()]


@pytest.mark.parametrize(
    ("endpoint", "own"),
    [
        ('listen = ["127.0.0.1:1"]', ["tcp://127.0.0.1:1", "tcp://localhost:1"]),
        ('listen = ["localhost:1"]', ["tcp://127.0.0.1:1", "tcp://localhost:1"]),
        ('listen = ["gateway.example:1"]', ["tcp://gateway.example:1"]),
        ('listen = ["192.0.2.1:1"]\nadvertise = ["tcp://public:2"]', ["tcp://192.0.2.1:1", "tcp://public:2"]),
        ('listen = ["127.0.0.1:0"]', []),
    ],
)
def test_a_configuration_knows_its_own_addresses(tmp_path: Path, endpoint: str, own: list[str]) -> None:
    assert own == answer(described(tmp_path, "", endpoint), ExplainRequest("S")).addresses


def asked_of(peer: str, *rules: PermissionRule, is_default_deny: bool = True) -> Any:
    here = replace(place("orders"), grants=Grants(rules, is_default_deny=is_default_deny, endpoint="one"))
    return answer(here, ExplainRequest("S", peer=peer)).explanation


def test_what_a_peer_brings_comes_from_outside_and_the_rules_that_permit_are_named() -> None:
    told = asked_of("CN=a", rule("CONNECT", "public"), rule("SEND", "a", "S*"))

    assert ("CN=a", "tcp://msdb:4022") == (told.peer, told.next_hop)
    assert [
        ("CONNECT", True, "GRANT CONNECT ON ENDPOINT::[one] TO [public]"),
        ("SEND", True, "GRANT SEND ON SERVICE::[S*] TO [a]"),
    ] == [(one.permission, one.is_permitted, one.why) for one in told.permissions]


@pytest.mark.parametrize(("peer", "is_permitted"), [("CN=a", True), ("O=X, CN=a", False), ("CN=b", False)])
def test_a_rule_may_use_any_name_of_a_certificate_that_is_known_here(peer: str, *, is_permitted: bool) -> None:
    print_of_a = "ab" * 32
    grants = Grants([rule("CONNECT", f"sha256:{print_of_a}"), rule("SEND", "spiffe://a")], is_default_deny=True)
    known = (Who("CN=b"), Who("CN=a", "a", ("spiffe://a",), print_of_a))
    here = replace(place("orders"), grants=grants, certified=lambda: known)

    told = answer(here, ExplainRequest("S", peer=peer)).explanation

    assert [is_permitted] * 2 == [one.is_permitted for one in told.permissions]


def test_without_authentication_every_peer_is_public() -> None:
    told = asked_of("CN=a", rule("SEND", "CN=a"), is_default_deny=False)

    assert ("public", "not permitted") == (told.peer, told.disposition)
    assert [True, False] == [one.is_permitted for one in told.permissions]


async def test_frozen_place_stays_as_it_was(instance: Instance) -> None:
    """Another thread reads it while the instance goes on."""
    far = NetworkAddress("far", 4022)
    known = instance.peers.table.histories
    known[far] = attempts = DialHistory()
    attempts.record_failure("Connection refused", now=1e9)
    attempts.suppressed_until = float("inf")

    frozen, live = frozen_place(instance), running_place(instance)
    del known[far]

    assert (frozen.surroundings.health_of(far), frozen.problem_of(far)) == (
        AddressHealth.SUPPRESSED,
        "Connection refused",
    )
    assert (live.surroundings.health_of(far), live.problem_of(far)) == (AddressHealth.UNTRIED, "")
    assert frozen.surroundings.health_of(NetworkAddress("new", 1)) is AddressHealth.UNTRIED
