""""""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from broker.catalog.catalog import ScriptProgress, ScriptStage
from broker.catalog.execute import execute
from broker.config.settings import AdminSettings
from broker.ddl.parser import parse_script
from broker.flow import Disposition
from broker.forwarding.kernels import choose_kernel
from broker.net.tls import NO_SECURITY, Encryption, Identity, Security
from broker.observe.snapshot import dropped_by_reason, slowed_by
from broker.observe.status import (
    CERTIFICATES_MAX,
    UNTRIED_MAX,
    WARNINGS_MAX,
    add_backlog,
    backlog_paths,
    by_kind,
    certificate_part,
    certificates_in_use,
    expiry_warnings,
    kind_name,
    own_certificate_problem,
    read_status,
    show_guid,
    transport_readers,
    transport_status,
)
from broker.protocol.layout import FrameKind
from broker.store.sqlite.inspect import Backlog

DEAD_ROUTE = "CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://127.0.0.1:1'"


LOCAL_ROUTE = "CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'"


def _route_to(instance: Any) -> str:
    port = instance.listeners[0].port
    return f"CREATE ROUTE r WITH SERVICE_NAME = '//{instance.name}', ADDRESS = 'tcp://127.0.0.1:{port}'"


async def test_new_instance_tells_who_it_is(start: Any) -> None:
    instance = await start("near")

    status = read_status(instance)

    kernel = choose_kernel().name
    assert {"name": "near", "ready": True, "loop": "asyncio", "kernel": kernel, "connections": []}.items() <= (
        status.items()
    )
    assert uuid.UUID(status["broker_instance"]).bytes == instance.broker_instance
    assert [f"127.0.0.1:{instance.listeners[0].port}"] == status["listen"]
    assert 0 <= status["uptime_s"] < 60
    assert status["started_at"].endswith("+00:00")


async def test_new_instance_has_counted_nothing(start: Any) -> None:
    status = read_status(await start("near", forwarding=False))

    assert status["forwarding"] == {
        "enabled": False,
        "received": {"message": 0, "ack": 0, "fault": 0},
        "forwarded": 0,
        "delivered": 0,
        "dropped": {},
        "held": 0,
        "pool_bytes": 0,
        "pool_limit_bytes": 64 * 1024 * 1024,
        "unaccounted": 0,
    }
    assert status["databases"]["near"]["services"] == {
        "//near": {"sent": 0, "resent": 0, "acknowledged": 0, "delivered": 0}
    }


async def test_status_is_plain_json(start: Any) -> None:
    status = read_status(await start("near"))

    assert json.loads(json.dumps(status)) == status


async def test_dialog_between_two_instances_is_counted_at_both(start: Any, send: Any, until: Any) -> None:
    near = await start("near", msdb=LOCAL_ROUTE)
    target = await start("target", _route_to(near), msdb=LOCAL_ROUTE)
    await execute(near.catalog, parse_script(_route_to(target)), database="near")
    send(near, "//target", messages=3)
    await until(lambda: near.endpoints["near"].transmitter.acknowledged["//near"] == 3)

    sender, receiver = read_status(near), read_status(target)

    assert sender["databases"]["near"]["services"]["//near"] == {
        "sent": 3,
        "resent": 0,
        "acknowledged": 3,
        "delivered": 0,
    }
    assert receiver["databases"]["target"]["services"]["//target"]["delivered"] == 3
    assert receiver["forwarding"]["delivered"] == receiver["forwarding"]["received"]["message"] == 3
    assert (0, 0) == (sender["forwarding"]["unaccounted"], receiver["forwarding"]["unaccounted"])
    (connection,) = sender["connections"]
    assert ("target", "out", "LOGGED_IN") == (connection["name"], connection["direction"], connection["state"])
    assert connection["bytes_sent"] > 3 * 114
    assert receiver["connections"][0]["direction"] == "in"
    address = f"tcp://127.0.0.1:{target.listeners[0].port}"
    assert sender["addresses"][address] == {
        "health": "connected",
        "problem": "",
        "held": 0,
        "held_bytes": 0,
        "over_share": 0,
        "peer": "target",
    }


