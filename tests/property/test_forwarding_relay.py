"""
Whatever links do, nothing is lost untold, nothing is reordered, neither pool nor share exceeds its bound, and each
visit of a frame is recorded once.

`Relay` holds the forwarder to a model of one outbox for each neighbour that knows only lists.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from broker.flow import Disposition
from broker.forwarding.entry import FrameOrigin
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.kernels import KERNELS
from broker.forwarding.pool import HELD_OVERHEAD, Limits
from broker.forwarding.ring import Ring
from broker.protocol.frame import decode_dialog, encode_dialog
from broker.protocol.layout import TIME_CONSUMED_AT, FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted
from broker.routing.route import Route
from broker.routing.table import build_table
from tests.support.forwarding import PLAIN, Sender, Wire, split
from tests.support.kernel import EVERY_KERNEL, hopped
from tests.support.tiers import examples
from tests.support.visits import decode

MAX_FRAME = 4096
MAX_HOPS = 8
NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")
ROUTES = (Route("North", NORTH, remote_service_name="//north"), Route("South", SOUTH, remote_service_name="//south"))

POOL_BYTES = 5 * (HELD_OVERHEAD + 200)
SHARE_PERCENT = 60
SOME_FRAMES = st.lists(
    st.builds(
        lambda service, fields, body: encode_dialog(replace(PLAIN, to_service=service, **fields), body),
        st.sampled_from(["//north", "//north", "//south", "//nobody"]),
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from([FrameKind.MESSAGE, FrameKind.MESSAGE, FrameKind.ACK]),
                "flags": st.sampled_from([0, 0, 1]),
                "message_id": st.binary(min_size=16, max_size=16),
                "conversation_id": st.sampled_from([bytes([n]) * 16 for n in range(2)]),
                "sequence_number": st.integers(0, 5),
                "hop_count": st.sampled_from([0, 0, 0, 0, 8]),
                "time_to_live": st.sampled_from([60_000, 2000, 500]),
                "time_consumed": st.sampled_from([0, 0, 400, 2000]),
            }
        ),
        st.binary(max_size=60),
    ),
    min_size=1,
    max_size=8,
)
ADDRESSES = st.sampled_from([NORTH, SOUTH])
ROOMS = st.one_of(st.integers(0, 600), st.just(1 << 20))


class Link(Wire):
    """A wire of which the peer may read on a little; what was cut goes first."""

    def breathe(self, room: int = 1 << 30) -> None:
        self.written += self.rest[:room]
        self.room = max(0, room - len(self.rest))
        self.rest = self.rest[room:]


@dataclass
class Neighbour:
    """The model of one outbox: `wire` with `room` and the `owed` end of a cut frame; `held` with their arrival."""

    room: int | None = None  # None while there is no link
    owed: bytes = b""
    seen: bytes = b""
    held: list[tuple[bytes, float]] = field(default_factory=list)

    def give(self, frame: bytes) -> bool:
        if not self.room or self.owed:
            return False
        self.seen += frame[: self.room]
        self.owed = frame[self.room :]
        self.room = max(0, self.room - len(frame))
        return True

    def breathe(self, room: int) -> None:
        self.seen += self.owed[:room]
        self.room = max(0, room - len(self.owed))
        self.owed = self.owed[room:]


def times(frame: bytes) -> tuple[int, int]:
    header, _ = decode_dialog(frame)
    return header.time_to_live, header.time_consumed


class Relay(RuleBasedStateMachine):
    """Frames come in while links come, go, stall and cut frames anywhere; time moves in exact eighths of a second."""

    kernel_name: str

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(1 << 16, sample=1)
        self.visits: Counter[tuple[object, ...]] = Counter()
        limits = Limits(POOL_BYTES, MAX_FRAME, MAX_HOPS, SHARE_PERCENT)
        self.forwarder = Forwarder(
            limits,
            deliver=deliver_nothing,
            request_link=lambda _: None,
            health_of=lambda _: AddressHealth.UNTRIED,
            kernel=KERNELS[self.kernel_name],
            ring=self.ring,
        )
        table = build_table(ROUTES, now=datetime.now(UTC))
        self.forwarder.set_routing(table=table, hosted=Hosted(), is_forwarding=True)
        self.sender = Sender()
        self.wires: dict[NetworkAddress, Link] = {}
        self.model = {address: Neighbour() for address in (NORTH, SOUTH)}
        self.rejected: list[tuple[bytes, Disposition]] = []
        self.dropped: Counter[Disposition] = Counter()
        self.left = 0
        self.over_share = 0
        self.now = 1000.0

    @rule(frames=SOME_FRAMES)
    def frames_come_in(self, frames: list[bytes]) -> None:
        data = b"".join(frames)
        self.forwarder.slab[: len(data)] = data
        self.forwarder.forward(self.forwarder.slab, len(data), self.now, self.sender)
        self.sender.received.clear()
        by_end: dict[object, list[bytes]] = {}
        for frame in frames:  # each end is served when all has been read, in the order of the first frame for it
            by_end.setdefault(self.end_of(frame), []).append(frame)
        for end, group in by_end.items():
            for frame in group:
                if isinstance(end, Disposition):
                    self.reject(frame, end)
                else:
                    self.pass_on(self.model[end], hopped(frame))  # type: ignore[index]

    def end_of(self, frame: bytes) -> object:
        header, _ = decode_dialog(frame)
        if header.hop_count >= MAX_HOPS:
            return Disposition.HOPS_EXHAUSTED
        if header.time_consumed >= header.time_to_live:
            return Disposition.LIFETIME_EXCEEDED
        return {"//north": NORTH, "//south": SOUTH}.get(header.to_service, Disposition.NO_ROUTE)

    def pass_on(self, neighbour: Neighbour, frame: bytes) -> None:
        if not neighbour.held and neighbour.give(frame):
            self.left += 1
            self.end_visit(frame, self.now, Disposition.FORWARDED)
        elif any(place(frame) == place(held) for held, _ in neighbour.held):
            self.reject(frame, Disposition.ALREADY_HELD)
        elif self.charged(*self.model.values()) + len(frame) + HELD_OVERHEAD > POOL_BYTES:
            self.reject(frame, Disposition.POOL_LIMIT)
        elif self.charged(neighbour) + len(frame) + HELD_OVERHEAD > POOL_BYTES * SHARE_PERCENT // 100:
            self.reject(frame, Disposition.POOL_LIMIT)
            self.over_share += 1
        else:
            neighbour.held.append((frame, self.now))

    def reject(self, frame: bytes, disposition: Disposition) -> None:
        self.rejected.append((frame[16:], disposition))
        self.dropped[disposition] += 1
        self.end_visit(frame, self.now, disposition)

    def end_visit(self, frame: bytes, entered: float, disposition: Disposition) -> None:
        header, _ = decode_dialog(frame)
        consumed = header.time_consumed + round((self.now - entered) * 1000)
        self.visits[header.message_id, entered, self.now, disposition, consumed, len(frame)] += 1

    def charged(self, *neighbours: Neighbour) -> int:
        return sum(len(frame) + HELD_OVERHEAD for each in neighbours for frame, _ in each.held)

    @rule(address=ADDRESSES, room=ROOMS)
    def link_takes_more(self, address: NetworkAddress, room: int) -> None:
        neighbour = self.model[address]
        if neighbour.room is not None:
            self.wires[address].breathe(room)
            neighbour.breathe(room)
            self.drain(address)

    @rule(address=ADDRESSES, room=ROOMS)
    def link_comes(self, address: NetworkAddress, room: int) -> None:
        self.model[address] = Neighbour(room=room, held=self.model[address].held)
        self.wires[address] = self.forwarder.table.outbox(address).outlet = Link(room, MAX_FRAME)
        self.drain(address)

    @rule(address=ADDRESSES)
    def link_goes(self, address: NetworkAddress) -> None:
        self.model[address].room = None
        self.forwarder.table.outbox(address).outlet = None

    def drain(self, address: NetworkAddress) -> None:
        self.forwarder.table.outbox(address).drain(self.now)
        neighbour = self.model[address]
        if neighbour.room and not neighbour.owed:
            self.expire(neighbour)
        while neighbour.held and neighbour.room and not neighbour.owed:
            frame, since = neighbour.held.pop(0)
            consumed = times(frame)[1] + round((self.now - since) * 1000)
            self.end_visit(frame, since, Disposition.FORWARDED)
            assert neighbour.give(
                frame[:TIME_CONSUMED_AT] + consumed.to_bytes(4, "big") + frame[TIME_CONSUMED_AT + 4 :]
            )
            self.left += 1

    @rule(eighths=st.integers(1, 12))
    def time_passes(self, eighths: int) -> None:
        self.now += eighths / 8
        self.forwarder.expire(self.now)
        for neighbour in self.model.values():
            self.expire(neighbour)

    def expire(self, neighbour: Neighbour) -> None:
        for held in list(neighbour.held):
            time_to_live, consumed = times(held[0])
            if (self.now - held[1]) * 1000 >= time_to_live - consumed:
                neighbour.held.remove(held)
                self.dropped[Disposition.EXPIRED_HERE] += 1
                self.end_visit(*held, Disposition.EXPIRED_HERE)

    @invariant()
    def each_visit_is_recorded_once(self) -> None:
        told: Counter[tuple[object, ...]] = Counter()
        for record in decode(self.ring.take()):
            header = record.header
            instants = record.arrival.entered, record.left
            told[header.message_id, *instants, record.disposition, header.time_consumed, record.frame_bytes] += 1
            assert header.hop_count == (8 if record.disposition is Disposition.HOPS_EXHAUSTED else 0)
        assert (self.visits, 0) == (told, self.ring.shed)
        self.visits.clear()

    @invariant()
    def nothing_is_lost_untold(self) -> None:
        assert self.forwarder.unaccounted == 0
        rejected = [(frame[16:], disposition) for frame, disposition in self.sender.rejected]
        assert (self.dropped, self.rejected) == (self.forwarder.dropped, rejected)
        assert self.left == self.forwarder.forwarded

    @invariant()
    def pool_is_within_its_bound(self) -> None:
        pool = self.forwarder.pool
        charged = [self.charged(each) for each in self.model.values()]
        shares = [self.forwarder.table.outbox(address).share for address in self.model]
        assert charged == [share.used_bytes for share in shares]
        held = sum(len(each.held) for each in self.model.values())
        assert (sum(charged), held, self.over_share) == (pool.used_bytes, pool.frames, pool.over_share)
        assert pool.used_bytes <= POOL_BYTES
        assert max(charged) <= POOL_BYTES * SHARE_PERCENT // 100

    @invariant()
    def peers_see_whole_frames_in_order(self) -> None:
        for address, wire in self.wires.items():
            neighbour = self.model[address]
            assert (neighbour.seen, neighbour.owed) == (wire.written, wire.rest)
            split(wire.written + wire.rest)


def place(frame: bytes) -> tuple[object, ...]:
    header, _ = decode_dialog(frame)
    side = header.is_from_target
    return header.kind, side, header.conversation_id, header.sequence_number, header.fragment_number


def deliver_nothing(database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
    raise AssertionError


@pytest.mark.parametrize("kernel", EVERY_KERNEL)
@pytest.mark.promise("R7.1", "case R14", "forwarding 8", "forwarding 13")
def test_frames_are_relayed_held_and_dropped_as_the_model_says(kernel: str) -> None:
    machine = type("Machine", (Relay,), {"kernel_name": kernel})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples(60), stateful_step_count=30))
