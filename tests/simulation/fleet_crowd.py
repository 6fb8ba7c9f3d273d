"""
Fleets of whole instances on played machines: what an idle link costs, millions of messages through thousands, and what
becomes of them while gateways die and cannot be heard.

There are no databases here, so nobody sends again: what a gateway takes along is lost, and order holds only as long as
no way breaks. Both are promised by the ends of a dialog, and shown by the joined stories.
"""

from __future__ import annotations

import asyncio
import random
import time
import tracemalloc
import uuid
from collections import Counter
from typing import Any
from unittest import mock

import structlog

from broker.conversation.frames import Contact, Fragment, Travel, message_frame
from broker.flow import Disposition
from broker.forwarding.entry import FrameOrigin
from broker.protocol.frame import Hello, decode_dialog, encode_link
from broker.protocol.layout import Flag, FrameKind
from broker.routing.decide import Hosted, RoutingContext, RoutingFacts, decide, hosted
from broker.routing.route import RouteProperties
from tests.simulation.instance import Instance, Part
from tests.simulation.joined_play import around
from tests.simulation.machine import MachineLoop, Net, PlayedEnd, Process
from tests.support.virtual_time import run_virtually

BATCH = 20  # messages that a talker sends at one time
PAUSE_SECONDS = 0.2  # ... and between two such times
BLOW_SECONDS = (1.0, 8.0)  # that a gateway is away, least and most
HEALING_SECONDS = 90.0  # two silences of three heartbeats of 15 s each


def memory(links: int) -> dict[str, Any]:
    """Bytes of a gateway for each link that is online and idle, objects of the loop and the socket left out."""
    loop = MachineLoop()
    found: dict[str, Any] = {}

    async def main(_: object) -> None:
        net = Net(loop, random.Random(1))
        gateway = Instance(Part("gateway", ()), around(net, random.Random(1)), b"g" * 16)
        gateway.start()
        strangers = Process("town")

        def connect(number: int) -> Any:
            near, far = PlayedEnd(net, gateway.process), PlayedEnd(net, strangers)
            near.far, far.far = far, near
            hello = Hello(instance=uuid.uuid4().bytes, arbitration=uuid.uuid4().bytes, name=f"endpoint-{number}",
                          addresses=(f"tcp://endpoint-{number}:4022",))  # fmt: skip
            far.send(encode_link(hello))
            return near

        accept = gateway.peers.accept
        for number in range(10):
            gateway.process.context.run(accept, connect(number), f"tcp://town:{number}")
        await asyncio.sleep(1.0)
        ends = [connect(number) for number in range(10, 10 + links)]
        await asyncio.sleep(0.1)
        tracemalloc.start()
        for number, end in enumerate(ends):
            gateway.process.context.run(accept, end, f"tcp://town:{1000 + number}")
        await asyncio.sleep(0.5)
        found["bytes"] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        found["links"] = len(gateway.peers.links) - 10
        gateway.kill()
        for task in asyncio.all_tasks(loop) - {asyncio.current_task()}:
            asyncio.tasks._unregister_task(task)

    with structlog.testing.capture_logs():
        run_virtually(main, loop)
    assert found["links"] == links
    return {"links": links, "bytes of a link": round(found["bytes"] / links)}


