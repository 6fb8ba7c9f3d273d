"""The pass and its surroundings: a forwarder with next hops, and outboxes and tables without a forwarder."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from broker.flow import Disposition
from broker.forwarding.entry import Buffer, ForwardingEntry, FrameOrigin, raise_error
from broker.forwarding.fib import ForwardingTable, RequestLink
from broker.forwarding.forwarder import Forwarder, ignore
from broker.forwarding.held_frames import DialogAffinity
from broker.forwarding.kernels import KERNELS
from broker.forwarding.latency import HopTimes
from broker.forwarding.outbox import OutboxContext
from broker.forwarding.pool import Limits, Pool
from broker.forwarding.ring import Ring
from broker.protocol.frame import Header, decode_dialog, encode_dialog
from broker.protocol.layout import FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, RoutingFacts, decide, hosted
from broker.routing.route import Route
from broker.routing.table import build_table

NOW = 1000.0
HERE = b"h" * 16
PLAIN = Header(
    kind=FrameKind.MESSAGE,
    flags=0,
    message_id=b"m" * 16,
    conversation_id=b"c" * 16,
    to_service="//to",
    from_service="//from",
    from_broker_instance=b"i" * 16,
)
"""The header of a message of which nothing matters."""


def make_frame(body: bytes = b"body", **fields: Any) -> bytes:
    """A whole dialog frame: a plain one with these fields changed, and this body."""
    return encode_dialog(replace(PLAIN, **fields), body)


def outbox_context(**changes: Any) -> OutboxContext:
    """A context that ignores what it is told, but for these fields."""
    plain = OutboxContext(
        drop=ignore,
        report_waiting=ignore,
        continue_later=ignore,
        report=raise_error,
        affinity=DialogAffinity(),
        hop=HopTimes(),
    )
    return replace(plain, **changes)


def forwarding_table(
    pool: Pool | None = None, *, request_link: RequestLink = ignore, request_principal: Any = ignore
) -> ForwardingTable:
    """A table that delivers nowhere."""
    return ForwardingTable(
        pool or Pool(0),
        outbox_context(),
        request_link=request_link,
        request_principal=request_principal,
        deliver=ignore,
    )


class Wire:
    """An outlet that takes `room` bytes and then needs a `breath`; `written` is what the peer would see."""

    def __init__(self, room: int = 1 << 30, max_frame: int = 1 << 20, *, is_narrow: bool = False) -> None:
        self.max_frame = max_frame
        self.is_narrow = is_narrow
        self.room = room
        self.rest = b""
        self.written = b""
        self.writes = 0

    @property
    def can_send(self) -> bool:
        return self.room > 0 and not self.rest

    def send(self, data: Buffer) -> int:
        assert self.can_send
        sent = min(self.room, len(data))
        self.room -= sent
        self.writes += 1
        self.written += bytes(data[:sent])
        return sent

    def keep_rest(self, rest: Buffer) -> None:
        assert not self.rest
        self.rest = bytes(rest)

    def breathe(self, room: int = 1 << 30) -> None:
        """The peer has read: first the end of a cut frame leaves."""
        self.written += self.rest
        self.rest, self.room = b"", room


class Sender:
    """Where batches come from; keeps what it was advised of."""

    def __init__(self, name: str = "peer") -> None:
        self.name = name
        self.received: Counter[int] = Counter()
        self.rejected: list[tuple[bytes, Disposition]] = []

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        self.rejected.append((bytes(frame), disposition))


class ForwarderStation:
    """A forwarder that hosts //here; `health` of addresses, `failed` those whose last attempt was in vain."""

    kernel_name = "python"

    def __init__(self, *routes: Route, is_forwarding: bool = True, ring: Ring | None = None, **limits: Any) -> None:
        self.sender = Sender()
        self.wanted: list[NetworkAddress] = []
        self.delivered: Any = []
        self.health: dict[NetworkAddress, AddressHealth] = {}
        self.failed: set[NetworkAddress] = set()
        self.wires: dict[NetworkAddress, Wire] = {}
        self.turns = 0
        self.forwarder = Forwarder(
            Limits(**{"pool_bytes": 1 << 20, "max_frame": 65536, "max_hops": 16} | limits),
            deliver=self.deliver,
            request_link=self.wanted.append,
            health_of=lambda address: self.health.get(address, AddressHealth.UNTRIED),
            kernel=KERNELS[self.kernel_name],
            schedule_work=self.schedule,
            report=self.report,
            ring=ring,
        )
        self.lead(*routes, is_forwarding=is_forwarding)

    def deliver(self, database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
        self.delivered.append((database, frames, origin))

    def schedule(self) -> None:
        self.turns += 1

    def report(self, outlet: Any, error: Exception) -> None:
        raise error

    def lead(self, *routes: Route, is_forwarding: bool = True, here: str = "//here") -> None:
        """Another table is in force, and another service is here."""
        table = build_table(routes, now=datetime.now(UTC))
        self.forwarder.set_routing(table=table, hosted=hosted({HERE: [here]}), is_forwarding=is_forwarding)

    def connect(self, address: NetworkAddress, room: int = 1 << 30) -> Wire:
        self.health[address] = AddressHealth.CONNECTED
        self.failed.discard(address)
        self.wires[address] = self.forwarder.table.outbox(address).outlet = Wire(room)
        self.forwarder.on_health_changed()
        return self.wires[address]

    def cut(self, address: NetworkAddress) -> None:
        self.health[address] = AddressHealth.SUPPRESSED
        self.failed.add(address)
        self.forwarder.table.outbox(address).outlet = None
        self.forwarder.on_health_changed()

    def mend(self, now: float = NOW) -> None:
        """What waits for addresses that failed is rerouted."""
        self.forwarder.reroute_failed(now, self.failed.__contains__)
        assert self.forwarder.unaccounted == 0

    def take(self, *frames: bytes, now: float = NOW, sender: Sender | None = None) -> None:
        """These frames come in."""
        data = b"".join(frames)
        self.forwarder.slab[: len(data)] = data
        batch = self.forwarder.forward(self.forwarder.slab, len(data), now, sender or self.sender)
        assert len(data) == batch.consumed
        assert self.forwarder.unaccounted == 0

    def held(self, address: NetworkAddress) -> list[bytes]:
        return [bytes(held.frame) for held in self.forwarder.table.outbox(address).held]

    def entry_of(self, frame: bytes, *, database: bytes | None = None) -> ForwardingEntry:
        """Where a frame goes that is sent here, by a database."""
        header, _ = decode_dialog(frame)
        facts = RoutingFacts(header.to_service, header.to_broker_instance, header.conversation_id, database=database)
        return self.forwarder.table.entry_for(decide(facts, self.forwarder.routing_context), header.kind)


def split(data: bytes) -> list[bytes]:
    """Whole dialog frames, and nothing else."""
    frames = []
    while data:
        length = int.from_bytes(data[:4], "big")
        assert 116 <= length <= len(data)
        frames.append(data[:length])
        data = data[length:]
    return frames
