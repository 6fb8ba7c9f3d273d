"""Fleets that no machine holds, by the product's own parts under one virtual clock: who is chosen, who dials when, and
who learns of a failover when.

`python -m tests.simulation.fleet` prints a table and writes `docs/performance/fleets.json`; see
docs/contributors/fault-testing.md, "Fleets". The same seed gives the same figures.
"""

import asyncio
import json
import math
import random
import statistics
import sys
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import click
import structlog

from broker.conversation.frames import Contact, Fragment, Travel, message_frame
from broker.errors import PeerSilentError
from broker.flow import Disposition
from broker.forwarding.entry import FrameOrigin
from broker.net.dialer import Dialer
from broker.net.peer_table import PeerTable
from broker.protocol.frame import Hello, decode_dialog
from broker.protocol.layout import NO_GUID, Flag, FrameKind
from broker.protocol.link_state import LinkStateMachine
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted, RoutingContext, RoutingFacts, decide, hosted
from broker.routing.mirrored import MirroredRoute
from broker.routing.route import RouteProperties
from broker.routing.table import RouteTable
from tests.simulation.instance import Instance, Part, Surroundings, table_of
from tests.simulation.machine import MachineLoop, Net
from tests.simulation.performance import TUNING, WatchedStore
from tests.support.forwarding import Sender
from tests.support.virtual_time import VirtualLoop, run_virtually

SEED = 1
BATCH = 20  # messages that a talker sends at one time
PAUSE_SECONDS = 0.2  # ... and between two such times


