"""Mirrored routes in use, as rows, as a status and as metrics."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.observe.snapshot import (
    forwarded_samples,
    mirror_rows,
    mirror_status,
    principal_samples,
    read_mirrors,
    state_samples,
)
from broker.observe.views import MEMORY_VIEWS, MIRRORS
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from broker.routing.mirrored import MirroredRoute
from broker.routing.route import MirroredPair

NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")
PAIR = MirroredPair("//billing", UUID(int=1), NORTH, SOUTH)


class Mirrors:
    """One pair: north says that it is the principal, south cannot be reached; two frames wait."""

    def __init__(self) -> None:
        route = MirroredRoute(NORTH, SOUTH, lambda: 0.0)
        route.use(100.0)
        self.in_use = {PAIR: SimpleNamespace(route=route)}
        self.route = route

    def lead(self) -> None:
        self.route.on_reply(NORTH, "principal", 3, 101.0)
        self.route.on_unreachable(SOUTH, "Connection refused", 101.0)

    def waiting(self, pair: MirroredPair) -> tuple[int, int]:
        return {PAIR: (2, 700)}[pair]

    def route_name(self, pair: MirroredPair) -> str:
        return {PAIR: "to billing"}[pair]


@pytest.fixture
def mirrors() -> Any:
    return Mirrors()


def row(mirrors: Any) -> dict[str, object]:
    ((one),) = mirror_rows(read_mirrors(mirrors, 102.0))
    return dict(zip(MEMORY_VIEWS[MIRRORS], one, strict=True))


def test_row_tells_both_partners_and_what_waits(mirrors: Any) -> None:
    """Instants are of the wall clock."""
    mirrors.lead()
    told = row(mirrors)

    asked, answered = told.pop("address_probe_time"), told.pop("address_answer_time")
    assert isinstance(asked, datetime)
    assert isinstance(answered, datetime)
    assert abs((datetime.now(UTC) - asked).total_seconds() - 2) < 60
    assert 1.0 == pytest.approx((answered - asked).total_seconds(), abs=0.001)
    assert told.pop("mirror_probe_time") == asked
    assert told == {
        "route_name": "to billing",
        "remote_service_name": "//billing",
        "broker_instance": UUID(int=1),
        "address": "tcp://north:4022",
        "mirror_address": "tcp://south:4022",
        "principal_address": "tcp://north:4022",
        "state": 2,
        "state_desc": "PRINCIPAL_ONLY",
        "epoch": 3,
        "address_role": "principal",
        "address_epoch": 3,
        "address_problem": None,
        "mirror_answer_time": None,
        "mirror_role": None,
        "mirror_epoch": None,
        "mirror_problem": "Connection refused",
        "next_probe_time": None,
        "waiting_messages": 2,
        "waiting_bytes": 700,
        "alarm": None,
    }


def test_row_of_a_pair_without_principal_tells_when_it_is_asked_again(mirrors: Any) -> None:
    """And nothing of answers that did not come."""
    told = row(mirrors)

    assert (3, None) == (told["state"], told["principal_address"])
    assert isinstance(told["next_probe_time"], datetime)


def test_status_is_plain_json(mirrors: Any) -> None:
    """With the addresses as keys."""
    mirrors.lead()

    (status,) = mirror_status(read_mirrors(mirrors, 102.0))

    assert status == json.loads(json.dumps(status))
    assert status == {
        "route": "to billing",
        "service": "//billing",
        "broker_instance": str(UUID(int=1)),
        "state": "PRINCIPAL_ONLY",
        "principal": "tcp://north:4022",
        "epoch": 3,
        "partners": {
            "tcp://north:4022": {"role": "principal", "epoch": 3, "problem": ""},
            "tcp://south:4022": {"role": None, "epoch": None, "problem": "Connection refused"},
        },
        "held": 2,
        "held_bytes": 700,
        "alarm": "",
    }


def test_metrics_tell_which_address_is_the_principal(mirrors: Any) -> None:
    """Neither, while none is known."""
    north, south = ("to billing", "tcp://north:4022"), ("to billing", "tcp://south:4022")
    assert ({north: 0, south: 0}, {("to billing",): 3}) == (
        dict(principal_samples(mirrors)),
        dict(state_samples(mirrors)),
    )

    mirrors.lead()

    assert ({north: 1, south: 0}, {("to billing",): 2}) == (
        dict(principal_samples(mirrors)),
        dict(state_samples(mirrors)),
    )


def test_frames_that_left_are_told_by_the_principal_of_that_time() -> None:
    """And of plain addresses as ever."""
    forwarder = Forwarder(
        Limits(1 << 20, 1 << 16, 16),
        deliver=lambda *_: None,
        want=lambda _: None,
        health_of=lambda _: AddressHealth.UNTRIED,
    )
    ways = forwarder._ways
    pair = ways.to(ways.pairs.outbox(PAIR), Disposition.FORWARDED, "to billing", 0x10)
    plain = ways.to(ways.outbox(SOUTH), Disposition.FORWARDED, "plain", 0x10)
    forwarder.lead({PAIR: NORTH}, 1.0)
    pair.frames, plain.frames = 3, 5
    ways.drop(Disposition.NO_ROUTE, 0x10).frames = 7
    forwarder.lead({PAIR: None}, 2.0)
    assert {("plain", str(SOUTH)): 5, ("to billing", str(NORTH)): 3} == told(forwarder)

    forwarder.lead({PAIR: SOUTH}, 3.0)
    pair.frames = 2

    assert {
        ("plain", str(SOUTH)): 5,
        ("to billing", str(NORTH)): 3,
        ("to billing", str(SOUTH)): 2,
    } == told(forwarder)
    assert forwarder.forwarded == 10


def test_frames_that_left_are_told_as_of_the_first_step() -> None:
    """Whatever happens while the others are made: a way more, frames more, another principal."""
    forwarder = Forwarder(
        Limits(1 << 20, 1 << 16, 16),
        deliver=lambda *_: None,
        want=lambda _: None,
        health_of=lambda _: AddressHealth.UNTRIED,
    )
    ways = forwarder._ways
    plain = ways.to(ways.outbox(SOUTH), Disposition.FORWARDED, "plain", 0x10)
    pair = ways.to(ways.pairs.outbox(PAIR), Disposition.FORWARDED, "to billing", 0x10)
    forwarder.lead({PAIR: NORTH}, 1.0)
    plain.frames, pair.frames = 5, 3
    samples = forwarded_samples(forwarder)

    first = next(samples)
    plain.frames, pair.frames = 6, 4
    forwarder.lead({PAIR: SOUTH}, 2.0)
    ways.to(ways.outbox(NORTH), Disposition.FORWARDED, "later", 0x10).frames = 1

    assert [(("plain", str(SOUTH)), 5), (("to billing", str(NORTH)), 3)] == [first, *samples]


def told(forwarder: Forwarder) -> dict[Any, float]:
    added: Counter[Any] = Counter()
    for labels, frames in forwarded_samples(forwarder):
        added[labels] += cast("int", frames)
    return dict(added)


async def test_view_is_asked_like_any_other(start: Any) -> None:
    """By a statement, of an instance that runs."""
    instance = await start(
        "gateway",
        msdb="CREATE ROUTE pair WITH SERVICE_NAME = '//far', BROKER_INSTANCE = '00000000-0000-0000-0000-000000000001',"
        " ADDRESS = 'tcp://127.0.0.1:1', MIRROR_ADDRESS = 'tcp://127.0.0.1:2'",
    )
    (route,) = instance.catalog.msdb.table.routes("//far", UUID(int=1).bytes)
    instance.mirrors.use(route.pair)
    await asyncio.sleep(0)

    (shown,) = read_mirrors(instance.mirrors, asyncio.get_running_loop().time())

    assert (route.pair, "pair", "NOT_OPERATIONAL") == (shown.pair, shown.route_name, shown.state_desc)
