"""
The pass against a slow, obvious oracle: any cut of any stream gives what reading it frame by frame gives.

`read_slowly` decodes and decides each frame by itself; what it knows of the structure is written out here, not asked
of the code under test.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import FrameMalformedError, FrameTooLargeError
from broker.flow import Disposition
from broker.forwarding.entry import FrameOrigin
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.kernels import KERNELS
from broker.forwarding.pool import Limits
from broker.protocol.frame import (
    Fatal,
    Header,
    Hello,
    Ping,
    Rejected,
    decode_dialog,
    decode_link,
    encode_dialog,
    encode_link,
)
from broker.protocol.layout import NO_GUID, FrameKind
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.decide import AddressHealth, RoutingContext, RoutingFacts, decide, hosted
from broker.routing.route import Route
from broker.routing.table import build_table
from tests.support.forwarding import Sender, Wire, split
from tests.support.kernel import EVERY_KERNEL, hopped
from tests.support.tiers import examples

MAX_FRAME = 4096
MAX_HOPS = 8
NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")
HERE, ONE, TWO = bytes([7]) * 16, bytes([1]) * 16, bytes([2]) * 16
LONG_NAME = "n" * 512
ROUTES = (
    Route("North", NORTH, remote_service_name="//north"),
    Route("Long", NORTH, remote_service_name=LONG_NAME),
    Route("Either", NORTH, remote_service_name="//é"),
    Route("Or", SOUTH, remote_service_name="//é"),
    Route("One", NORTH, remote_service_name="//balanced", broker_instance=UUID(bytes=ONE)),
    Route("Two", SOUTH, remote_service_name="//balanced", broker_instance=UUID(bytes=TWO), weight=3),
    Route("Here", LOCAL, remote_service_name="//here"),
    Route("Transport", TRANSPORT),
)
SERVICES = ["//north", LONG_NAME, "//é", "//balanced", "//here", "//nobody", "tcp://south/x", "n"]


HOSTED = hosted({HERE: ["//here"]})
HERE_IS = RoutingContext(
    build_table(ROUTES, now=datetime.now(UTC)), HOSTED, health_of=lambda _: AddressHealth.UNTRIED, is_forwarding=True
)


def new_forwarder(delivered: dict[bytes, list[bytes]], kernel: str) -> Forwarder:
    def deliver(database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
        delivered.setdefault(database, []).extend(frames)

    limits = Limits(pool_bytes=0, max_frame=MAX_FRAME, max_hops=MAX_HOPS)
    forwarder = Forwarder(
        limits, deliver=deliver, request_link=lambda _: None, health_of=HERE_IS.health_of, kernel=KERNELS[kernel]
    )
    forwarder.set_routing(table=HERE_IS.table, hosted=HOSTED, is_forwarding=True)
    return forwarder


# --- a stream, cut anywhere ---

HEADERS = st.builds(
    Header,
    kind=st.sampled_from([FrameKind.MESSAGE, FrameKind.MESSAGE, FrameKind.ACK, FrameKind.FAULT, 0x13, 0xFF]),
    flags=st.sampled_from([0, 0, 1, 2, 3, 0x3F, 0xFF]),
    message_id=st.binary(min_size=16, max_size=16),
    conversation_id=st.sampled_from([bytes([n]) * 16 for n in range(4)]),
    to_service=st.sampled_from(SERVICES),
    from_service=st.sampled_from(["f", "//from/é", LONG_NAME]),
    from_broker_instance=st.just(ONE),
    to_broker_instance=st.sampled_from([NO_GUID, NO_GUID, NO_GUID, ONE, TWO, HERE]),
    sequence_number=st.integers(0, 3),
    hop_count=st.sampled_from([0, 0, 0, 1, 7, 8, 255]),
    hop_limit=st.sampled_from([16, 16, 16, 0, 1, 8, 255]),
    time_to_live=st.sampled_from([60_000, 60_000, 60_000, 0, 5, 2**32 - 1]),
    time_consumed=st.sampled_from([0, 0, 0, 4, 5, 2**32 - 1]),
)
DIALOG_FRAMES = st.builds(encode_dialog, HEADERS, st.binary(max_size=40))
LINK_FRAMES = st.sampled_from([encode_link(Ping(b"12345678")), encode_link(Rejected(code=1)), encode_link(Rejected())])
MAYBE_BROKEN = st.builds(
    lambda frame, at, value: frame[:at] + bytes([value]) + frame[at + 1 :],
    DIALOG_FRAMES,
    st.sampled_from([0, 1, 2, 3, 4, 76, 77, 112, 113, 114, 115]),
    st.integers(0, 255),
)
LAST_WORDS = (FrameKind.HELLO, FrameKind.FATAL)  # behind which nothing counts
LAST_FRAMES = st.sampled_from([encode_link(Hello()), encode_link(Fatal(code=1, text="over"))])
ENDINGS = st.builds(lambda last, rest: last + rest, LAST_FRAMES, st.one_of(st.binary(max_size=40), DIALOG_FRAMES))
TAILS = st.one_of(
    ENDINGS, st.just(b""), st.binary(max_size=200), MAYBE_BROKEN, DIALOG_FRAMES.map(lambda frame: frame[:-1])
)


@dataclass
class Outcome:
    forwarded: dict[NetworkAddress, list[bytes]] = field(default_factory=dict)
    delivered: dict[bytes, list[bytes]] = field(default_factory=dict)
    received: Counter[int] = field(default_factory=Counter)
    dropped: Counter[Disposition] = field(default_factory=Counter)
    link_frames: list[bytes] = field(default_factory=list)
    consumed: int = 0
    error: type[Exception] | None = None


def refusal(data: bytes) -> type[Exception] | None:
    """What is wrong with the frame that begins here, as far as it has come."""
    if len(data) < 4:
        return None
    length = int.from_bytes(data[:4], "big")
    if length > MAX_FRAME:
        return FrameTooLargeError
    if length < 8:
        return FrameMalformedError
    if len(data) < 5:
        return None
    kind = data[4]
    if kind >= FrameKind.MESSAGE:
        is_right = length >= 116
    elif kind in (FrameKind.PING, FrameKind.PONG):
        is_right = length == 16
    else:
        is_right = 1 <= kind <= FrameKind.FATAL
    if is_right and kind >= FrameKind.MESSAGE and len(data) >= length:
        names = int.from_bytes(data[76:78], "big"), int.from_bytes(data[112:114], "big")
        is_right = all(1 <= name <= 512 for name in names) and 114 + sum(names) <= length
    if is_right and kind < FrameKind.MESSAGE and kind not in LAST_WORDS and len(data) >= length:
        try:
            decode_link(data[:length])
        except FrameMalformedError:
            is_right = False
    return None if is_right else FrameMalformedError


def judge_slowly(frame: bytes, outcome: Outcome) -> None:
    """Steps 2 to 5 of one dialog frame, by decoding all of it."""
    name = frame[114 : 114 + int.from_bytes(frame[112:114], "big")]
    names = b"n" * len(name) + b"f" * int.from_bytes(frame[76:78], "big")  # whatever they are, the header is read
    header, _ = decode_dialog((114 + len(names)).to_bytes(4, "big") + frame[4:114] + names)
    outcome.received[min(header.kind, 0x13)] += 1
    disposition = Disposition.MALFORMED
    if header.hop_count + 1 > min(header.hop_limit, MAX_HOPS):
        disposition = Disposition.HOPS_EXHAUSTED
    elif header.time_consumed >= header.time_to_live:
        disposition = Disposition.LIFETIME_EXCEEDED
    elif is_text(name):
        facts = RoutingFacts(
            name.decode(), header.to_broker_instance, header.conversation_id, is_from_target=header.is_from_target
        )
        decision = decide(facts, HERE_IS)
        disposition = decision.disposition
        if disposition is Disposition.FORWARDED:
            outcome.forwarded.setdefault(decision.candidates[0].address, []).append(hopped(frame))
            return
        if decision.database is not None:
            outcome.delivered.setdefault(decision.database, []).append(hopped(frame))
            return
    outcome.dropped[disposition] += 1


def is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_slowly(data: bytes) -> Outcome:
    outcome = Outcome()
    while True:
        rest = data[outcome.consumed :]
        outcome.error = refusal(rest)
        length = int.from_bytes(rest[:4], "big")
        if outcome.error is not None or len(rest) < 5 or len(rest) < length:
            return outcome
        frame = rest[:length]
        if frame[4] in LAST_WORDS:
            outcome.link_frames.append(frame)
            outcome.consumed = len(data)  # what comes behind counts for nothing
            return outcome
        if frame[4] < FrameKind.MESSAGE:
            outcome.link_frames.append(frame)
        else:
            judge_slowly(frame, outcome)
        outcome.consumed += length


def read_by_the_pass(data: bytes, cuts: list[int], kernel: str) -> Outcome:
    """Feed the stream as a link does: what is not whole is kept and goes before the next read."""
    outcome = Outcome()
    forwarder = new_forwarder(outcome.delivered, kernel)
    wires = {address: Wire(max_frame=MAX_FRAME) for address in (NORTH, SOUTH)}
    for address, wire in wires.items():
        forwarder.table.outbox(address).outlet = wire
    sender, kept, at = Sender(), b"", 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        kept += data[at:cut]
        at = cut
        forwarder.slab[: len(kept)] = kept
        batch = forwarder.forward(forwarder.slab, len(kept), 0.0, sender)
        outcome.consumed += batch.consumed
        outcome.link_frames += batch.link_frames
        kept = kept[batch.consumed :]
        assert forwarder.unaccounted == 0
        if batch.error is not None:
            outcome.error = type(batch.error)
            break
        if batch.link_frames and batch.link_frames[-1][4] in LAST_WORDS:
            outcome.consumed = len(data)
            break
    assert sender.received == forwarder.received
    assert Counter(why for _, why in sender.rejected) == forwarder.dropped
    outcome.received, outcome.dropped = forwarder.received, forwarder.dropped
    outcome.forwarded = {address: split(wire.written) for address, wire in wires.items() if wire.written}
    return outcome


@pytest.mark.parametrize("kernel", EVERY_KERNEL)
@settings(max_examples=examples(300))
@given(
    frames=st.lists(st.one_of(DIALOG_FRAMES, DIALOG_FRAMES, DIALOG_FRAMES, LINK_FRAMES), max_size=12),
    repeats=st.integers(1, 3),
    tail=TAILS,
    cuts=st.one_of(*[st.lists(st.integers(0, 1 << 16), max_size=8)] * 6, st.just(list(range(300)))),
)
@pytest.mark.promise(
    "The ledger does not add up",
    "R2.7",
    "R4.3",
    "R7.1",
    "case R11",
    "case R16",
    "routing 29",
    "multiple 30",
    "forwarding 3",
    "forwarding 6",
    "forwarding 7",
    "forwarding 8",
    "forwarding 18",
)
def test_any_cut_of_a_stream_comes_to_what_reading_it_frame_by_frame_does(
    frames: list[bytes], repeats: int, tail: bytes, cuts: list[int], kernel: str
) -> None:
    data = b"".join(frames * repeats) + tail

    outcome = read_by_the_pass(data, cuts, kernel)

    assert read_slowly(data) == outcome