class Talker(Instance):
    """An endpoint without a database: it hosts a service, and knows what came, by conversation."""

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.got: Counter[bytes] = Counter()
        self.wrong = 0

    def on_routes(self) -> None:
        super().on_routes()
        here = hosted({self.broker_instance: [self.part.service]})
        self.forwarder.set_routing(table=self.routes, hosted=here, is_forwarding=False)

    def _deliver(self, database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
        for frame in frames:
            header = decode_dialog(frame)[0]
            assert database == header.to_broker_instance, origin
            self.wrong += header.sequence_number != self.got[header.conversation_id]
            self.got[header.conversation_id] += 1


def crowd(counts: tuple[int, int], messages: int) -> dict[str, Any]:
    """
    Talkers and gateways, so many of each, and so many messages of each talker, sent to the next one by two gateways.

    Links, handshakes, heartbeats, routing and forwarding are the product's own. Everything has to come, once and in
    order.
    """
    loop, chance = MachineLoop(), random.Random(SEED)
    talking, hopping = counts
    found: dict[str, Any] = {}
    begun = time.process_time()

    async def main(_: object) -> None:
        net = Net(loop, chance)
        hops, talkers = await _gathered(net, counts, chance)
        pairs = zip(talkers, [*talkers[1:], talkers[0]], strict=True)
        await asyncio.gather(*(_talk(near, far, messages, chance) for near, far in pairs))
        await asyncio.sleep(5.0)
        found["seconds"] = loop.time()
        found["delivered"] = sum(one.got.total() for one in talkers)
        found["wrong"] = sum(one.wrong for one in talkers)
        found["forwarded"] = sum(hop.forwarder.received.total() for hop in hops)
        found["dropped"] = _parted(loop, hops, talkers)

    _run(loop, main)
    return {
        "instances": talking + hopping,
        "messages sent": talking * messages,
        "messages delivered": found["delivered"],
        "forwarded by gateways": found["forwarded"],
        "doubled, out of order, or lost": found["wrong"] + talking * messages - found["delivered"],
        "dropped": found["dropped"],
        "virtual seconds": round(found["seconds"], 1),
        "CPU seconds": round(time.process_time() - begun),
    }


async def _gathered(net: Net, counts: tuple[int, int], chance: random.Random) -> tuple[list[Instance], list[Talker]]:
    talking, hopping = counts
    surroundings = Surroundings(net, chance, TUNING, WatchedStore, pool_bytes=1 << 22)
    names = [f"endpoint-{number}" for number in range(talking)]
    to_all = tuple(RouteProperties(service_name=f"Service {name}", address=f"tcp://{name}:4022") for name in names)
    hops = [Instance(Part(f"gateway-{number}", to_all), surroundings, uuid.uuid4().bytes) for number in range(hopping)]
    talkers = []
    for number, name in enumerate(names):
        far = f"Service {names[(number + 1) % len(names)]}"
        ways = tuple(
            RouteProperties(service_name=far, address=f"tcp://gateway-{(number + more) % hopping}:4022")
            for more in range(2)
        )
        local = (RouteProperties(address="LOCAL"),)
        talkers.append(Talker(Part(name, local, None, f"Service {name}", ways), surroundings, chance.randbytes(16)))
    for one in [*hops, *talkers]:
        one.start()
    await asyncio.sleep(1.0)
    return hops, talkers


def _parted(loop: MachineLoop, hops: list[Instance], talkers: list[Talker]) -> int:
    """All of them end; the frames that they have dropped."""
    dropped: Counter[Disposition] = Counter()
    for one in [*hops, *talkers]:
        assert one.forwarder.unaccounted == 0
        dropped += one.forwarder.dropped
        one.kill()
    loop.forget_tasks()
    return dropped.total()


def _run(loop: MachineLoop, main: Any) -> None:
    with loop.played_sockets(), mock.patch("time.monotonic", loop.time), structlog.testing.capture_logs():
        run_virtually(main, loop)


async def _talk(near: Talker, far: Talker, messages: int, chance: random.Random) -> None:
    await asyncio.sleep(chance.uniform(0.0, 1.0))
    contact = Contact(
        chance.randbytes(16),
        is_initiator=True,
        service_name=near.part.service,
        broker_instance=near.broker_instance,
        far_service=far.part.service,
        far_broker_instance=far.broker_instance,
    )
    facts = RoutingFacts(far.part.service, far.broker_instance, contact.conversation_id, database=near.broker_instance)
    origin = Sender()
    for start in range(0, messages, BATCH):
        here = RoutingContext(near.own_routes, Hosted(), near.peers.table.health_of, is_forwarding=False)
        frames = []
        for sequence in range(start, min(messages, start + BATCH)):
            way = near.forwarder.table.entry_for(decide(facts, here), FrameKind.MESSAGE)
            fragment = Fragment((sequence, 0), Flag.LAST_FRAGMENT, b"x" * 200, (0, 0))
            frames.append((way, message_frame(contact, Travel(), chance.randbytes(16), fragment)))
        near.process.context.run(near.forwarder.submit, frames, asyncio.get_running_loop().time(), origin)
        await asyncio.sleep(PAUSE_SECONDS)


TICK_SECONDS = 1.0  # between two looks of an instance at its links, and at what it might dial
ROUND_TRIP = 0.02  # seconds at most, to any gateway
TAKE_OVER_SECONDS = 0.1  # until the partner has the lock of a principal that is gone
GONE_AT = 100.0
TAKEN_AT = GONE_AT + TAKE_OVER_SECONDS
AFTER_SECONDS = 120.0
HEARTBEAT_MS = 15_000  # as configured where nobody says otherwise


class Prober:
    """One gateway. Shape: `known_at` when it knew that the partner is the principal; `asked_at` when it asked."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, *, is_silent: bool) -> None:
        self.loop = loop
        self.known_at: float | None = None
        self.asked_at: list[float] = []
        self._trip = chance.uniform(0.001, ROUND_TRIP)
        self._has_asked = False
        self._route = MirroredRoute("first", "second", chance.random)
        self._route.use(loop.time())
        self._route.on_reply("second", "mirror", 1, loop.time())
        self._route.on_reply("first", "principal", 1, loop.time())
        lost_at = GONE_AT + self._trip / 2
        if is_silent:
            lost_at = silent_at(chance.uniform(0.0, HEARTBEAT_MS / 1000))
        loop.call_later(lost_at, self._lose)

    def tell(self) -> None:
        """The partner says what it is to a prober that has asked it."""
        if self._has_asked:
            role, epoch = ("principal", 2) if self.loop.time() >= TAKEN_AT else ("mirror", 1)
            self.loop.call_later(self._trip / 2, self._hear, role, epoch)

    def _lose(self) -> None:
        self._follow(self._route.on_unreachable("first", "connection reset", self.loop.time()))

    def _hear(self, role: str, epoch: int) -> None:
        if self._route.principal is None:
            self._follow(self._route.on_reply("second", role, epoch, self.loop.time()))

    def _follow(self, addresses: tuple[str, ...]) -> None:
        route, now = self._route, self.loop.time()
        if "second" in addresses:
            self.asked_at.append(now)
            self._has_asked = True
            self.loop.call_later(self._trip / 2, self.tell)
        if route.principal == "second":
            self.known_at = now
        elif route.due is not None:
            self.loop.call_later(max(0.0, route.due - now), self._on_time, route.due)

    def _on_time(self, due: float) -> None:
        if self._route.due == due:
            self._follow(self._route.on_time(self.loop.time()))


def failover(gateways: int, *, is_silent: bool) -> dict[str, Any]:
    """
    The principal of a pair that all gateways use is gone: with a reset of its connections, or silent.

    A silent one is found out by the heartbeat, for whose silence each link waits. The partner takes over, and tells at
    once whoever has asked it.
    """
    chance, probers = random.Random(SEED), list[Prober]()

    async def main(loop: VirtualLoop) -> None:
        probers.extend(Prober(loop, chance, is_silent=is_silent) for _ in range(gateways))
        await asyncio.sleep(TAKEN_AT)
        for prober in probers:
            prober.tell()
        await asyncio.sleep(AFTER_SECONDS)

    run_virtually(main)
    delays = sorted(prober.known_at - GONE_AT for prober in probers if prober.known_at is not None)
    asked = [at for prober in probers for at in prober.asked_at]
    return {
        "know the partner": len(delays),
        "seconds until half know": round(statistics.median(delays), 2),
        "seconds until all know": round(delays[-1], 2),
        "questions to the partner": len(asked),
        "questions in the fullest second": max(Counter(int(one) for one in asked).values()),
    }


def silent_at(phase: float) -> float:
    """When a link with nothing but heartbeats finds its peer silent, which it last heard `phase` seconds before."""
    connection = LinkStateMachine(Hello(heartbeat_ms=HEARTBEAT_MS), now=GONE_AT - phase)
    connection.receive(Hello(heartbeat_ms=HEARTBEAT_MS, instance=b"p" * 16), GONE_AT - phase)
    now = GONE_AT
    while True:
        try:
            connection.tick(now)
        except PeerSilentError:
            return now
        now += TICK_SECONDS


DIRECTORY = Path(__file__).parents[2] / "docs" / "performance"
WINDOW = 0.1  # seconds in which a peak is counted
BACK_AFTER = 60.0  # seconds for which the big gateway is away


@dataclass(frozen=True)
class Size:
    """How large. `connections` of the big gateway; `talkers` and `hops` of the run."""

    gateways: int = 1000
    endpoints: int = 100_000
    connections: int = 10_000
    talkers: int = 1800
    hops: int = 200
    messages: int = 1000  # of each talker


SMALL = Size(gateways=50, endpoints=2000, connections=300, talkers=20, hops=4, messages=50)


def address_of(number: int) -> NetworkAddress:
    return NetworkAddress(f"gateway-{number}", 4022)


def table_to(*numbers: int) -> RouteTable:
    return table_of(tuple(RouteProperties(service_name="Billing", address=str(address_of(one))) for one in numbers))


# --- who is chosen ---


def distribution(size: Size) -> dict[str, Any]:
    """
    Endpoints with routes to three gateways each, drawn from all; one conversation each, and then one gateway less.

    Returns:
        Conversations of one gateway at least, at most, and on average; what three sigma of pure chance would be; and
        which part of the conversations moved when the fullest gateway was gone, of which it had `had`.
    """
    chance = random.Random(SEED)
    gone: set[NetworkAddress] = set()

    def health_of(address: NetworkAddress) -> AddressHealth:
        return AddressHealth.SUPPRESSED if address in gone else AddressHealth.CONNECTED

    asked = []
    for _ in range(size.endpoints):
        table = table_to(*chance.sample(range(size.gateways), 3))
        asked.append((RoutingFacts("Billing", NO_GUID, chance.randbytes(16), database=b"d" * 16), table))

    def chosen() -> list[NetworkAddress]:
        return [
            decide(facts, RoutingContext(table, Hosted(), health_of, is_forwarding=False)).candidates[0].address
            for facts, table in asked
        ]

    before = chosen()
    load = Counter(before)
    (fullest, had), *_ = load.most_common(1)
    gone.add(fullest)
    after = chosen()
    mean = size.endpoints / size.gateways
    return {
        "conversations of a gateway, mean": mean,
        "conversations of a gateway, least": min(load[address_of(one)] for one in range(size.gateways)),
        "conversations of a gateway, most": had,
        "three sigma of pure chance": round(3 * math.sqrt(mean), 1),
        "moved when the fullest is gone": sum(one != other for one, other in zip(before, after, strict=True)),
        "most any other took over": max((Counter(after) - load).values()),
    }


# --- who dials when ---


class Town:
    """A gateway with a crowd, as the dialling of its endpoints sees it: there or not, and how often it was tried."""

    def __init__(self, loop: MachineLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.is_there = True
        self.attempts: list[float] = []
        self.served: list[float] = []

    async def dial(self, _address: NetworkAddress, _connect: Callable[..., Awaitable[Any]]) -> None:
        """As the entrance: a connection, or it is refused a round trip later."""
        await asyncio.sleep(self.chance.uniform(0.001, ROUND_TRIP))
        self.attempts.append(self.loop.time())
        if not self.is_there:
            raise ConnectionRefusedError(111, "Connection refused")


class Dialler:
    """One endpoint with one gateway: the product's own dialling and memory of addresses; `wants` while frames wait."""

    def __init__(self, town: Town, address: NetworkAddress, table: RouteTable, *, wants: bool) -> None:
        self.town = town
        self.address = address
        self.wants = wants
        self.is_online = True
        self.addresses = PeerTable()
        self.dialling = Dialer(
            town,  # type: ignore[arg-type]
            self.addresses,
            10.0,
            is_invented=lambda _: False,
            on_open=self._on_open,
            on_unreached=self._on_failed,
        )
        self.dialling.on_routes([table])
        self.dialling.request(address)  # so that it is known
        town.loop.call_later(town.chance.uniform(0.0, TICK_SECONDS), self._tick)

    def lose(self) -> None:
        """Its connection is reset; as `Peers.on_lost`."""
        self.is_online = False
        self.addresses.suppress(self.address, "Connection reset by peer")
        if self.wants:
            self.dialling.request(self.address)

    def _on_open(self, _opening: object, address: NetworkAddress) -> None:
        attempts = self.addresses.histories[address]
        attempts.record_success()
        attempts.is_dialling = False
        if not self.is_online:
            self.town.served.append(self.town.loop.time())
        self.is_online = True

    def _on_failed(self, address: NetworkAddress) -> None:
        if self.wants and not self.is_online:
            self.dialling.request(address)

    def _tick(self) -> None:
        self.town.loop.call_later(TICK_SECONDS, self._tick)
        if not self.is_online:
            self.dialling.dial_due(self.town.loop.time(), ())


def storm(size: Size, *, away: float = BACK_AFTER) -> dict[str, Any]:
    """
    A gateway with a crowd is gone and comes back: attempts to reach it over time, and how soon all are there again.

    Half of the crowd has messages that wait, and dials for them; the other half dials because a route names it.
    """
    loop = MachineLoop()
    chance = random.Random(SEED)
    Net(loop, chance)
    town = Town(loop, chance)
    lost_at = 5.0

    async def main(_: object) -> None:
        address = address_of(0)
        table = table_to(0)
        crowd = [Dialler(town, address, table, wants=number % 2 == 0) for number in range(size.connections)]
        await asyncio.sleep(lost_at)
        town.attempts.clear()
        town.is_there = False
        for one in crowd:
            one.lose()
        await asyncio.sleep(away)
        town.is_there = True
        await asyncio.sleep(15.0)
        for one in crowd:
            await one.dialling.close()

    state = random.getstate()
    random.seed(SEED)
    try:
        with structlog.testing.capture_logs():
            run_virtually(main, loop)
    finally:
        random.setstate(state)
    back = sorted(one - lost_at - away for one in town.served)
    late = Counter(int((one - lost_at) / WINDOW) for one in town.attempts if away / 2 <= one - lost_at < away)
    mean = sum(late.values()) / int(away / 2 / WINDOW)
    return {
        "attempts a second while away": round(mean / WINDOW),
        "fullest tenth of a second while away, times the mean": round(max(late.values(), default=0) / mean, 1),
        "back, in a second at most": max(Counter(int(one) for one in back).values(), default=0),
        "back, in a tenth of a second at most": max(Counter(int(one / WINDOW) for one in back).values(), default=0),
        "seconds until half are back": round(back[len(back) // 2], 2),
        "seconds until all are back": round(back[-1], 2),
        "missing": size.connections - len(back),
    }


# --- all of it ---


def main() -> int:
    """Measure, print each answer when it is there, and write them."""
    size = Size()
    questions: dict[str, Callable[[], dict[str, Any]]] = {
        "distribution": lambda: distribution(size),
        "storm": lambda: storm(size),
        "storm, away for a second": lambda: storm(size, away=1.0),
        "failover, connections reset": lambda: failover(size.gateways, is_silent=False),
        "failover, silent": lambda: failover(size.gateways, is_silent=True),
        "whole instances": lambda: crowd((size.talkers, size.hops), size.messages),
    }
    found: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="minutes"), "size": asdict(size)}
    for name, question in questions.items():
        found[name] = question()
        click.echo(name)
        for what, figure in found[name].items():
            click.echo(f"    {what:<55} {figure}")
    DIRECTORY.joinpath("fleets.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
