"""Who is asked when, and what follows from the answers: the carrier alone, between played peers and a played pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from broker.conversation.window import NEVER
from broker.dialog.status import PathProblem
from broker.flow import Disposition
from broker.net.link import Link
from broker.net.mirrors import AT_ONCE, CHECK_SECONDS, PAUSE_SECONDS, STATE_CHANGED, MirrorLog, Mirrors
from broker.protocol.frame import Probe, ProbeReply, Rejected
from broker.protocol.layout import NO_GUID
from broker.routing.address import NetworkAddress
from broker.routing.mirrored import MirroredRoute
from broker.routing.route import MirroredPair, Route
from broker.routing.table import build_table
from tests.support.loopback import until
from tests.support.played import PlayedLoop

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


# --- in words ---


BILLING, ORDERS = UUID(int=1), UUID(int=2)
MIRROR = Disposition.DATABASE_IS_MIRROR.number


def route_to(
    name: str, first: NetworkAddress = NORTH, second: NetworkAddress = SOUTH, instance: UUID = BILLING
) -> Route:
    return Route(name, first, f"//{name}", instance, mirror_address=second)


def pair_of(one: Route) -> MirroredPair:
    assert one.pair is not None
    return one.pair


@dataclass(eq=False)
class PlayedLink:
    """A link; `addresses` it serves, `agreement` with the instance at its end."""

    addresses: list[NetworkAddress]
    agreement: Any = None


class Town:
    """
    Peers, and the pass that is told.

    Shape: `links` by the address that they serve; `asked` addresses with the probes said there, in order; `wanted`
    addresses that nobody serves; `led` what the pass was told; `rooms` how often dialogs were.
    """

    def __init__(self) -> None:
        self.links: dict[NetworkAddress, Any] = {}
        self.asked: list[tuple[NetworkAddress, Probe]] = []
        self.wanted: list[NetworkAddress] = []
        self.led: list[Mapping[MirroredPair, NetworkAddress | None]] = []
        self.rooms = 0
        self.role = "principal"
        self.routing_context = SimpleNamespace(own=set(), principals={})
        self.pair_outboxes: dict[MirroredPair, Any] = {}
        me = cast("Any", self)
        self.mirrors = Mirrors(
            me,
            send_probe=me.send_probe,
            addresses_served_by=me.addresses_served_by,
            answer_probe=self.prove,
            on_capacity=self._on_room,
            jitter=lambda: 0.0,
        )

    # peers

    def send_probe(self, address: NetworkAddress, probe: Probe) -> PlayedLink | None:
        link = self.links.get(address)
        if link is None:
            self.wanted.append(address)
        else:
            self.asked.append((address, probe))
        return link

    def addresses_served_by(self, link: PlayedLink) -> list[NetworkAddress]:
        return [address for address in link.addresses if self.links.get(address) is link]

    def prove(self, probe: Probe) -> ProbeReply:
        return ProbeReply(probe.id, probe.broker_instance, self.role, 5)

    # the pass

    @property
    def table(self) -> Town:
        return self

    def set_principals(self, changes: Mapping[MirroredPair, NetworkAddress | None], _now: float) -> None:
        self.led.append(changes)
        known = {**self.routing_context.principals, **changes}
        self.routing_context.principals = {pair: address for pair, address in known.items() if address is not None}

    def _on_room(self) -> None:
        self.rooms += 1

    # the test

    def connect(self, *addresses: NetworkAddress, instance: UUID | None = None) -> Link:
        peer = SimpleNamespace(instance=NO_GUID if instance is None else instance.bytes)
        link: Any = PlayedLink(list(addresses), SimpleNamespace(peer=peer))
        for address in addresses:
            self.links[address] = link
            self.mirrors.on_served(address, link)
        return cast("Link", link)

    async def lead_to(self, address: NetworkAddress, *routes: Route) -> Link:
        """Routes whose addresses are connected, one link each, are in use and led to a principal."""
        self.route(*routes)
        links = {one: self.connect(one) for one in (NORTH, SOUTH)}
        await self.use(*routes)
        for instance in {route.broker_instance for route in routes if route.broker_instance}:
            self.says(address, "principal", instance=instance)
        self.asked.clear()
        return links[address]

    def cut(self, address: NetworkAddress) -> None:
        del self.links[address]
        self.mirrors.on_unserved(address, "cut")

    def route(self, *routes: Route) -> None:
        self.mirrors.on_routes([build_table(routes, now=datetime.now(UTC))])

    async def use(self, *routes: Route) -> None:
        for one in routes:
            self.mirrors.use(pair_of(one))
        await asyncio.sleep(0)

    def says(self, address: NetworkAddress, role: str, epoch: int = 1, instance: UUID = BILLING) -> None:
        self.mirrors.on_probe_reply(self.links[address], ProbeReply(0, instance.bytes, role, epoch))

    def hosts_asked(self) -> list[str]:
        hosts = [address.host for address, _ in self.asked]
        self.asked.clear()
        return hosts


@pytest.fixture
async def town() -> Any:
    town = Town()
    yield town
    town.mirrors.close()


ONE = route_to("one")


async def test_all_pairs_of_one_service_and_broker_instance_are_asked(town: Town) -> None:
    """The principal may be at the addresses of another route."""
    moved = Route("moved", EAST, "//one", BILLING, mirror_address=WEST)
    town.route(ONE, moved)
    for address in (NORTH, SOUTH, EAST, WEST):
        town.connect(address)

    await town.use(ONE)
    town.says(EAST, "principal")

    assert ["east", "north", "south", "west"] == sorted(town.hosts_asked())
    assert [{pair_of(moved): EAST}] == town.led


async def test_who_is_not_connected_is_dialled_and_asked_by_the_first_link(town: Town) -> None:
    town.route(ONE)
    await town.use(ONE)
    assert ([NORTH, SOUTH], 0) == (town.wanted, town.mirrors.probes)

    town.connect(SOUTH)

    assert ["south"] == town.hosts_asked()


@pytest.mark.promise("R6.1", "R6.7", "3a", "routing 33")
async def test_claim_leads_and_tells_the_dialogs(town: Town) -> None:
    """In a later turn, as more may come."""
    town.route(ONE)
    town.connect(SOUTH)
    await town.use(ONE)

    town.says(SOUTH, "principal", 3)
    assert [{pair_of(ONE): SOUTH}] == town.led
    await asyncio.sleep(0)

    assert (1, SOUTH) == (town.rooms, town.mirrors.principal_of(pair_of(ONE)))
    assert {"principal": 1} == town.mirrors.answers


@pytest.mark.promise("R6.6")
async def test_one_answer_counts_for_every_service_of_the_broker_instance(town: Town) -> None:
    two, three = route_to("two"), route_to("three", instance=ORDERS)
    town.route(ONE, two, three)
    town.connect(NORTH, SOUTH)
    await town.use(ONE, two, three)

    town.says(NORTH, "principal")

    assert [{pair_of(ONE): NORTH, pair_of(two): NORTH}] == town.led


@pytest.mark.promise("R6.4")
async def test_only_the_link_that_serves_an_address_speaks_for_it(town: Town) -> None:
    town.route(ONE)
    old = town.connect(NORTH, SOUTH)
    await town.use(ONE)
    town.connect(NORTH)

    town.mirrors.on_probe_reply(old, ProbeReply(0, BILLING.bytes, "principal", 9))

    assert [{pair_of(ONE): SOUTH}] == town.led


@pytest.mark.promise("R6.2")
async def test_principal_is_asked_again_by_another_link_and_its_partner_is_not(town: Town) -> None:
    """So that its peer knows whom to tell; R6.2 holds for the partner."""
    await town.lead_to(NORTH, ONE)

    again = town.connect(NORTH)
    town.mirrors.on_served(NORTH, again)
    town.connect(SOUTH)

    assert ["north"] == town.hosts_asked()


@pytest.mark.parametrize("has_failed", [False, True])
async def test_question_that_waits_for_its_connection_is_put_though_the_principal_has_answered(
    town: Town, *, has_failed: bool
) -> None:
    """Only so it becomes known that the partner is a mirror; after a failed attempt R6.2 holds again."""
    town.route(ONE)
    town.connect(NORTH)
    await town.use(ONE)
    town.says(NORTH, "principal")
    town.hosts_asked()

    if has_failed:
        town.mirrors.on_unserved(SOUTH, "refused")
    town.connect(SOUTH)

    assert ([] if has_failed else ["south"]) == town.hosts_asked()


@pytest.mark.promise("R6.3", "R6.7", "routing 35", "routing 36")
async def test_lost_principal_is_none_and_both_are_asked_when_it_is_time(town: Town) -> None:
    """Neither sooner than 200 ms after it was asked last."""
    await town.lead_to(NORTH, ONE)

    town.cut(NORTH)
    assert {pair_of(ONE): None} == town.led[-1]
    await until(lambda: town.asked)

    assert (["south"], [NORTH]) == (town.hosts_asked(), town.wanted)
    trouble = town.mirrors.trouble_of(pair_of(ONE))
    assert f"{NORTH} (cut), {SOUTH} has not answered yet" == trouble.problem
    assert trouble.retry_at != NEVER


async def test_this_very_instance_is_asked_without_a_link_and_again_when_its_role_changes(town: Town) -> None:
    town.routing_context.own.add(SOUTH)
    town.route(ONE)

    await town.use(ONE)
    await asyncio.sleep(0)
    assert ([NORTH], [{pair_of(ONE): SOUTH}]) == (town.wanted, town.led)

    town.role = "mirror"
    town.mirrors.on_role_change(ORDERS.bytes)
    town.mirrors.on_role_change(BILLING.bytes)
    await asyncio.sleep(0)
    assert {pair_of(ONE): None} == town.led[-1]


@pytest.mark.parametrize("code", [MIRROR, Disposition.INSTANCE_NOT_HERE.number])
@pytest.mark.promise("R6.3")
async def test_refused_frame_makes_the_principal_be_asked_and_its_answer_decides(town: Town, code: int) -> None:
    """What is refused may have been for somebody else there; other refusals do not matter."""
    two = route_to("two")
    link = await town.lead_to(NORTH, ONE, two)
    led = {pair_of(ONE): NORTH, pair_of(two): NORTH}

    town.mirrors.on_rejected(link, Rejected(code=Disposition.POOL_LIMIT.number))
    assert [] == town.hosts_asked()
    town.mirrors.on_rejected(link, Rejected(code=code))
    assert (["north"], led) == (town.hosts_asked(), town.routing_context.principals)
    town.says(NORTH, "principal")
    assert led == town.routing_context.principals
    town.says(NORTH, "mirror")

    assert {pair_of(ONE): None, pair_of(two): None} == town.led[-1]
    problem = town.mirrors.trouble_of(pair_of(ONE)).problem
    assert f"{NORTH} says mirror, epoch 1, {SOUTH} has not answered yet" == problem


@pytest.mark.promise("R6.3")
async def test_frames_refused_all_the_time_have_each_broker_instance_asked_now_and_then(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many come, whomever they were for: every 200 ms at most, and nothing changes."""
    routes = ONE, route_to("two"), route_to("other", instance=ORDERS)
    link = await town.lead_to(NORTH, *routes)
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(town.mirrors, "_loop", SimpleNamespace(time=lambda: now))

    for _ in range(100):
        town.mirrors.on_rejected(link, Rejected(code=MIRROR))
    assert {BILLING.bytes, ORDERS.bytes} == {probe.broker_instance for _, probe in town.asked}
    assert ["north", "north"] == town.hosts_asked()
    now += CHECK_SECONDS
    town.mirrors.on_rejected(link, Rejected(code=MIRROR))

    assert ["north", "north"] == town.hosts_asked()
    assert {pair_of(one): NORTH for one in routes} == town.routing_context.principals


