"""Who is asked when, and what follows from the answers, between played neighbours."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from itertools import count
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from broker.conversation.window import NEVER
from broker.dialog.status import PathProblem
from broker.flow import Disposition
from broker.net.mirrors import AT_ONCE, CHECK_SECONDS, PAUSE_SECONDS, STATE_CHANGED, MirrorLog
from broker.protocol.frame import Probe, ProbeReply, Rejected, encode_link
from broker.routing.address import NetworkAddress
from broker.routing.decide import Hosted
from broker.routing.mirrored import MirroredRoute
from broker.routing.route import MirroredPair, Route
from broker.routing.table import build_table
from tests.support.loopback import until
from tests.support.peers import HIGHER, Neighbourhood, said
from tests.support.played import PlayedLoop, PlayedSocket

# --- the log ---


NORTH, SOUTH, EAST, WEST = [NetworkAddress(name) for name in ("north", "south", "east", "west")]
PAIR = MirroredPair("//S", UUID(int=1), NORTH, SOUTH)


class Watched:
    """A pair in use, its log, and the lines written."""

    def __init__(self, loop: PlayedLoop, lines: list[Any]) -> None:
        self.loop = loop
        self.route = MirroredRoute(NORTH, SOUTH, lambda: 0.0)
        self.log = MirrorLog(PAIR, self.route, loop)
        self.lines = lines

    def flap(self, times: int) -> None:
        """So many changes, now."""
        for _ in range(times):
            if self.route.principal is None:
                self.route.use(self.loop.time())
            role = "principal" if self.route.principal is None else "mirror"
            self.route.on_reply(NORTH, role, 5, self.loop.time())
            self.log.update()
            self.log.update()

    def changes(self) -> list[int]:
        told = [line["changes"] for line in self.lines]
        self.lines.clear()
        return told


@pytest.fixture
async def watched(loop: PlayedLoop) -> AsyncIterator[Watched]:
    with capture_logs() as lines:
        yield Watched(loop, cast("list[Any]", lines))


@pytest.mark.promise("R6.5")
async def test_line_has_the_fields_of_the_event(watched: Watched) -> None:
    """And the number of the original's; an alarm is a warning."""
    watched.flap(1)

    assert watched.lines[0] == {
        "event": "mirrored route state changed",
        "log_level": "info",
        "number": STATE_CHANGED,
        "state": 2,
        "state_desc": "PRINCIPAL_ONLY",
        "service": "//S",
        "broker_instance": str(UUID(int=1)),
        "principal": str(NORTH),
        "epoch": 5,
        "alarm": "",
        "changes": 1,
    }
    watched.route.on_reply(SOUTH, "principal", 4, watched.loop.time())
    watched.log.update()
    assert "warning" == watched.lines[1]["log_level"]


async def test_few_changes_are_told_at_once_and_many_once_a_second(watched: Watched) -> None:
    watched.flap(AT_ONCE + 999)
    assert [1] * AT_ONCE == watched.changes()

    await asyncio.sleep(PAUSE_SECONDS / 2)
    watched.flap(1)
    assert [] == watched.changes()
    await asyncio.sleep(PAUSE_SECONDS / 2 + 0.01)
    assert "NOT_OPERATIONAL" == watched.lines[-1]["state_desc"]
    assert [1000] == watched.changes()

    watched.flap(AT_ONCE + 1)
    watched.changes()
    watched.log.close()
    await asyncio.sleep(10.0)
    assert [] == watched.changes()


# --- between neighbours ---


BILLING, ORDERS = UUID(int=1), UUID(int=2)
MIRROR = Disposition.DATABASE_IS_MIRROR.number


def route_to(
    name: str, first: NetworkAddress = NORTH, second: NetworkAddress = SOUTH, instance: UUID = BILLING
) -> Route:
    return Route(name, first, f"//{name}", instance, mirror_address=second)


def pair_of(one: Route) -> MirroredPair:
    assert one.pair is not None
    return one.pair


