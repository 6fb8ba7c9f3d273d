"""Rows that are read from the files of the databases."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.errors import StoreUnavailableError
from broker.observe.query import SystemViews
from broker.observe.view_rows import (
    Snapshots,
    database_ids,
    database_rows,
    ledger_rows,
    monitor_rows,
    names_of,
    role_rows,
)
from broker.observe.views import AUDIT, DATABASE_MIRRORING, DATABASES, LEDGER, MEMORY_VIEWS, QUEUE_MONITORS
from broker.routing.mirrored import MirrorRole, OwnRoleStatus
from tests.support.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


@pytest.fixture
def files(shop: Shop, tmp_path: Path) -> dict[str, Path]:
    """One database, and one whose file is none."""
    (tmp_path / "text.db").write_text("this is a text, and no database at all")
    return {"shop": shop.path, "broken": tmp_path / "text.db"}


def test_msdb_is_first_and_has_the_number_of_the_original() -> None:
    files = dict.fromkeys(["shop", "msdb", "billing"], Path())

    assert ("msdb", "shop", "billing") == names_of(files)
    assert {"msdb": 4, "billing": 5, "shop": 6} == database_ids(files)
    assert {"msdb": 4, "shop": 5} == database_ids({"shop": Path()})


def test_every_database_has_a_row_also_when_its_file_is_none(files: dict[str, Path]) -> None:
    rows = [dict(zip(MEMORY_VIEWS[DATABASES], row, strict=True)) for row in database_rows(files)]

    told = [(row["name"], row["database_id"], row["is_broker_enabled"], row["path"]) for row in rows]
    assert [
        ("msdb", 4, True, None),
        ("shop", 6, True, str(files["shop"])),
        ("broken", 5, False, str(files["broken"])),
    ] == told


def test_queue_monitors_name_their_database_by_its_number(files: dict[str, Path]) -> None:
    rows = [dict(zip(MEMORY_VIEWS[QUEUE_MONITORS], row, strict=True)) for row in monitor_rows(files)]

    told = [(row["database_id"], row["database_name"], row["queue_name"], row["state"]) for row in rows]
    assert [(6, "shop", "OrdersQueue", "INACTIVE"), (6, "shop", "BillingQueue", "INACTIVE")] == told


def test_ledgers_are_of_the_databases_that_can_be_read_and_not_of_msdb(files: dict[str, Path], shop: Shop) -> None:
    db = shop.connect()
    with db:
        shop.begin(db).send(b"")

    rows = [dict(zip(MEMORY_VIEWS[LEDGER], row, strict=True)) for row in ledger_rows({"msdb": shop.path} | files)]

    assert {"shop"} == {row["database_name"] for row in rows}
    assert ("sent", None, 1) in {(row["entry"], row["reason"], row["messages"]) for row in rows}


# --- test_own_role ---
# What an instance is for its databases is told in the words of the original.


def row(**values: Any) -> dict[str, Any]:
    given = {"broker_instance": b"i" * 16, "role": MirrorRole.PRINCIPAL, "epoch": 3, "since": 0.0, "source": "lock"}
    (found,) = role_rows({"orders": OwnRoleStatus(**{**given, **values})})
    return dict(zip(MEMORY_VIEWS[DATABASE_MIRRORING], found, strict=True))


@pytest.mark.parametrize(
    ("values", "state", "role", "partner"),
    [
        ({}, (4, "SYNCHRONIZED"), (1, "PRINCIPAL"), None),
        ({"principal": "us"}, (4, "SYNCHRONIZED"), (1, "PRINCIPAL"), None),
        ({"role": MirrorRole.MIRROR, "principal": "them"}, (4, "SYNCHRONIZED"), (2, "MIRROR"), "them"),
        ({"role": MirrorRole.MIRROR, "is_resting": True, "problem": "x"}, (3, "PENDING_FAILOVER"), (2, "MIRROR"), None),
        ({"role": MirrorRole.MIRROR, "problem": "x"}, (0, "SUSPENDED"), (2, "MIRROR"), None),
        ({"source": "off"}, (None, None), (None, None), None),
    ],
)
def test_state_role_and_partner_have_the_words_of_the_original(
    values: dict[str, Any], state: tuple[Any, Any], role: tuple[Any, Any], partner: str | None
) -> None:
    told = row(**values)

    assert state == (told["mirroring_state"], told["mirroring_state_desc"])
    assert role == (told["mirroring_role"], told["mirroring_role_desc"])
    assert partner == told["mirroring_partner_name"]


def test_what_is_not_known_is_null_and_the_rest_is_told() -> None:
    told = row(broker_instance=None)

    assert (None, None, None) == (told["mirroring_guid"], told["mirroring_failover_lsn"], told["problem"])
    assert ("orders", 3, "lock") == (told["database_name"], told["mirroring_role_sequence"], told["role_source"])
    assert datetime(1970, 1, 1, tzinfo=UTC) == told["role_since"]


DEAD_ROUTE = "CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://127.0.0.1:1'"


async def _rows(instance: Any, view: str) -> list[dict[str, Any]]:
    snapshots = Snapshots(instance)
    rows = await asyncio.to_thread(lambda: list(snapshots.by_view()[view]()))
    return [dict(zip(MEMORY_VIEWS[view], row, strict=True)) for row in rows]


async def test_every_view_that_the_daemon_feeds_is_fed(start: Any) -> None:
    """The views refuse to be built otherwise; the audit is the admin API's own."""
    instance = await start("near")
    snapshots = Snapshots(instance)
    databases = {name: database.path for name, database in instance.catalog.databases.items()}

    views = SystemViews(
        databases=databases,
        snapshots={**snapshots.by_view(), AUDIT: list},
        transmission_statuses=snapshots.transmission_statuses,
    )

    assert views.names == ("msdb", "near")