class Talker(Instance):
    """An endpoint without a database: it hosts a service, and knows what came, by conversation."""

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.got: Counter[bytes] = Counter()
        self.wrong = self.doubled = 0
        self._seen: Counter[bytes] = Counter()  # a bit for each sequence number

    def on_routes(self) -> None:
        """Its service is there."""
        super().on_routes()
        here = hosted({self.broker_instance: [self.part.service]})
        self.forwarder.set_routing(table=self.routes, hosted=here, is_forwarding=False)

    def _deliver(self, database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
        for frame in frames:
            header = decode_dialog(frame)[0]
            assert database == header.to_broker_instance, origin
            bit = 1 << header.sequence_number
            self.doubled += bool(self._seen[header.conversation_id] & bit)
            self._seen[header.conversation_id] |= bit
            self.wrong += header.sequence_number != self.got[header.conversation_id]
            self.got[header.conversation_id] += 1

    def forget(self) -> None:
        """Count from nothing."""
        self.got.clear()
        self._seen.clear()
        self.wrong = self.doubled = 0


def crowd(counts: tuple[int, int], messages: int, seed: int = 1) -> dict[str, Any]:
    """
    Talkers and gateways, so many of each, and so many messages of each talker, sent to the next one by two gateways.

    Links, handshakes, heartbeats, routing and forwarding are the product's own. Everything has to come, once and in
    order.
    """
    loop, chance = MachineLoop(), random.Random(seed)
    talking, hopping = counts
    found: dict[str, Any] = {}
    begun = time.process_time()

    async def main(_: object) -> None:
        net = Net(loop, chance)
        hops, talkers = await _gathered(net, counts, chance)
        await _all_talk(talkers, messages, chance)
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


def crowd_under_fire(counts: tuple[int, int], messages: int, *, blows: int, seed: int = 1) -> dict[str, Any]:
    """
    The same, while so many gateways are killed and started again, and as many cannot hear half of the talkers.

    What a gateway takes along, or sends to nobody, is lost. Nothing may come twice meanwhile; and when all of them are
    back, every talker talks again, and all of that has to come, once and in order.
    """
    loop, chance = MachineLoop(), random.Random(seed)
    found: dict[str, Any] = {}

    async def main(_: object) -> None:
        net = Net(loop, chance)
        hops, talkers = await _gathered(net, counts, chance)
        victims = chance.sample(hops, 2 * blows)
        half = chance.sample([one.part.name for one in talkers], len(talkers) // 2)
        striking = [_killed(one, chance) for one in victims[:blows]]
        striking += [_cut_off(net, one.part.name, half, chance) for one in victims[blows:]]
        await asyncio.gather(_all_talk(talkers, messages, chance, pace=(2, 0.5)), *striking)
        await asyncio.sleep(HEALING_SECONDS)
        found["delivered meanwhile"] = sum(one.got.total() for one in talkers)
        found["doubled meanwhile"] = sum(one.doubled for one in talkers)
        for talker in talkers:
            talker.forget()
        await _all_talk(talkers, messages, chance)
        await asyncio.sleep(5.0)
        found["delivered afterwards"] = sum(one.got.total() for one in talkers)
        found["doubled or out of order afterwards"] = sum(one.wrong for one in talkers)
        _parted(loop, hops, talkers)

    _run(loop, main)
    return {"instances": sum(counts), "killed": blows, "cut off": blows, "messages sent": counts[0] * messages} | found


async def _gathered(net: Net, counts: tuple[int, int], chance: random.Random) -> tuple[list[Instance], list[Talker]]:
    """Gateways and talkers that have begun."""
    talking, hopping = counts
    surroundings = around(net, chance)
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


async def _all_talk(
    talkers: list[Talker], messages: int, chance: random.Random, pace: tuple[int, float] = (BATCH, PAUSE_SECONDS)
) -> None:
    """Each to the next one; `pace` messages at one time, and seconds between two such times."""
    pairs = zip(talkers, [*talkers[1:], talkers[0]], strict=True)
    await asyncio.gather(*(_talk(near, far, messages, chance, pace) for near, far in pairs))


async def _killed(hop: Instance, chance: random.Random) -> None:
    """It dies at some moment, and comes back."""
    await asyncio.sleep(chance.uniform(0.0, 4.0))
    hop.kill()
    await asyncio.sleep(chance.uniform(*BLOW_SECONDS))
    hop.start()


async def _cut_off(net: Net, hop: str, half: list[str], chance: random.Random) -> None:
    """Half of the talkers cannot hear it for a while, nor it them."""
    await asyncio.sleep(chance.uniform(0.0, 4.0))
    mend = net.cut([(hop, one) for one in half] + [(one, hop) for one in half])
    await asyncio.sleep(chance.uniform(*BLOW_SECONDS))
    mend()


def _parted(loop: MachineLoop, hops: list[Instance], talkers: list[Talker]) -> int:
    """All of them end; the frames that they have dropped."""
    dropped: Counter[Disposition] = Counter()
    for one in [*hops, *talkers]:
        assert one.forwarder.unaccounted == 0
        dropped += one.forwarder.dropped
        one.kill()
    for task in asyncio.all_tasks(loop) - {asyncio.current_task()}:
        asyncio.tasks._unregister_task(task)
    return dropped.total()


def _run(loop: MachineLoop, main: Any) -> None:
    patches = mock.patch("broker.net.dialer.socket", _Sockets(loop)), mock.patch("time.monotonic", loop.time)
    with patches[0], patches[1], structlog.testing.capture_logs():
        run_virtually(main, loop)


class _Sockets:
    """The module `socket`, as the dialler uses it."""

    SOCK_STREAM = 1

    def __init__(self, loop: MachineLoop) -> None:
        self._loop = loop

    def socket(self, *kind: object) -> PlayedEnd:
        """One that is played."""
        return self._loop.net.socket(*kind)


async def _talk(near: Talker, far: Talker, messages: int, chance: random.Random, pace: tuple[int, float]) -> None:
    """A conversation of its own, some messages at a time."""
    batch, pause = pace
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
    origin = _Nobody()
    for start in range(0, messages, batch):
        here = RoutingContext(near.own_routes, Hosted(), near.peers.table.health_of, is_forwarding=False)
        frames = []
        for sequence in range(start, min(messages, start + batch)):
            way = near.forwarder.table.entry_for(decide(facts, here), FrameKind.MESSAGE)
            fragment = Fragment((sequence, 0), Flag.LAST_FRAGMENT, b"x" * 200, (0, 0))
            frames.append((way, message_frame(contact, Travel(), chance.randbytes(16), fragment)))
        near.process.context.run(near.forwarder.submit, frames, asyncio.get_running_loop().time(), origin)
        await asyncio.sleep(pause)


class _Nobody:
    """Whoever sends here."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()

    def reject(self, _frame: object, _disposition: Disposition) -> None:
        """Nobody is there to be told."""