async def test_next_hop_that_nobody_has_dialled_is_untried_whether_it_is_there_or_not(start: Any) -> None:
    """Only whoever sends there finds out; until then it is told as what it is."""
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    await execute(gateway.catalog, parse_script(_route_to(gateway)), database="msdb")

    addresses = read_status(gateway)["addresses"]

    assert {"tcp://127.0.0.1:1": ("untried", "", 0)} == {
        address: (facts["health"], facts["problem"], facts["held"]) for address, facts in addresses.items()
    }
    assert set() == gateway.peers.table.known_addresses


async def test_of_many_next_hops_that_nobody_has_dialled_the_first_are_told(start: Any) -> None:
    routes = ";".join(f"CREATE ROUTE r{n} WITH ADDRESS = 'tcp://127.0.0.1:{1000 + n}'" for n in range(UNTRIED_MAX + 5))
    gateway = await start("gateway", msdb=routes)

    addresses = read_status(gateway)["addresses"]

    assert [f"tcp://127.0.0.1:{1000 + number}" for number in range(UNTRIED_MAX)] == list(addresses)


async def test_address_that_does_not_answer_tells_why(start: Any, take: Any, until: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)
    await until(lambda: any(attempts.problem for attempts in gateway.peers.table.histories.values()))

    status = read_status(gateway)

    facts = status["addresses"]["tcp://127.0.0.1:1"]
    assert (1, "suppressed") == (facts["held"], facts["health"])
    assert facts["problem"] == "Connection refused"
    assert status["forwarding"]["held"] == 1
    assert status["forwarding"]["pool_bytes"] > 114


async def test_drops_are_told_by_reason(start: Any, take: Any) -> None:
    gateway = await start("gateway")
    take(gateway)
    take(gateway, hop_count=15, hop_limit=15)

    status = read_status(gateway)

    assert status["forwarding"]["dropped"] == {"no route": 1, "hops exhausted": 1}
    assert status["forwarding"]["unaccounted"] == 0


@pytest.mark.parametrize(
    ("backlog", "waiting", "oldest"), [(Backlog(4, 1.23456), 4, 1.235), (Backlog(), 0, 0.0), (None, None, None)]
)
def test_backlog_is_put_in(backlog: Backlog | None, waiting: int | None, oldest: float | None) -> None:
    status = add_backlog({"databases": {"orders": {}}}, {"orders": backlog})

    assert status["databases"]["orders"] == {"waiting_messages": waiting, "oldest_waiting_s": oldest}


async def test_files_to_ask_are_those_of_the_user_databases(start: Any) -> None:
    instance = await start("near")

    assert {"near": instance.endpoints["near"].path} == backlog_paths(instance)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (FrameKind.MESSAGE, "message"),
        (FrameKind.ACK, "ack"),
        (FrameKind.FAULT, "fault"),
        (0x13, "other"),
        (0xFF, "other"),
    ],
)
def test_kinds_have_words(kind: int, name: str) -> None:
    assert name == kind_name(kind)


def test_kinds_of_later_versions_are_counted_together() -> None:
    assert by_kind({0x10: 1, 0x13: 2, 0x14: 3}) == {"message": 1, "ack": 0, "fault": 0, "other": 5}


def test_guid_is_shown_as_in_the_views() -> None:
    assert show_guid(bytes(range(16))) == "00010203-0405-0607-0809-0A0B0C0D0E0F"


async def test_scripts_under_way_are_told(start: Any) -> None:
    instance = await start("near")
    progress = ScriptProgress("routes.sql", size=100, position=34, statements=7, stage=ScriptStage.RUNNING)
    instance.catalog.scripts.append(progress)

    told = read_status(instance)["running_scripts"]
    instance.catalog.scripts.remove(progress)

    assert told == [{"source": "routes.sql", "stage": "running", "size": 100, "position": 34, "statements": 7}]
    assert read_status(instance)["running_scripts"] == []


async def test_what_a_database_counted_that_has_gone_stays_counted(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].dropped[Disposition.DUPLICATE] = 3

    instance.databases.refuse("near", None)
    leaving = dropped_by_reason(instance)[Disposition.DUPLICATE], read_status(instance)["databases"]
    await instance.databases.close("near")

    assert (3, {}) == leaving
    assert 3 == dropped_by_reason(instance)[Disposition.DUPLICATE]