async def test_endpoint_is_one_row(start: Any) -> None:
    instance = await start("near")
    (listener,) = instance.listeners

    (row,) = await _rows(instance, "sys.service_broker_endpoints")

    assert {
        "name": "near",
        "protocol_desc": "TCP",
        "type_desc": "SERVICE_BROKER",
        "state_desc": "STARTED",
        "is_message_forwarding_enabled": True,
        "message_forwarding_size": 64,
        "listen": f"127.0.0.1:{listener.port}",
        "advertise": f"tcp://127.0.0.1:{listener.port}",
        "max_hops": 16,
        "forward_pool_bytes": 0,
        "forward_pool_messages": 0,
    }.items() <= row.items()


async def test_connection_has_two_ends(start: Any, send: Any, until: Any) -> None:
    target = await start("target")
    route = f"CREATE ROUTE r WITH SERVICE_NAME = '//target', ADDRESS = 'tcp://127.0.0.1:{target.listeners[0].port}'"
    near = await start("near", route)
    send(near, "//target")
    await until(lambda: target.forwarder.received)

    (out,) = await _rows(near, "sys.dm_broker_connections")
    (accepted,) = await _rows(target, "sys.dm_broker_connections")

    expected = {"state": 4, "state_desc": "LOGGED_IN", "login_state": 12, "login_state_desc": "ONLINE"}
    assert expected | {"peer_name": "target", "is_accept": False} == {
        key: out[key] for key in (*expected, "peer_name", "is_accept")
    }
    assert expected | {"peer_name": "near", "is_accept": True} == {
        key: accepted[key] for key in (*expected, "peer_name", "is_accept")
    }
    assert out["connection_id"] != accepted["connection_id"]
    assert out["peer_instance"].bytes == target.broker_instance
    assert out["connect_time"] <= out["login_time"] <= out["last_activity_time"]
    assert accepted["total_fragments_received"] >= 1


async def test_stranger_that_says_nothing_is_shown(start: Any, until: Any) -> None:
    instance = await start("near")
    _, writer = await asyncio.open_connection("127.0.0.1", instance.listeners[0].port)
    await until(lambda: instance.peers.links)

    (row,) = await _rows(instance, "sys.dm_broker_connections")
    writer.close()

    assert (3, 1, None, None) == (row["state"], row["login_state"], row["peer_name"], row["login_time"])


