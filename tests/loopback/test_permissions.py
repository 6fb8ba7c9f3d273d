"""Who may connect and send, on real sockets with real certificates: each refusal, and what both sides hear of it."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broker.flow import Disposition
from broker.routing.decide import AddressHealth, hosted
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.security.grants import Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import parse_principal
from tests.support.certificates import Pair, authority, make, security
from tests.support.forwarding import Sender
from tests.support.loopback import HERE, Instance, instance, message, numbers, until
from tests.support.peers import HIGHER, LOWER

pytestmark = pytest.mark.usefixtures("guard")

CONNECT, SEND = Permission.CONNECT, Permission.SEND
MISSING = "no GRANT CONNECT ON ENDPOINT::[Broker] TO [CN=orders] or public"


@pytest.fixture(scope="module")
def ca() -> Pair:
    return authority()


class Street:
    """Neighbours with certificates of one CA. Shape: `grants` of each are its own; nothing by default."""

    def __init__(self, directory: Path, ca: Pair, stack: AsyncExitStack) -> None:
        self._directory = directory
        self._ca = ca
        self._stack = stack

    async def house(self, name: str, *rules: PermissionRule, **tuning: Any) -> Instance:
        pair = make(name, "127.0.0.1", by=self._ca)
        side = security(self._directory, os.urandom(4).hex(), pair, self._ca)
        one = await self._stack.enter_async_context(instance(security=side, **tuning))
        permit(one, *rules)
        return one


@pytest.fixture
async def street(tmp_path: Path, ca: Pair) -> AsyncIterator[Street]:
    async with AsyncExitStack() as stack:
        yield Street(tmp_path, ca, stack)


def rule(permission: Permission, principal: str, securable: str = "*") -> PermissionRule:
    return PermissionRule(permission, securable, parse_principal(principal), PermissionState.GRANT)


def permit(one: Instance, *rules: PermissionRule) -> None:
    """These rules hold from now on."""
    grants = Grants(rules, is_default_deny=one.peers.handshaker.security.is_authenticating)
    one.peers.apply_grants(grants)
    one.forwarder.forget_decisions()


def send(one: Instance, frames: list[bytes]) -> None:
    """As a database there would."""
    slab = bytearray(b"".join(frames))
    one.forwarder.forward(slab, len(slab), asyncio.get_running_loop().time(), Sender())


@pytest.mark.promise("Only permitted peers connect, send and read")
async def test_peer_without_the_grant_may_not_connect_and_both_sides_say_why(street: Street, logs: list[Any]) -> None:
    billing = await street.house("billing", rule(CONNECT, "CN=other"))
    orders = await street.house("orders", rule(CONNECT, "public"))
    orders.route(far=billing.address)

    send(orders, [message("//far")])
    await until(lambda: MISSING in orders.peers.table.problem_of(billing.address))

    assert AddressHealth.SUPPRESSED is orders.peers.table.health_of(billing.address)
    assert f"FATAL from CN=billing: CN=orders may not connect: {MISSING}" == orders.peers.table.problem_of(
        billing.address
    )
    closed = [(one["log_level"], one["reason"]) for one in logs if one["event"] == "link closed"]
    assert ("warning", f"CN=orders may not connect: {MISSING}") in closed
    assert billing.peers.protocol_errors["ConnectDeniedError"] >= 1
    assert [("127.0.0.1", f"CN=orders may not connect: {MISSING}")] == list(billing.peers.handshaker.refused)
    assert {} == orders.peers.handshaker.refused
    assert not any(link.online_at for link in billing.peers.links.values())
    assert orders.forwarder.pool.frames == 1


async def test_next_hop_that_may_connect_now_is_dialled_at_once(street: Street) -> None:
    """It was this instance that refused it, so it knows."""
    billing = await street.house("billing", rule(CONNECT, "public"), rule(SEND, "public"), service="//billing")
    orders = await street.house("orders")
    orders.route(billing=billing.address)
    send(orders, [message("//billing")])
    history = orders.peers.table.histories
    await until(lambda: billing.address in history and "CN=billing may not" in history[billing.address].problem)

    permit(orders, rule(CONNECT, "CN=billing"))

    assert history[billing.address].suppressed_until <= asyncio.get_running_loop().time()
    await until(lambda: billing.delivered)


async def test_peer_that_claims_the_arbitration_of_another_takes_nothing_over(street: Street) -> None:
    """Of two links to one process that of the lower id stays; mallory shows no certificate of billing's."""
    everybody = rule(CONNECT, "public"), rule(SEND, "public")
    orders = await street.house("orders", *everybody, arbitration=HIGHER)
    billing = await street.house("billing", *everybody, arbitration=LOWER, service="//billing")
    mallory = await street.house("mallory", *everybody, arbitration=LOWER, service="//billing", is_announcing=False)
    orders.route(billing=billing.address)
    send(orders, [message("//billing", 1)])
    await until(lambda: billing.delivered)
    mallory.route(orders=orders.address)
    send(mallory, [message("//orders", 1)])
    await until(lambda: orders.states() == ["LOGGED_IN"] * 2)

    send(orders, [message("//billing", 2)])

    await until(lambda: len(billing.delivered) == 2)
    assert [1, 2] == numbers(billing.delivered)
    assert [] == mallory.delivered
    assert ["LOGGED_IN"] * 2 == orders.states()