async def test_the_role_of_each_database_is_told(start: Any) -> None:
    instance = await start("near")

    (told,) = read_status(instance)["mirroring"].values()

    assert ("principal", 0, "off", "", "") == tuple(
        told[key] for key in ("role", "epoch", "source", "principal", "problem")
    )
    assert show_guid(instance.endpoints["near"].broker_instance) == told["broker_instance"]


# --- test_transport ---
# What is told of connections: certificates and their ends, plain text, and what connections are slowed by.


NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def certificate(name: str, days: float = 100.0) -> Identity:
    return Identity(f"CN={name}", f"fingerprint of {name}", (), NOW - DAY, NOW + days * DAY)


OWN, BETWEEN, CA, OTHER, PEER = (certificate(name) for name in ("own", "between", "ca", "other", "peer"))
SECURITY = Security(Encryption.REQUIRED, is_authenticating=True, own=OWN, own_chain=(BETWEEN,), trusted=(CA, OTHER))


def linked(*chain: Identity) -> Any:
    return SimpleNamespace(transport=SimpleNamespace(chain=chain))


def running(
    security: Security = SECURITY,
    *links: Any,
    encryption: str = "required",
    problem: str = "",
    denied: str = "",
    admin: Mapping[str, object] | None = None,
) -> Any:
    """An instance, as far as it is looked at."""
    admission = SimpleNamespace(most=500, refused={"connections": 3}, meters=SimpleNamespace(pauses={}))
    return SimpleNamespace(
        settings=SimpleNamespace(
            endpoint=SimpleNamespace(encryption=encryption, authentication="certificate"),
            admin=AdminSettings.read(admin or {}),
        ),
        certificates=SimpleNamespace(security=security, reloads=2, failures=1, problem=problem),
        forwarder=SimpleNamespace(pool=SimpleNamespace(over_quota=7)),
        peers=SimpleNamespace(
            links=dict(enumerate(links)),
            handshaker=SimpleNamespace(security=security, handshakes=[None] * 4),
            admission=admission,
            permissions=SimpleNamespace(warning=denied),
        ),
    )


def test_every_certificate_in_use_is_told_once_for_each_role() -> None:
    found = list(certificates_in_use(SECURITY, [linked(PEER, CA), linked(PEER, CA), linked()]))

    assert [
        ("own", OWN),
        ("own_chain", BETWEEN),
        ("trust", CA),
        ("trust", OTHER),
        ("peer", PEER),
        ("peer_chain", CA),
    ] == found
    assert [] == list(certificates_in_use(NO_SECURITY, [linked()]))


def test_metrics_tell_when_each_ends_and_how_reloading_went() -> None:
    readers = transport_readers()
    instance = running(SECURITY, linked(PEER, CA))

    found = {name: list(read(instance)) for name, read in readers.items()}

    expiries = dict(found["broker_tls_certificate_expiry_timestamp_seconds"])
    assert (NOW + 100 * DAY).timestamp() == expiries[("peer", "CN=peer")] == expiries[("own", "CN=own")]
    assert [((), 2)] == found["broker_tls_reloads_total"]
    assert [((), 1)] == found["broker_tls_reload_failures_total"]
    assert [((), 1)] == found["broker_tls_last_reload_successful"]
    assert [((), 4)] == found["broker_tls_handshakes"]
    assert {("connections",): 3, ("connections_per_peer",): 0} == dict(found["broker_connections_refused_total"])
    assert {("bytes_per_second",): 0, ("messages_per_second",): 0} == dict(found["broker_connection_pauses_total"])
    assert [((), 7)] == found["broker_forward_peer_share_exceeded_total"]


@pytest.mark.parametrize(
    ("days", "told"),
    [
        (31, []),
        (29.5, ["the certificate of a peer ends in 29 days, at 2026-01-30 12:00 UTC: CN=peer"]),
        (0.5, ["the certificate of a peer ends in 12 hours, at 2026-01-01 12:00 UTC: CN=peer"]),
        (-1, ["the certificate of a peer has expired at 2025-12-31 00:00 UTC: CN=peer"]),
    ],
)
def test_end_of_a_certificate_is_a_warning_thirty_days_ahead(days: float, told: Sequence[str]) -> None:
    assert told == expiry_warnings([("peer", certificate("peer", days))], NOW)