class Town:
    """Neighbours at the addresses of pairs. Shape: `socks` of those that serve an address now."""

    def __init__(self, near: Neighbourhood) -> None:
        self.near = near
        self.mirrors = near.peers.mirrors
        self.socks: dict[NetworkAddress, PlayedSocket] = {}
        self._numbers = count(1)

    @property
    def led(self) -> Mapping[MirroredPair, NetworkAddress]:
        return self.near.forwarder.routing_context.principals

    def route(self, *routes: Route) -> None:
        table = build_table(routes, now=datetime.now(UTC))
        self.near.forwarder.set_routing(table=table, hosted=Hosted(), is_forwarding=True)
        self.mirrors.on_routes([table])

    async def use(self, *routes: Route) -> None:
        for one in routes:
            self.mirrors.use(pair_of(one))
        for _ in range(5):
            await asyncio.sleep(0)

    def connect(self, address: NetworkAddress, **hello: Any) -> PlayedSocket:
        """A neighbour announces an address; whoever served it before goes."""
        arbitration, before = next(self._numbers).to_bytes(16, "big"), self.socks.get(address)
        self.socks[address] = self.near.accept(addresses=[str(address)], arbitration=arbitration, **hello)
        if before is not None:
            before.end()
        return self.socks[address]

    async def lead_to(self, address: NetworkAddress, *routes: Route) -> PlayedSocket:
        """Routes whose addresses are connected, one link each, are in use and led to a principal."""
        self.route(*routes)
        self.connect(NORTH)
        self.connect(SOUTH)
        await self.use(*routes)
        for instance in {route.broker_instance for route in routes if route.broker_instance}:
            self.says(address, "principal", instance=instance)
        self.asked()
        return self.socks[address]

    def says(self, address: NetworkAddress, role: str, epoch: int = 1, instance: UUID = BILLING) -> None:
        self.socks[address].feed(encode_link(ProbeReply(0, instance.bytes, role, epoch)))

    def asked(self) -> list[tuple[str, bytes]]:
        """Who was asked since the last look, and about which broker instance."""
        probes = [(to.host, one) for to, sock in self.socks.items() for one in said(sock) if isinstance(one, Probe)]
        for sock in self.socks.values():
            sock.written = b""
        return [(host, one.broker_instance) for host, one in probes]

    def hosts_asked(self) -> list[str]:
        return [host for host, _ in self.asked()]

    @property
    def dialled(self) -> set[NetworkAddress]:
        return {address for address, _ in self.near.dialled}


@pytest.fixture
async def town(near: Neighbourhood) -> Town:
    return Town(near)


ONE = route_to("one")


async def test_all_pairs_of_one_service_and_broker_instance_are_asked(town: Town) -> None:
    """The principal may be at the addresses of another route."""
    moved = Route("moved", EAST, "//one", BILLING, mirror_address=WEST)
    town.route(ONE, moved)
    for address in (NORTH, SOUTH, EAST, WEST):
        town.connect(address)

    await town.use(ONE)
    assert ["east", "north", "south", "west"] == sorted(town.hosts_asked())
    town.says(EAST, "principal")

    assert {pair_of(moved): EAST} == town.led


async def test_who_is_not_connected_is_dialled_and_asked_by_the_first_link(town: Town) -> None:
    town.near.reachable.add(SOUTH)
    town.route(ONE)
    await town.use(ONE)
    assert ({NORTH, SOUTH}, 0) == (town.dialled, town.mirrors.probes)

    [town.socks[SOUTH]] = town.near.socks
    town.near.greet(town.socks[SOUTH])

    assert ["south"] == town.hosts_asked()


@pytest.mark.promise("R6.1", "R6.7", "3a", "routing 33")
async def test_claim_leads_and_tells_the_dialogs(town: Town) -> None:
    """In a later turn, as more may come."""
    town.route(ONE)
    town.connect(SOUTH)
    await town.use(ONE)
    rooms = town.near.rooms

    town.says(SOUTH, "principal", 3)
    assert ({pair_of(ONE): SOUTH}, rooms) == (town.led, town.near.rooms)
    await asyncio.sleep(0)

    assert (rooms + 1, SOUTH) == (town.near.rooms, town.mirrors.principal_of(pair_of(ONE)))
    assert {"principal": 1} == town.mirrors.answers


@pytest.mark.promise("R6.6")
async def test_one_answer_counts_for_every_service_of_the_broker_instance(town: Town) -> None:
    two, three = route_to("two"), route_to("three", instance=ORDERS)
    town.route(ONE, two, three)
    town.connect(NORTH)
    await town.use(ONE, two, three)

    town.says(NORTH, "principal")

    assert {pair_of(ONE): NORTH, pair_of(two): NORTH} == town.led


@pytest.mark.promise("R6.4")
async def test_only_the_link_that_serves_an_address_speaks_for_it(town: Town) -> None:
    town.near.reachable.add(NORTH)
    town.route(ONE)
    await town.use(ONE)
    town.near.greet(town.near.socks[0])
    other = town.near.accept(addresses=[str(NORTH), str(SOUTH)], arbitration=HIGHER)

    other.feed(encode_link(ProbeReply(0, BILLING.bytes, "principal", 9)))

    assert {pair_of(ONE): SOUTH} == town.led


@pytest.mark.promise("R6.2")
async def test_principal_is_asked_again_by_another_link_and_its_partner_is_not(town: Town) -> None:
    """So that its peer knows whom to tell; R6.2 holds for the partner."""
    before = await town.lead_to(NORTH, ONE)

    town.connect(NORTH)
    town.connect(SOUTH)

    assert (["north"], []) == (town.hosts_asked(), said(before))


@pytest.mark.parametrize("has_failed", [False, True])
async def test_question_that_waits_for_its_connection_is_put_though_the_principal_has_answered(
    town: Town, *, has_failed: bool
) -> None:
    """Only so it becomes known that the partner is a mirror; after a failed attempt R6.2 holds again."""
    if not has_failed:
        town.near.reachable.add(SOUTH)
    town.route(ONE)
    town.connect(NORTH)
    await town.use(ONE)
    town.says(NORTH, "principal")
    town.asked()

    town.connect(SOUTH)

    assert ([] if has_failed else ["south"]) == town.hosts_asked()


