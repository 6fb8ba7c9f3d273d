"""
Whatever changes: every way that a kernel remembers is the one that would be decided now (R1.6).

Routes are made, altered, dropped and expire, principals move, addresses are reached and lost or turn out to be our own,
services come and go, and both kernels walk in between. A way that is remembered and should have been forgotten is found
by asking for it again.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from random import Random
from typing import Any
from uuid import UUID

from broker.forwarding.entry import ForwardingEntry, conversation_of, route_key_of
from broker.forwarding.forwarder import Forwarder, ignore
from broker.forwarding.kernels import KERNELS
from broker.forwarding.pool import Limits
from broker.forwarding.slow_path import SlowPath
from broker.protocol.frame import encode_dialog
from broker.protocol.layout import NO_GUID, Flag, FrameKind
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.decide import AddressHealth, RoutingFacts, decide, hosted
from broker.routing.route import BROKER_CONFIGURATION, Route
from broker.routing.table import RouteChange, RouteTable, build_table
from broker.security.grants import OPEN
from tests.support.forwarding import PLAIN
from tests.support.tiers import examples

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ADDRESSES = [NetworkAddress(host) for host in ("one", "two", "three")]
INSTANCES = [UUID(int=n) for n in (1, 2)]
SERVICES = ["Orders", "Billing", "tcp://one/Orders"]
CONVERSATIONS = [bytes([n]) * 16 for n in range(3)]
FRAMES = [
    encode_dialog(
        replace(PLAIN, to_service=service, to_broker_instance=instance, conversation_id=conversation, flags=flags), b""
    )
    for service, instance, conversation, flags in product(
        SERVICES, [NO_GUID, *(one.bytes for one in INSTANCES)], CONVERSATIONS, [0, Flag.FROM_TARGET]
    )
]

PAIRS = [
    Route("", address, service, instance, mirror_address=ADDRESSES[2]).pair
    for address, service, instance in product(ADDRESSES[:2], SERVICES, INSTANCES)
]
STEPS = 60
KINDS = [*["walk"] * 24, *["routes"] * 18, *["health"] * 6, *["time", "principal", "own", "hosted"] * 3]
RARE = ["read", "forwarding", "tidy"]


def steps_of(chance: Random) -> Iterator[tuple[str, Any]]:
    """What happens, at random: mostly frames and routes, which are few, so that what happens matters to them."""
    for _ in range(STEPS):
        what = chance.choice(KINDS + RARE)
        if what == "walk":
            about: Any = chance.choices(FRAMES, k=40)
        elif what in {"routes", "read"}:
            names = chance.sample("abcdefgh", chance.randint(1, 3)) if what == "routes" else "abcdefgh"
            about = {name: None if chance.random() < 0.25 else route(name, chance) for name in names}
        elif what == "health":
            about = chance.choice(ADDRESSES), chance.choice(list(AddressHealth))
        elif what == "principal":
            about = chance.choice(PAIRS), chance.choice([None, *ADDRESSES])
        elif what == "own":
            about = {chance.choice([*ADDRESSES, *[NetworkAddress("nobody")] * 6])}
        elif what == "hosted":
            about = {one.bytes: SERVICES[:1] for one in INSTANCES if chance.random() < 0.3}
        else:
            about = chance.randint(0, 4)  # seconds, or whether there is forwarding
        yield what, about


def route(name: str, chance: Random) -> Route:
    if chance.random() < 0.1:
        return Route(name, TRANSPORT)
    service = chance.choice([*SERVICES * 3, BROKER_CONFIGURATION, None])
    if service in SERVICES and chance.random() < 0.3:
        mirror = chance.choice([None, ADDRESSES[2]])
        return Route(name, chance.choice(ADDRESSES[:2]), service, chance.choice(INSTANCES), None, mirror)
    lifetime = chance.choice([None, None, NOW + timedelta(seconds=chance.randint(1, 3))])
    return Route(name, LOCAL if chance.random() < 0.1 else chance.choice(ADDRESSES), service, None, lifetime)


class Gateway:
    """A forwarder that is told what changes, and only that."""

    def __init__(self, kernel: type[SlowPath]) -> None:
        self.health: dict[NetworkAddress, AddressHealth] = {}
        self.forwarder = Forwarder(
            Limits(pool_bytes=1 << 20, max_frame=1 << 16, max_hops=16),
            deliver=ignore,
            request_link=ignore,
            health_of=lambda address: self.health.get(address, AddressHealth.UNTRIED),
            kernel=kernel,
        )
        self.routes: dict[str, Route] = {}
        self.table, self.now = RouteTable(now=NOW), NOW
        self.hosted, self.is_forwarding = hosted({}), True
        self.surround()

    def surround(self) -> None:
        self.forwarder.set_routing(table=self.table.at(self.now), hosted=self.hosted, is_forwarding=self.is_forwarding)

    def take(self, what: str, about: Any) -> None:
        if what == "walk":
            self.walk(about)
        elif what == "health":
            self.health[about[0]] = about[1]
            self.forwarder.on_health_changed()
        elif what == "principal":
            self.forwarder.set_principals({about[0]: about[1]}, 0.0)
        elif what == "own":
            lost = self.forwarder.routing_context.own - about
            self.forwarder.add_own_addresses(about, 0.0, *lost)
        elif what == "tidy":
            self.forwarder.reroute_waiting(0.0)
            self.forwarder.expire(0.0)
        else:
            self.change(what, about)
            self.surround()

    def change(self, what: str, about: Any) -> None:
        if what == "routes":
            changes = []
            for name, new in about.items():
                changes.append(RouteChange(self.routes.pop(name, None), new))
                if new is not None:
                    self.routes[name] = new
            self.table = self.table.changed(changes)
        elif what == "read":
            self.routes = {name: new for name, new in about.items() if new is not None}
            self.table = build_table(self.routes.values(), now=self.now)
        elif what == "time":
            self.now = NOW + timedelta(seconds=about)
        elif what == "hosted":
            self.hosted = hosted(about)
        else:
            self.is_forwarding = about > 0

    def walk(self, frames: list[bytes]) -> None:
        slab = bytearray(b"".join(frames))
        batch = self.forwarder._kernels.of(OPEN).walk(slab, len(slab))
        assert batch.consumed == len(slab)
        for sink in batch.touched:
            sink.runs.clear()

    def remembered(self) -> Iterator[tuple[bytes, ForwardingEntry]]:
        kernel = self.forwarder._kernels.of(OPEN)
        for frame in FRAMES:
            known = kernel._recall(route_key_of(frame), conversation_of(frame), frame[4], bool(frame[5]))
            if known is not None:
                yield frame, known

    def decide(self, frame: bytes) -> ForwardingEntry:
        """The way by all that holds now, and nothing that is remembered."""
        key = route_key_of(frame)
        facts = RoutingFacts(key[18:].decode(), key[:16], conversation_of(frame), is_from_target=bool(frame[5]))
        return self.forwarder.table.entry_for(decide(facts, self.forwarder.routing_context), FrameKind.MESSAGE)


def play(seed: int) -> None:
    """Take steps, and look at all that is remembered after each."""
    known: list[list[list[bytes]]] = []
    for kernel in KERNELS.values():
        gateway = Gateway(kernel)
        known.append([])
        for what, about in steps_of(Random(seed)):
            gateway.take(what, about)
            remembered = list(gateway.remembered())
            for frame, entry in remembered:
                assert entry is gateway.decide(frame), f"seed {seed}, {what}: {entry.disposition} {entry.route}"
            known[-1].append([frame for frame, _ in remembered])
    assert all(one == known[0] for one in known)


def test_every_way_that_is_remembered_is_what_would_be_decided_now() -> None:
    for seed in range(examples(500) // 2):
        play(seed)
