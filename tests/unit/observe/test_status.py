"""The status of an instance that runs, and what is null in it where a file could not be read."""

import json
from typing import Any

import msgspec

from broker.catalog.execute import execute
from broker.ddl.parser import parse_script
from broker.observe.database_stats import QuickStats
from broker.observe.snapshot import UNTRIED_MAX, read_snapshot
from broker.observe.status import QueueStatus, Status
from broker.observe.status_rendering import STATUS, render_status
from broker.protocol.layout import FrameKind
from broker.routing.address import NetworkAddress
from broker.store.sqlite.inspect import Backlog, LedgerBalance
from tests.support.loopback import until
from tests.unit.observe.conftest import DEAD

DEAD_ROUTE = f"CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = '{DEAD}'"


def status_of(instance: Any) -> Status:
    return render_status(read_snapshot(instance, STATUS), {})


def _route_to(instance: Any) -> str:
    port = instance.listeners[0].port
    return f"CREATE ROUTE r WITH SERVICE_NAME = '//{instance.name}', ADDRESS = 'tcp://127.0.0.1:{port}'"


async def test_the_first_next_hops_that_were_not_dialled_are_untried_and_the_own_address_is_not_there(
    start: Any,
) -> None:
    routes = ";".join(f"CREATE ROUTE r{n} WITH ADDRESS = 'tcp://127.0.0.1:{1000 + n}'" for n in range(UNTRIED_MAX + 5))
    gateway = await start("gateway", msdb=routes)
    await execute(gateway.catalog, parse_script(_route_to(gateway)), database="msdb")

    status = status_of(gateway)

    assert status == msgspec.convert(json.loads(msgspec.json.encode(status)), Status)
    assert [(f"tcp://127.0.0.1:{1000 + number}", "untried", "", 0) for number in range(UNTRIED_MAX)] == [
        (name, one.health, one.problem, one.held) for name, one in status.addresses.items()
    ]
    assert set() == gateway.peers.table.known_addresses


async def test_an_address_that_no_route_names_any_longer_is_not_there(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)
    await until(lambda: any(attempts.problem for attempts in gateway.peers.table.histories.values()))

    await execute(gateway.catalog, parse_script("DROP ROUTE far"), database="msdb")

    assert {} == status_of(gateway).addresses
    gateway.forwarder.table.outbox(NetworkAddress("former"))  # nothing is held there, and it was never dialled
    assert {} == status_of(gateway).addresses


async def test_an_address_that_a_service_name_has_is_there_while_a_dialog_waits_for_it(start: Any, send: Any) -> None:
    orders = await start("orders", "CREATE ROUTE by_name WITH ADDRESS = 'TRANSPORT'")
    send(orders, f"{DEAD}/Far")

    await until(orders.endpoints["orders"].transmitter.blocked)
    await until(lambda: status_of(orders).addresses[DEAD].problem)

    assert "Connection refused" == status_of(orders).addresses[DEAD].problem


async def test_what_the_files_hold_is_put_in_and_null_where_they_cannot_be_read(start: Any) -> None:
    snapshot = read_snapshot(await start("orders"), STATUS)
    queue = QueueStatus("Q", is_receive_enabled=False, oldest_s=1.234)
    stats = QuickStats(Backlog(4, 1.23456), LedgerBalance(5, 2, 1, {"why": 2}), 2, (queue,))

    known = msgspec.to_builtins(render_status(snapshot, {"orders": stats}))["databases"]["orders"]
    unknown = render_status(snapshot, {"orders": None}).databases["orders"]

    assert {
        "waiting_messages": 4,
        "oldest_waiting_s": 1.235,
        "ledger": {"sent": 5, "acknowledged": 2, "held": 1, "failed": {"why": 2}, "unaccounted": 0},
        "quarantined": 2,
        "queues": [{"name": "Q", "is_receive_enabled": False, "oldest_s": 1.234}],
    }.items() <= known.items()
    assert (None, None, None, None) == (unknown.waiting_messages, unknown.ledger, unknown.quarantined, unknown.queues)


async def test_kinds_of_later_versions_are_counted_together(start: Any) -> None:
    instance = await start("near")

    instance.forwarder.received.update({FrameKind.MESSAGE: 1, 0x13: 2, 0x14: 3})

    assert {"message": 1, "ack": 0, "fault": 0, "other": 5} == status_of(instance).forwarding.received
