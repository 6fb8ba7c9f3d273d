"""
Databases and gateways joined by a network that loses, repeats, delays and reorders, under one virtual clock.

Every node is a real `Forwarder`, with a real `Endpoint` on a real file where it is a database; only the links between
them are played. All chance comes from one seed, so that the same seed plays the same story again. A crash throws away
everything that a process has in memory, with the frames that were under way to it.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from broker.conversation.frames import Travel
from broker.conversation.window import Backoff
from broker.dialog.endpoint import Endpoint
from broker.dialog.transmitter import DialogTuning
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, FrameOrigin, frame_bounds
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.protocol.frame import Rejected, decode_dialog
from broker.protocol.layout import CONVERSATION_AT
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted, hosted
from broker.routing.route import RouteProperties, create_route
from broker.routing.table import RouteTable, build_table
from broker.security.session import DialogCredentials
from broker.store.sqlite.write_batch import SqliteStore
from tests.support.dialog import make_endpoint, open_database
from tests.support.virtual_time import VirtualLoop

MAX_FRAME = 64 * 1024
Table = Sequence[tuple[str | None, str] | RouteProperties]
"""Routes as (service name or any, address), or in full."""


@dataclass(frozen=True)
class Weather:
    """
    How bad the network is.

    Shape: `loss`, `repeat`, `damage` and `reject` chances for each frame; `delay` seconds at most; `room` bytes that a
    link takes before it is full for a moment.
    """

    loss: float = 0.0
    repeat: float = 0.0
    damage: float = 0.0
    reject: float = 0.0
    delay: float = 0.005
    room: int = 1 << 20


Tamper = Callable[[str, str, bytes], list[bytes]]
"""What arrives at the far node of a frame that the near one has sent."""


class Wire:
    """One direction of a link: an outlet of one node that ends at another."""

    def __init__(self, network: Network, near: Node, far: Node, address: NetworkAddress) -> None:
        self.max_frame = MAX_FRAME
        self.is_narrow = False
        self.received: Counter[int] = Counter()
        self._network = network
        self._near = near
        self._far = far
        self._address = address
        self._life = far.life
        self._room = network.weather.room
        self._cut = b""

    @property
    def can_send(self) -> bool:
        return self._room > 0

    def send(self, data: Buffer) -> int:
        taken = min(len(data), self._room)
        self._room -= taken
        whole = max((stop for _, stop in frame_bounds(data) if stop <= taken), default=0)
        for start, stop in frame_bounds(data[:whole]):
            self._carry(bytes(data[start:stop]))
        self._cut = bytes(data[whole:taken])
        if self._room == 0:
            self._network.loop.call_later(0.001, self._drain)
        return taken

    def keep_rest(self, rest: Buffer) -> None:
        self._carry(self._cut + bytes(rest))

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        """Origin at the far node: the advice travels back."""
        header = decode_dialog(frame)[0]
        advice = Rejected(
            conversation=header.conversation_id,
            sequence=header.sequence_number,
            fragment=header.fragment_number,
            code=disposition.number,
            reason=disposition.value,
            retry_after_ms=200,
        )
        if not self._network.happens(self._network.weather.reject):
            return
        if self._near.forwarder.table.outbox(self._address).outlet is self:
            self._near.forwarder.on_rejected(advice, [self._address], self._network.loop.time())
        if self._near.endpoint is not None:
            self._near.endpoint.transmitter.on_rejected(advice, self, "the peer")

    def _drain(self) -> None:
        self._room = self._network.weather.room
        outbox = self._near.forwarder.table.outbox(self._address)
        if outbox.outlet is self:
            outbox.drain(self._network.loop.time())
            self._near.on_room()

    def _carry(self, frame: bytes) -> None:
        weather = self._network.weather
        self._network.digest = zlib.crc32(frame[CONVERSATION_AT:], self._network.digest)
        self._network.carried[self._near.name] += 1
        tampered = self._network.tamper(self._near.name, self._far.name, frame)
        for one in tampered * (2 if self._network.happens(weather.repeat) else 1):
            is_lost = self._network.happens(weather.loss) or (self._near.name, self._far.name) in self._network.severed
            if not is_lost:
                delay = self._network.random.uniform(0.0005, weather.delay)
                self._network.loop.call_later(delay, self._arrive, self._network.damaged(one))

    def _arrive(self, frame: bytes) -> None:
        if self._far.is_up and self._far.life == self._life:
            self._far.receive(frame, self)


@dataclass(eq=False)
class Node:
    """
    One instance.

    Shape: `path` its database, None for a gateway; `life` how often it has started; `routes` of msdb, `own_routes` of
    its database; `credentials` of its database.
    """

    network: Network
    name: str
    routes: Table
    path: Path | None = None
    service: str = ""
    own_routes: Table = ()
    life: int = 0
    is_up: bool = False
    forwarder: Forwarder = field(init=False)
    endpoint: Endpoint | None = None
    credentials: DialogCredentials = field(default_factory=DialogCredentials)

    @property
    def address(self) -> NetworkAddress:
        return NetworkAddress(self.name, 4022)

    def start(self) -> None:
        """A new process; nothing is known but what the file says."""
        self.life += 1
        self.is_up = True
        self.forwarder = Forwarder(
            Limits(pool_bytes=1 << 20, max_frame=MAX_FRAME, max_hops=16),
            deliver=self._deliver,
            request_link=lambda _: None,
            health_of=self._health_of,
        )
        here = Hosted()
        if self.path is not None:
            db = open_database(self.path, self.service)
            size = self.network.settings.fragment_size
            store = self.network.store(self.path, db, fragment_size=size, credentials=self.credentials)
            self.endpoint = make_endpoint(
                self.name, store, self.network.settings, self.forwarder, credentials=self.credentials
            )
            self.endpoint.transmitter.table = _table(self.own_routes)
            here = hosted({self.endpoint.broker_instance: [self.service]})
        self.forwarder.set_routing(table=_table(self.routes), hosted=here, is_forwarding=self.path is None)
        if self.endpoint is not None:
            self.endpoint.start()
        self.network.connect(self)

    def crash(self) -> None:
        """The process is gone, and all it knew."""
        self.is_up = False
        self.network.disconnect(self)
        if self.endpoint is not None:
            for kept in self.endpoint._tasks:
                kept._is_over = True  # as in a process that is gone, nothing is begun anew
                kept._task.cancel()
            self.endpoint.transmitter.close()
            self.endpoint._store.close()
            self.endpoint = None

    def receive(self, frame: bytes, origin: FrameOrigin) -> None:
        """What one read of a link brought."""
        self.forwarder.slab[: len(frame)] = frame
        self.forwarder.forward(self.forwarder.slab, len(frame), self.network.loop.time(), origin)

    def on_room(self) -> None:
        if self.endpoint is not None:
            self.endpoint.transmitter.on_capacity()

    def on_paths(self) -> None:
        """Links or routes are new."""
        self.forwarder.forget_decisions()
        self.forwarder.reroute_failed(self.network.loop.time(), lambda _: False)
        if self.endpoint is not None:
            self.endpoint.transmitter.on_paths_changed()

    def reroute(self, own_routes: Table) -> None:
        """Other routes in the database."""
        self.own_routes = own_routes
        if self.endpoint is not None:
            self.endpoint.transmitter.table = _table(own_routes)
            self.on_paths()

    def _deliver(self, database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
        if self.endpoint is not None:
            self.endpoint.receive(frames, origin)

    def _health_of(self, address: NetworkAddress) -> AddressHealth:
        is_connected = self.forwarder.table.outbox(address).outlet is not None
        return AddressHealth.CONNECTED if is_connected else AddressHealth.SUPPRESSED


class Network:
    """
    All nodes and what lies between them.

    Shape: `weather` holds from the next frame on; `severed` (near, far) names between which every frame is lost,
    although the link stays; `digest` of every frame sent so far, transmission ids left out; `carried` frames by the
    name of the node that sent them on; `store` makes that of a database; `tamper` what somebody on the way makes of
    each frame.
    """

    def __init__(self, loop: VirtualLoop, seed: int, settings: DialogTuning | None = None) -> None:
        self.loop = loop
        self.random = random.Random(seed)
        self.weather = Weather()
        self.severed: set[tuple[str, str]] = set()
        self.digest = 0
        self.carried: Counter[str] = Counter()
        self.store: type[SqliteStore] = SqliteStore
        self.nodes: dict[str, Node] = {}
        self.tamper: Tamper = lambda _near, _far, frame: [frame]
        self.settings = settings or DialogTuning(Backoff(0.2, 2.0), Travel(), window=16, fragment_size=100)
        loop.executor_delay = lambda: self.random.uniform(0.0, 0.01)

    def add(self, node: Node) -> Node:
        """Add a node, and start it."""
        self.nodes[node.name] = node
        node.start()
        return node

    def happens(self, chance: float) -> bool:
        """Whether something of this chance happens now."""
        return self.random.random() < chance

    def damaged(self, frame: bytes) -> bytes:
        """A frame as it arrives: maybe with a bit of its body turned over."""
        _, body = decode_dialog(frame)
        if not body or not self.happens(self.weather.damage):
            return frame
        at = len(frame) - 1 - self.random.randrange(len(body))
        return frame[:at] + bytes([frame[at] ^ 1 << self.random.randrange(8)]) + frame[at + 1 :]

    def connect(self, node: Node) -> None:
        """Links between this node and all others that are up."""
        for near, far in self._pairs(node):
            near.forwarder.table.outbox(far.address).outlet = Wire(self, near, far, far.address)
        self._tell(node)

    def disconnect(self, node: Node) -> None:
        """No links to or from this node."""
        for near, far in self._pairs(node):
            near.forwarder.table.outbox(far.address).outlet = None
        self._tell(node)

    async def until(self, condition: Callable[[], bool], *, seconds: float) -> None:
        """Let time pass until a condition holds; it has to before `seconds` are over."""
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, f"not within {seconds} s"
            await asyncio.sleep(0.05)

    def _pairs(self, node: Node) -> Iterator[tuple[Node, Node]]:
        for other in self.nodes.values():
            if other is not node and (other.is_up or not node.is_up) and hasattr(other, "forwarder"):
                yield node, other
                yield other, node

    def _tell(self, changed: Node) -> None:
        for node in self.nodes.values():
            if node.is_up:
                node.on_paths()
                for outbox in node.forwarder.table.outboxes.values():
                    outbox.drain(self.loop.time())
        if changed.is_up:
            changed.on_room()


def _table(routes: Table) -> RouteTable:
    now = datetime.now(UTC)
    properties = [
        route if isinstance(route, RouteProperties) else RouteProperties(service_name=route[0], address=route[1])
        for route in routes
    ]
    made = [create_route(f"route {number}", one, now=now) for number, one in enumerate(properties)]
    return build_table(made, now=now)