@pytest.mark.promise("Only permitted peers connect, send and read")
async def test_message_without_the_grant_is_dropped_counted_and_answered_with_the_missing_statement(
    street: Street,
) -> None:
    everybody = rule(CONNECT, "public")
    here = await street.house("gateway", everybody, rule(SEND, "orders", "//he*"))
    orders = await street.house("orders", everybody)
    orders.route(secret=here.address, heron=here.address)

    send(orders, [message(f"//{name}", n) for n, name in enumerate(["secret", "heron", "secret"])])
    await until(lambda: len(orders.advice) == 3)

    why = "not permitted: no GRANT SEND ON SERVICE::[//secret] TO [CN=orders] or public"
    assert {(11215, why): 2, (9798, "no route"): 1} == _counted(orders.advice)
    assert {Disposition.NOT_PERMITTED: 2, Disposition.NO_ROUTE: 1} == here.forwarder.dropped
    assert f"CN=orders may not send: {why.removeprefix('not permitted: ')}" in str(here.peers.permissions.refusals)
    assert b"//secret" in here.forwarder.last_dropped[Disposition.NOT_PERMITTED][1]
    assert here.forwarder.unaccounted == 0


@pytest.mark.promise("Only permitted peers connect, send and read")
async def test_link_whose_grant_is_gone_is_closed_and_one_that_has_it_stays(street: Street) -> None:
    here = await street.house("gateway", rule(CONNECT, "public"), rule(SEND, "public", "*"))
    houses = [await street.house(name, rule(CONNECT, "public")) for name in ("stays", "goes")]
    for house in houses:
        _route_to_here(house, here)
        send(house, [message("//here")])
    await until(lambda: len(here.delivered) == 2)

    permit(here, rule(CONNECT, "stays"), rule(SEND, "public", "*"))
    await until(lambda: "may not connect" in houses[1].peers.table.problem_of(here.address))

    assert {"CN=stays"} == {link.permit.who.name for link in here.peers.links.values() if link.can_send}
    assert AddressHealth.CONNECTED is houses[0].peers.table.health_of(here.address)


def _route_to_here(house: Instance, here: Instance) -> None:
    """The house forwards what is for //here, although it has a service of that name itself."""
    table = build_table([Route("out", here.address, remote_service_name="//here")], now=datetime.now(UTC))
    house.forwarder.set_routing(table=table, hosted=hosted({HERE: []}), is_forwarding=True)


def _counted(advice: list[Any]) -> dict[tuple[int, str], int]:
    told: dict[tuple[int, str], int] = {}
    for one in advice:
        told[one.code, one.reason] = told.get((one.code, one.reason), 0) + 1
    return told