def test_a_certificate_that_is_not_valid_yet_tells_of_the_clock() -> None:
    """It was valid when the instance began, or when the peer came."""
    certificates = [("own", certificate("gw")), ("peer", certificate("peer"))]
    told = (
        "the certificate of this instance is not valid before 2025-12-31 00:00 UTC, by the clock of this machine: CN=gw"
    )

    assert [told] == expiry_warnings(certificates, NOW - 2 * DAY)
    assert [] == expiry_warnings(certificates, NOW - DAY)


def test_of_many_that_end_soon_some_are_named_and_the_others_counted() -> None:
    many = [("trust", certificate(str(number), 1)) for number in range(WARNINGS_MAX + 5)]

    told = expiry_warnings(many, NOW)

    assert (WARNINGS_MAX + 1, "5 more certificates end soon") == (len(told), told[-1])


def test_status_has_what_ends_first_at_the_top() -> None:
    soon = certificate("soon", 10)

    status = transport_status(running(SECURITY, linked(soon, CA)), now=NOW)

    first = status["certificates"][0]
    assert ("peer", "CN=soon", 10, "2026-01-11T00:00:00+00:00") == tuple(
        first[name] for name in ("role", "name", "days_left", "not_after")
    )
    assert ["the certificate of a peer ends in 10 days, at 2026-01-11 00:00 UTC: CN=soon"] == status["warnings"]
    assert ("required", "certificate", 500, {"connections": 3}) == tuple(
        status[name] for name in ("encryption", "authentication", "connections_max", "refused")
    )


def test_status_warns_of_plain_text_and_of_files_that_are_not_in_use() -> None:
    status = transport_status(running(NO_SECURITY, encryption="disabled", problem="endpoint.trust: gone"), now=NOW)

    assert ["connections are not encrypted", "certificate files are not in use: endpoint.trust: gone"] == (
        status["warnings"]
    )


def test_no_more_certificates_are_told_than_fit() -> None:
    peers = [linked(certificate(str(number), number + 1)) for number in range(CERTIFICATES_MAX + 1)]

    told = transport_status(running(SECURITY, *peers), now=NOW)["certificates"]

    assert (CERTIFICATES_MAX, "CN=0") == (len(told), told[0]["name"])


@pytest.mark.parametrize(("days", "is_expired"), [(1, False), (0, True), (-1, True)])
def test_own_certificate_that_has_expired_is_a_problem(days: float, *, is_expired: bool) -> None:
    security = Security(Encryption.REQUIRED, own=certificate("own", days))

    assert is_expired == ("has expired at" in own_certificate_problem(security, now=NOW))
    assert "" == own_certificate_problem(NO_SECURITY)


def test_files_are_a_part_that_may_fail_where_there_are_any() -> None:
    watch: Any = SimpleNamespace(security=SECURITY, problem="broken")
    plain: Any = SimpleNamespace(security=NO_SECURITY, problem="")

    assert ({"certificate files": "broken"}, {}) == (certificate_part(watch), certificate_part(plain))


def certificate_names(security: Security) -> set[str]:
    return {one.principal_name for _, one in certificates_in_use(security, [])}


@pytest.mark.parametrize(
    ("is_paused", "reasons", "told"),
    [
        (False, {"limits.pool_share"}, ""),
        (True, {"limits.pool_share", "limits.bytes_per_second"}, "limits.bytes_per_second, limits.pool_share"),
        (True, set(), "endpoint.backpressure"),
    ],
)
def test_connection_that_is_not_read_says_by_which_setting(*, is_paused: bool, reasons: set[str], told: str) -> None:
    link: Any = SimpleNamespace(is_paused=is_paused, slowed_by=reasons)

    assert told == slowed_by(link)


def test_status_warns_when_nobody_may_connect() -> None:
    status = transport_status(running(denied="nobody may connect"), now=NOW)

    assert ["nobody may connect"] == status["warnings"]


@pytest.mark.parametrize(
    ("admin", "told"),
    [
        ({"listen": "127.0.0.1:9422"}, ["every user of this machine has the role admin on 127.0.0.1:9422"]),
        ({"listen": "127.0.0.1:9422", "loopback_role": "admin"}, []),
        ({}, []),
    ],
)
def test_status_warns_of_a_role_that_everybody_on_the_machine_has_unsaid(
    admin: Mapping[str, object], told: Sequence[str]
) -> None:
    assert told == transport_status(running(admin=admin), now=NOW)["warnings"]