@pytest.mark.parametrize("is_in_use_first", [True, False])
async def test_both_addresses_of_one_instance_are_alarming(town: Town, is_in_use_first: bool) -> None:  # noqa: FBT001
    """By the instance ids that their peers told, whenever they did."""
    town.route(ONE)
    if is_in_use_first:
        await town.use(ONE)
    town.connect(NORTH, instance=UUID(int=7))
    town.connect(SOUTH, instance=UUID(int=7))
    await town.use(ONE)

    alarm = f"{NORTH} and {SOUTH} both lead to instance {UUID(int=7)}: correct one of them"
    assert alarm == town.mirrors.in_use[pair_of(ONE)].route.alarm
    town.connect(SOUTH, instance=UUID(int=8))
    assert "" == town.mirrors.in_use[pair_of(ONE)].route.alarm


async def test_pair_that_no_route_names_any_more_is_forgotten(town: Town) -> None:
    two = route_to("two")
    await town.lead_to(NORTH, ONE, two)
    box = SimpleNamespace(held=[1, 2], share=SimpleNamespace(used_bytes=700))
    town.pair_outboxes[pair_of(two)] = box
    assert ((0, 0), (2, 700)) == (town.mirrors.waiting(pair_of(ONE)), town.mirrors.waiting(pair_of(two)))
    assert "one" == town.mirrors.route_name(pair_of(ONE))

    town.route(two)
    assert ([pair_of(two)], {pair_of(ONE): None}) == (list(town.mirrors.in_use), town.led[-1])
    town.route()
    town.hosts_asked()
    town.cut(NORTH)

    assert ({}, {}) == (town.mirrors.in_use, town.routing_context.principals)
    assert (PathProblem(), "") == (town.mirrors.trouble_of(pair_of(ONE)), town.mirrors.route_name(pair_of(ONE)))
