"""What passes is told as it was counted."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.dialog.send_queue import MICROSECONDS
from broker.flow import Disposition
from broker.forwarding.fib import OTHER_KIND
from broker.routing.address import NetworkAddress
from tests.support.scraped import samples_of

DEAD_ROUTE = "CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://127.0.0.1:1'"


async def test_every_reason_for_a_drop_is_there_from_the_start(start: Any) -> None:
    samples = await samples_of(await start("near"))

    expected = {(one.value,) for one in Disposition} - {("forwarded",), ("delivered",)}
    assert expected == samples["broker_messages_dropped_total"].keys()


async def test_messages_are_counted_on_their_way_through_a_gateway(start: Any, send: Any, until: Any) -> None:
    target = await start("target", msdb="CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'")
    address = f"tcp://127.0.0.1:{target.listeners[0].port}"
    gateway = await start("gateway", msdb=f"CREATE ROUTE next WITH SERVICE_NAME = '//target', ADDRESS = '{address}'")
    first = f"tcp://127.0.0.1:{gateway.listeners[0].port}"
    near = await start("near", f"CREATE ROUTE r WITH SERVICE_NAME = '//target', ADDRESS = '{first}'")
    send(near, "//target", messages=3)
    await until(lambda: target.endpoints["target"].delivered["//target"] == 3)

    at_near, at_gateway, at_target = await samples_of(near), await samples_of(gateway), await samples_of(target)

    assert at_near["broker_messages_received_total"]["", "message"] >= 3
    assert at_near["broker_transmission_queue_messages"] == {("near",): 3}  # no answer finds its way back
    assert at_near["broker_transmission_queue_oldest_seconds"]["near",] > 0
    assert at_near["broker_ledger_messages"] == {("near", "sent"): 3, ("near", "acknowledged"): 0, ("near", "held"): 3}
    assert at_near["broker_ledger_unaccounted_messages"] == {("",): 0, ("near",): 0}
    sent = at_gateway["broker_messages_received_total"]["near", "message"]
    assert sent >= 3
    assert at_gateway["broker_messages_forwarded_total"] == {("next", address): sent}
    assert at_gateway["broker_connections"] == {("near", "in", "LOGGED_IN"): 1, ("target", "out", "LOGGED_IN"): 1}
    assert at_gateway["broker_route_up"] == {("next", address): 1}
    assert at_target["broker_messages_delivered_total"] == {("//target",): 3}


async def test_what_a_closed_link_brought_stays_counted(start: Any, send: Any, until: Any) -> None:
    target = await start("target")
    route = f"CREATE ROUTE r WITH SERVICE_NAME = '//target', ADDRESS = 'tcp://127.0.0.1:{target.listeners[0].port}'"
    near = await start("near", route)
    send(near, "//target")
    await until(lambda: target.forwarder.received)
    (link,) = list(target.peers.links.values())

    link.close("for the test")
    samples = await samples_of(target)

    assert samples["broker_messages_received_total"]["near", "message"] >= 1


async def test_drops_are_counted_by_reason(start: Any, take: Any) -> None:
    gateway = await start("gateway")
    take(gateway)
    gateway.endpoints["gateway"].dropped[Disposition.DUPLICATE] += 2

    samples = await samples_of(gateway)

    assert samples["broker_messages_dropped_total"]["no route",] == 1
    assert samples["broker_messages_dropped_total"]["duplicate",] == 2
    assert samples["broker_duplicates_total"] == {(): 2}


async def test_held_frames_fill_the_pool(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)

    samples = await samples_of(gateway)

    assert samples["broker_forward_pool_messages"] == {(): 1}
    assert samples["broker_forward_pool_bytes"][()] > 114


async def test_retransmits_are_counted(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].transmitter.resent_to["tcp://gateway:4022"] += 4

    assert (await samples_of(instance))["broker_retransmits_total"] == {("tcp://gateway:4022",): 4}


async def test_peer_that_breaks_a_rule_is_counted(start: Any, until: Any) -> None:
    instance = await start("near")
    reader, writer = await asyncio.open_connection("127.0.0.1", instance.listeners[0].port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await until(lambda: instance.peers.faults)
    writer.close()
    del reader

    samples = await samples_of(instance)

    assert sum(samples["broker_peer_faults_total"].values()) == 1


async def test_kinds_of_later_versions_have_one_word(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].transmitter.received[OTHER_KIND] += 1

    assert (await samples_of(instance))["broker_messages_received_total"] == {("", "other"): 1}


async def test_frames_of_forgotten_addresses_stay_counted(start: Any) -> None:
    gateway = await start("gateway")
    gateway.forwarder.retired_frames = 7

    assert (await samples_of(gateway))["broker_messages_forwarded_total"] == {("other", "other"): 7}


async def test_time_at_a_gateway_and_round_trips_are_told(start: Any, send: Any, until: Any) -> None:
    target = await start("target", msdb="CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'")
    address = f"tcp://127.0.0.1:{target.listeners[0].port}"
    near = await start("near", f"CREATE ROUTE r WITH SERVICE_NAME = '//target', ADDRESS = '{address}'")
    send(near, "//target", messages=3)
    await until(lambda: target.endpoints["target"].delivered["//target"] == 3)

    at_near, at_target = await samples_of(near), await samples_of(target)

    received = sum(at_target["broker_messages_received_total"].values())
    assert at_target["broker_hop_duration_seconds_count"] == {(): received}
    assert at_near["broker_hop_duration_seconds_sum"][()] < 20
    near.endpoints["near"].transmitter.round_trips[NetworkAddress("far", 1), 3] += 2
    near.endpoints["near"].transmitter.round_trips[NetworkAddress("far", 1), MICROSECONDS] += 500
    trips = await samples_of(near)
    assert trips["broker_ack_roundtrip_seconds_count"]["tcp://far:1",] == 2
    assert trips["broker_ack_roundtrip_seconds_sum"]["tcp://far:1",] == 0.0005
