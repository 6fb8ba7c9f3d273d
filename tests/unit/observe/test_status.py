from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from broker.catalog.catalog import ScriptProgress, ScriptStage
from broker.catalog.execute import execute
from broker.ddl.parser import parse_script
from broker.flow import Disposition
from broker.forwarding.kernels import choose_kernel
from broker.observe.snapshot import dropped_by_reason
from broker.observe.status import UNTRIED_MAX, add_backlog, backlog_paths, by_kind, kind_name, read_status, show_guid
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
    assert set() == gateway.peers.known_addresses


async def test_of_many_next_hops_that_nobody_has_dialled_the_first_are_told(start: Any) -> None:
    routes = ";".join(f"CREATE ROUTE r{n} WITH ADDRESS = 'tcp://127.0.0.1:{1000 + n}'" for n in range(UNTRIED_MAX + 5))
    gateway = await start("gateway", msdb=routes)

    addresses = read_status(gateway)["addresses"]

    assert [f"tcp://127.0.0.1:{1000 + number}" for number in range(UNTRIED_MAX)] == list(addresses)


async def test_address_that_does_not_answer_tells_why(start: Any, take: Any, until: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)
    await until(lambda: any(attempts.problem for attempts in gateway.peers.attempts.values()))

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
