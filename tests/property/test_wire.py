"""Any cut gives the same frames, every value survives its bytes, no input raises any but the documented errors."""

import contextlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from broker.errors import (
    FrameMalformedError,
    FrameTooLargeError,
    HandshakeRefusedError,
    OutOfSequenceError,
    PeerError,
    PeerSilentError,
)
from broker.protocol import frame as wire
from broker.protocol.decoder import FrameDecoder, check_frame
from broker.protocol.frame import Header, Hello, LinkMessage, decode_dialog, decode_link, encode_dialog, encode_link
from broker.protocol.link_state import LinkPhase, LinkStateMachine, agree

MAX_FRAME = 4096

guid = st.binary(min_size=16, max_size=16)
u8 = st.integers(0, 2**8 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=40)
name = st.text(st.characters(codec="utf-8"), min_size=1, max_size=128)

hellos = st.builds(
    Hello,
    protocol=st.just("sbrk") | text,
    versions=st.lists(u8, max_size=4).map(tuple),
    instance=guid,
    arbitration=guid,
    name=text,
    software=text,
    max_frame=u64,
    heartbeat_ms=u64,
    addresses=st.lists(text, max_size=4).map(tuple),
    features=st.lists(text, max_size=4).map(tuple),
)
rejections = {"message": guid, "conversation": guid, "sequence": u64, "fragment": u32, "code": u32}
links: st.SearchStrategy[LinkMessage] = st.one_of(
    hellos,
    st.builds(wire.Ping, st.binary(min_size=8, max_size=8)),
    st.builds(wire.Pong, st.binary(min_size=8, max_size=8)),
    st.builds(wire.Probe, id=u64, service=text, broker_instance=guid),
    st.builds(wire.ProbeReply, id=u64, broker_instance=guid, role=text, epoch=u64),
    st.builds(wire.Rejected, **rejections, reason=text, retry_after_ms=u64),
    st.builds(wire.GoAway, reason=text, deadline_ms=u64),
    st.builds(wire.Fatal, code=u32, text=text),
)
headers = st.builds(
    Header,
    kind=st.integers(0x10, 0xFF),
    flags=u8,
    message_id=guid,
    conversation_id=guid,
    to_service=name,
    from_service=name,
    from_broker_instance=guid,
    to_broker_instance=guid,
    sequence_number=u64,
    fragment_number=u32,
    ack_sequence=u64,
    ack_fragment=u32,
    body_checksum=u32,
    hop_count=u8,
    hop_limit=u8,
    time_to_live=u32,
    time_consumed=u32,
)
dialogs = st.builds(encode_dialog, headers, st.binary(max_size=200))
frames = links.map(encode_link) | dialogs


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Sound frames with a few bytes overwritten, taken out or put in."""
    stream = bytearray(b"".join(draw(st.lists(frames, min_size=1, max_size=4))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(stream)))
        stream[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(stream)


any_input = st.binary(max_size=600) | mutated()


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:stop] for start, stop in pairwise(places)]


def split(data: list[bytes]) -> tuple[list[bytes], PeerError | None]:
    """What a decoder makes of the pieces; it never keeps more than one frame, whatever comes."""
    decoder = FrameDecoder(MAX_FRAME)
    given_out: list[bytes] = []
    for piece in data:
        with contextlib.suppress(FrameMalformedError, FrameTooLargeError):
            given_out += decoder.feed(piece)
        assert decoder.buffered <= MAX_FRAME
    return given_out, decoder.error


# --- splitting ---

cuts = st.lists(st.integers(0, 1000), max_size=20) | st.just(list(range(1000)))  # anywhere, or byte by byte


@given(st.lists(frames, max_size=6), st.just(b"") | any_input, cuts)
def test_any_cut_of_any_input_gives_the_same_frames_and_error(sent: list[bytes], rest: bytes, cuts: list[int]) -> None:
    """Frames that come out are those that went in; decoders raise nothing but what they say."""
    data = b"".join(sent) + rest
    given_out, error = split([data])

    assert sent == given_out[: len(sent)]
    assert (given_out, error) == split(pieces(data, cuts))
    assert data.startswith(b"".join(given_out))
    for frame in given_out:
        check_frame(frame, 0, len(frame))
    for frame in [data, *given_out]:
        for decode in (decode_link, decode_dialog, lambda frame: check_frame(frame, 0, len(frame))):
            with contextlib.suppress(FrameMalformedError):
                decode(frame)


# --- round trips ---


@given(links, headers, st.binary(max_size=200))
def test_what_is_encoded_is_read_back(message: LinkMessage, header: Header, body: bytes) -> None:
    link, dialog = encode_link(message), encode_dialog(header, body)

    for frame in (link, dialog):
        check_frame(frame, 0, len(frame))
    assert message == decode_link(link)
    assert (header, body) == decode_dialog(dialog)
    assert dialog == encode_dialog(*decode_dialog(memoryview(dialog)))


envelopes = st.builds(
    wire.Envelope,
    type=text,
    contract=text,
    sent_us=u64,
    lifetime=st.none() | u32,
    headers=st.none() | st.dictionaries(text, text, max_size=3),
)
BODIES: list[tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[bytes], Any]]] = [
    (
        st.tuples(envelopes, st.binary(max_size=200)),
        lambda message: wire.encode_envelope(message[0]) + message[1],
        wire.decode_envelope,
    ),
    (st.builds(wire.Fault, code=st.integers(-(2**31), 2**31 - 1), text=text), wire.encode_fault, wire.decode_fault),
    (
        st.lists(st.tuples(u64, u32, u32), max_size=4).map(tuple).map(wire.Stored),
        wire.encode_stored,
        wire.decode_stored,
    ),
]


@pytest.mark.parametrize(("values", "encode", "decode"), BODIES, ids=["envelope", "fault", "stored"])
@given(data=st.data(), body=st.binary(max_size=200))
def test_bodies_survive_their_bytes_and_any_bytes_are_read_or_malformed(
    values: Any, encode: Any, decode: Any, data: st.DataObject, body: bytes
) -> None:
    value = data.draw(values)
    assert value == decode(encode(value))

    try:
        assert decode(body) is not None
    except FrameMalformedError as error:
        assert error.problem  # noqa: PT017 - most bodies are malformed, so this is no place for pytest.raises


# --- two sides ---


@given(hellos, hellos)
def test_two_hellos_agree_or_are_refused(own: Hello, peer: Hello) -> None:
    try:
        agreement = agree(own, peer)
    except HandshakeRefusedError:
        return

    assert agreement.version in own.versions
    assert agreement.version in peer.versions
    assert 0.1 <= agreement.peer_heartbeat <= 3600.0


class ConnectionMachine(RuleBasedStateMachine):
    """Two connections that get each other's frames, and some of no peer, as time goes by."""

    @initialize(own_beat=st.integers(100, 20_000), peer_beat=st.integers(100, 20_000))
    def connect(self, own_beat: int, peer_beat: int) -> None:
        self.now = 0.0
        self.sides = [LinkStateMachine(Hello(heartbeat_ms=beat), now=0.0) for beat in (own_beat, peer_beat)]
        self.wires: list[list[bytes]] = [[encode_link(side.own)] for side in reversed(self.sides)]

    @rule(side=st.integers(0, 1))
    def hear(self, side: int) -> None:
        connection, wire = self.sides[side], self.wires[side]
        while wire and connection.state is not LinkPhase.CLOSED:
            frame = wire.pop(0)
            pong = connection.maybe_pong(frame)
            try:
                connection.receive(decode_link(frame), self.now)
            except (OutOfSequenceError, HandshakeRefusedError) as error:
                pong = connection.fatal(error)
            self.wires[1 - side] += [] if pong is None else [pong]

    @rule(side=st.integers(0, 1), message=links)
    def hear_anything(self, side: int, message: LinkMessage) -> None:
        self.wires[side].append(encode_link(message))
        self.hear(side)

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(side=st.integers(0, 1))
    def tick(self, side: int) -> None:
        connection = self.sides[side]
        try:
            out = connection.tick(self.now)
        except (HandshakeRefusedError, PeerSilentError) as error:
            out = [connection.fatal(error)]
        self.wires[1 - side] += out
        assert [] == connection.tick(self.now)


TestConnectionMachine = ConnectionMachine.TestCase