async def test_held_frames_are_rows(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    for sequence in range(3):
        take(gateway, sequence_number=sequence)

    rows = await _rows(gateway, "sys.dm_broker_forwarded_messages")

    assert [row["message_sequence_number"] for row in rows] == [0, 1, 2]


async def test_drops_of_the_pass_and_of_databases_are_rows_with_the_last_frame(
    start: Any, take: Any, until: Any
) -> None:
    gateway = await start("gateway", msdb="CREATE ROUTE own WITH SERVICE_NAME = '//gateway', ADDRESS = 'LOCAL'")
    for sequence in (1, 2):
        take(gateway, sequence_number=sequence)
    take(gateway, to_service="//gateway", sequence_number=7)  # of a dialog whose beginning never came
    await until(lambda: gateway.endpoints["gateway"].dropped)

    ours, theirs = await _rows(gateway, "sys.dm_broker_dispositions")

    assert ("no route", 9798, None, 2) == tuple(ours.values())[:4]
    assert ("//far", "//near", 2, 1) == (
        ours["to_service_name"],
        ours["from_service_name"],
        ours["message_sequence_number"],
        ours["is_initiator"],
    )
    assert ("unknown conversation", 11213, "gateway", 1) == tuple(theirs.values())[:4]
    assert ("//gateway", 7) == (theirs["to_service_name"], theirs["message_sequence_number"])
    assert all(
        datetime.now(UTC) - timedelta(minutes=1) < row["last_time"] <= datetime.now(UTC) for row in (ours, theirs)
    )


async def test_message_that_waits_has_its_status(start: Any, send: Any, until: Any) -> None:
    instance = await start("near", DEAD_ROUTE)
    handle = send(instance, "//far", messages=2)
    await until(lambda: instance.endpoints["near"].transmitter.senders)

    statuses = await asyncio.to_thread(Snapshots(instance).transmission_statuses)

    assert [handle] == list(statuses)
    assert statuses[handle].startswith("waiting for a connection to tcp://127.0.0.1:1")


async def test_instance_that_sends_nothing_has_no_status(start: Any) -> None:
    instance = await start("near")

    assert await asyncio.to_thread(Snapshots(instance).transmission_statuses) == {}


async def test_more_dialogs_than_one_step_asks_about(
    start: Any, send: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.observe.view_rows.SENDERS_A_STEP", 2)
    instance = await start("near", DEAD_ROUTE)
    handles = {send(instance, "//far") for _ in range(5)}
    await until(lambda: len(instance.endpoints["near"].transmitter.senders) == 5)

    statuses = await asyncio.to_thread(Snapshots(instance).transmission_statuses)

    assert handles == statuses.keys()


async def test_dialog_that_ends_between_two_steps_is_left_out(start: Any, send: Any, until: Any) -> None:
    instance = await start("near", DEAD_ROUTE)
    send(instance, "//far")
    endpoint = instance.endpoints["near"]
    (endpoint_id,) = await until(lambda: list(endpoint.transmitter.senders))

    statuses = Snapshots(instance)._read_statuses(endpoint, [endpoint_id, endpoint_id + 1])

    assert [endpoint_id] == [found for found, _ in statuses]


async def test_file_that_cannot_be_read_is_told(start: Any, send: Any, until: Any) -> None:
    instance = await start("near", DEAD_ROUTE)
    send(instance, "//far")
    endpoint = instance.endpoints["near"]
    await until(lambda: endpoint.transmitter.senders)
    endpoint.path = endpoint.path.with_name("absent.db")

    with pytest.raises(StoreUnavailableError, match=r"absent\.db"):
        await asyncio.to_thread(Snapshots(instance).transmission_statuses)


async def test_fault_in_the_loop_is_raised_where_it_was_asked(start: Any) -> None:
    snapshots = Snapshots(await start("near"))

    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(snapshots._ask, lambda: 1 // 0)