@pytest.mark.promise("R6.3", "R6.7", "routing 35", "routing 36")
async def test_lost_principal_is_none_and_both_are_asked_when_it_is_time(town: Town) -> None:
    """Neither sooner than 200 ms after it was asked last."""
    await town.lead_to(NORTH, ONE)
    town.near.reachable.add(NORTH)

    town.socks.pop(NORTH).end()
    assert {} == town.led
    await until(lambda: town.near.dialled)

    assert (["south"], {NORTH}) == (town.hosts_asked(), town.dialled)
    trouble = town.mirrors.trouble_of(pair_of(ONE))
    assert f"{NORTH} (closed by the peer), {SOUTH} has not answered yet" == trouble.problem
    assert trouble.retry_at != NEVER


async def test_this_very_instance_is_asked_without_a_link_and_again_when_its_role_changes(town: Town) -> None:
    town.near.role = "principal"
    town.near.forwarder.add_own_addresses({SOUTH}, town.near.loop.time())
    town.route(ONE)

    await town.use(ONE)
    assert ({NORTH}, {pair_of(ONE): SOUTH}) == (town.dialled, town.led)

    town.near.role = "mirror"
    town.near.peers.announce_role(ORDERS.bytes)
    await asyncio.sleep(0)
    assert {pair_of(ONE): SOUTH} == town.led
    town.near.peers.announce_role(BILLING.bytes)
    await asyncio.sleep(0)
    assert {} == town.led


@pytest.mark.parametrize("code", [MIRROR, Disposition.INSTANCE_NOT_HERE.number])
@pytest.mark.promise("R6.3")
async def test_refused_frame_makes_the_principal_be_asked_and_its_answer_decides(town: Town, code: int) -> None:
    """What is refused may have been for somebody else there; other refusals do not matter."""
    two = route_to("two")
    sock = await town.lead_to(NORTH, ONE, two)
    led = {pair_of(ONE): NORTH, pair_of(two): NORTH}

    sock.feed(encode_link(Rejected(code=Disposition.POOL_LIMIT.number)))
    assert [] == town.asked()
    sock.feed(encode_link(Rejected(code=code)))
    assert (["north"], led) == (town.hosts_asked(), town.led)
    town.says(NORTH, "principal")
    assert led == town.led
    town.says(NORTH, "mirror")

    assert {} == town.led
    problem = town.mirrors.trouble_of(pair_of(ONE)).problem
    assert f"{NORTH} says mirror, epoch 1, {SOUTH} has not answered yet" == problem


@pytest.mark.promise("R6.3")
async def test_frames_refused_all_the_time_have_each_broker_instance_asked_now_and_then(town: Town) -> None:
    """However many come, whomever they were for: every 200 ms at most, and nothing changes."""
    routes = ONE, route_to("two"), route_to("other", instance=ORDERS)
    sock = await town.lead_to(NORTH, *routes)

    for _ in range(100):
        sock.feed(encode_link(Rejected(code=MIRROR)))
    assert [("north", BILLING.bytes), ("north", ORDERS.bytes)] == sorted(town.asked())
    await asyncio.sleep(CHECK_SECONDS)
    sock.feed(encode_link(Rejected(code=MIRROR)))

    assert ["north", "north"] == town.hosts_asked()
    assert {pair_of(one): NORTH for one in routes} == town.led


@pytest.mark.parametrize("is_in_use_first", [True, False])
async def test_both_addresses_of_one_instance_are_alarming(town: Town, *, is_in_use_first: bool) -> None:
    """By the instance ids that their peers told, whenever they did."""
    town.route(ONE)
    if is_in_use_first:
        await town.use(ONE)
    town.connect(NORTH, instance=UUID(int=7).bytes)
    town.connect(SOUTH, instance=UUID(int=7).bytes)
    await town.use(ONE)

    alarm = f"{NORTH} and {SOUTH} both lead to instance {UUID(int=7)}: correct one of them"
    assert alarm == town.mirrors.in_use[pair_of(ONE)].route.alarm
    town.connect(SOUTH, instance=UUID(int=8).bytes)
    assert "" == town.mirrors.in_use[pair_of(ONE)].route.alarm


async def test_pair_that_no_route_names_any_more_is_forgotten(town: Town) -> None:
    two = route_to("two")
    sock = await town.lead_to(NORTH, ONE, two)
    sock.room = 0
    for number in range(2):
        town.near.send(NORTH, number, to_service="//two", to_broker_instance=BILLING.bytes)
    frames, used = town.mirrors.waiting(pair_of(two))
    assert ((0, 0), 2, True) == (town.mirrors.waiting(pair_of(ONE)), frames, used > 0)
    assert "one" == town.mirrors.route_name(pair_of(ONE))

    town.route(two)
    assert ([pair_of(two)], {pair_of(two): NORTH}) == (list(town.mirrors.in_use), town.led)
    town.route()
    sock.end()

    assert ({}, {}) == (town.mirrors.in_use, town.led)
    assert (PathProblem(), "") == (town.mirrors.trouble_of(pair_of(ONE)), town.mirrors.route_name(pair_of(ONE)))
