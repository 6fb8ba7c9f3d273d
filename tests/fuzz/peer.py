"""What peers say: frames, HELLO and the other link messages as MessagePack, bodies of dialog frames, sealed ones."""

import os
from dataclasses import replace
from functools import cache, partial

from broker.conversation.body_check import violation
from broker.conversation.message_types import Validation
from broker.dialog.route_requests import parse_flat_xml
from broker.errors import FrameMalformedError, PeerError
from broker.forwarding.kernels import KERNELS
from broker.protocol.decoder import FrameDecoder, check_frame
from broker.protocol.frame import (
    Envelope,
    Fatal,
    Fault,
    GoAway,
    Hello,
    LinkMessage,
    Ping,
    Pong,
    Probe,
    ProbeReply,
    Rejected,
    Stored,
    decode_dialog,
    decode_envelope,
    decode_fault,
    decode_link,
    decode_stored,
    encode_dialog,
    encode_envelope,
    encode_fault,
    encode_link,
    encode_stored,
)
from broker.protocol.layout import FIRST_DIALOG_KIND, PRELUDE, PRELUDE_BYTES, FrameKind
from broker.protocol.link_state import LinkStateMachine
from broker.routing.address import parse_address, transport_address
from broker.security.seal import (
    ECHO_BYTES,
    TAG_BYTES,
    WRAPPED_BYTES,
    Direction,
    SealRefusedError,
    clear_part,
    frame_key,
    open_frame,
    read_box,
    read_packet,
    seal,
)
from broker.security.secured import Mode, Secured
from broker.security.session import Opener, Sealer
from tests.fuzz.target import KIB, Target, refused
from tests.support.forwarding import PLAIN
from tests.support.identities import credentials
from tests.support.kernel import MAX_FRAME, Answer, Walker
from tests.support.sealed import NOW, initiator, sealed

OWN = Hello(arbitration=b"o" * 16, max_frame=MAX_FRAME)
MESSAGES: list[LinkMessage] = [
    Hello(arbitration=b"p" * 16, name="peer", addresses=("tcp://a.example:4022",), features=("x",)),
    Ping(b"12345678"),
    Pong(b"12345678"),
    Probe(id=1, service="//to", broker_instance=b"i" * 16),
    ProbeReply(id=1, broker_instance=b"i" * 16, role="principal", epoch=7),
    Rejected(message=b"m" * 16, conversation=b"c" * 16, code=11285, reason="hops", retry_after_ms=9),
    GoAway(reason="drain", deadline_ms=1000),
    Fatal(code=28042, text="too large"),
]


def hostile_maps() -> list[bytes]:
    """MessagePack that nobody means well with: nested, with lengths that lie, with keys twice, of other types."""
    key = b"\xa5extra"
    return [
        b"\x81" + key + b"\x91" * 3000 + b"\xc0",  # arrays in arrays, under a key that nobody knows
        b"\x81" + key + b"\x81\xa0" * 1500 + b"\xc0",
        b"\x81" + key + b"\xdd\xff\xff\xff\xff",  # an array of four thousand million, of which nothing comes
        b"\x81" + key + b"\xdf\xff\xff\xff\xff",
        b"\x81" + key + b"\xc6\xff\xff\xff\xff",
        b"\x81\xa8versions\xdd\x7f\xff\xff\xff\x01",
        b"\x82\xa4name\xa1a\xa4name\xa1b",  # twice
        b"\x81\xa4name\x01",
        b"\x81\xa4name\xa2\xff\xff",  # no UTF-8
        b"\x81\xa8instance\xc4\x01x",  # a GUID of one byte
        b"\x81\xa9max_frame\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x81\xa9max_frame\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
        b"\x81\xacheartbeat_ms\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # not a number
        b"\x81\xc7\x00\x05\xc0",  # an extension as a key
        b"\x81\xc0\xc0",
        b"\x90",
        b"\xc1",
        b"",
    ]


def link_frame(kind: int, body: bytes) -> bytes:
    """A link frame whose length is right, whatever is in it."""
    return PRELUDE.pack(PRELUDE_BYTES + len(body), kind, 0, 0, 0) + body


# --- a whole stream ---


def _stream(data: bytes) -> None:
    """A link from its first byte on: split, check, decode, follow; the first byte says in which pieces it comes."""
    pieces, data = (data[0] % 64) + 1, data[1:]
    decoder, connection = FrameDecoder(MAX_FRAME), LinkStateMachine(OWN, now=0.0)
    step = max(1, len(data) // pieces)
    for at in range(0, len(data), step):
        for frame in decoder.feed(data[at : at + step]):
            assert len(frame) <= MAX_FRAME
            if frame[4] >= FIRST_DIALOG_KIND:
                decode_dialog(frame)
                continue
            connection.expect_link_frame(frame[4])
            connection.receive(decode_link(frame), now=1.0)
    if connection.agreement is not None:
        connection.tick(2.0)


def _stream_or_nothing(data: bytes) -> None:
    if data:
        _stream(data)


def _stream_seeds() -> list[bytes]:
    hello = encode_link(MESSAGES[0])
    talk = b"".join(encode_link(message) for message in MESSAGES)
    dialog = encode_dialog(PLAIN, encode_envelope(Envelope(type="t")) + b"body")
    return [
        *(bytes([cut]) + stream for cut in (0, 7) for stream in (hello, talk, hello + dialog * 3)),
        *(b"\0" + link_frame(FrameKind.HELLO, body) for body in hostile_maps()),
        b"\0\x16\x03\x01\x02\x00\x01",
        b"\0GET / HTTP/1.1\r\n\r\n",
        b"\0" + b"\xff" * 64,
    ]


# --- one MessagePack body ---


def _message(data: bytes) -> None:
    """The first byte is the kind; what is understood is what was said: it reads back."""
    if not data:
        return
    kind = data[0] % 16
    message = decode_link(link_frame(kind, data[1:]))
    assert message == decode_link(encode_link(message)), "it does not read back"
    if isinstance(message, Hello):
        LinkStateMachine(OWN, now=0.0).receive(message, now=1.0)
        for address in message.addresses:
            _address(address)


def _address(text: str) -> None:
    """What a HELLO or a route names as an address is one, or a ValueError tells why not."""
    transport_address(text)
    try:
        parsed = parse_address(text)
    except ValueError:
        return
    assert parsed == parse_address(str(parsed))


def _message_seeds() -> list[bytes]:
    good = [encode_link(message) for message in MESSAGES]
    hostile = [bytes([kind]) + body for kind in (FrameKind.HELLO, FrameKind.REJECTED) for body in hostile_maps()]
    return [*(frame[4:5] + frame[PRELUDE_BYTES:] for frame in good), *hostile]


# --- frames, as gateways see them ---


class _Ways(Walker):
    """Leads by the bytes of a name, which need not be UTF-8."""

    def lead(self, key: bytes, _conversation: bytes, kind: int, _is_from_target: bool, /) -> Answer:  # noqa: FBT001 - as `Resolve`
        return self.way(key[18:], kind), False


def _frames(data: bytes) -> None:
    """Both kernels make the same of it, and nothing of a frame is made up or lost."""
    told = []
    for kernel in KERNELS.values():
        walker = _Ways(make=kernel)
        batch, shelves = walker.walk(data[: 4 * MAX_FRAME])
        link = [bytes(frame) for frame in batch.link_frames]
        given = {label: b"".join(runs) for label, runs in shelves.items()}
        told.append((batch.consumed, str(batch.error), link, given, walker.taken()))
        assert 0 <= batch.consumed <= len(data)
        assert sum(map(len, given.values())) <= len(data)
    assert all(one == told[0] for one in told), told


def _dialog_frame(data: bytes) -> None:
    """Both readings of a frame agree on whether it is one."""
    check_frame(data, 0, len(data))
    if data[4] >= FIRST_DIALOG_KIND:
        header, body = decode_dialog(data)
        assert (header, body) == decode_dialog(encode_dialog(header, body))
        _bodies(body)


def _frame_seeds() -> list[bytes]:
    kinds = [encode_dialog(replace(PLAIN, kind=kind), b"b" * 9) for kind in (0x10, 0x11, 0x12, 0x13, 0x7F)]
    late = encode_dialog(replace(PLAIN, hop_count=200, time_consumed=2**32 - 1, time_to_live=1))
    return [*kinds, b"".join(kinds), late, kinds[0] + encode_link(Ping(b"12345678")) + kinds[1][:40]]


# --- bodies ---


def _bodies(data: bytes) -> None:
    """Every reader of a body, each with its own refusal."""
    for read in (decode_fault, decode_stored):
        refused(partial(read, data), FrameMalformedError)
    refused(lambda: parse_flat_xml(data))
    for validation in Validation:
        assert violation(validation, data) != ""
    envelope, payload = decode_envelope(data)
    assert (envelope, payload) == decode_envelope(encode_envelope(envelope) + payload)


def _body_seeds() -> list[bytes]:
    envelope = Envelope(type="t", contract="c", sent_us=1, lifetime=5, headers={"a": "b"})
    return [
        encode_envelope(envelope) + b"payload",
        encode_fault(Fault(code=-8494, text="no")),
        encode_stored(Stored(((1, 0, 5), (9, 9, 9)))),
        b'<?xml version="1.0"?><a xmlns="n"><b>t</b></a>',
        b'<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY c "&b;&b;">]><a>&c;</a>',
        b"<a>" * 200,
        b'{"a": [1, 2.5e300, "\\ud800", null]}',
        b"[" * 300,
        b"\xff\xfe<\x00a\x00/\x00>\x00",
        *(len(body).to_bytes(4, "big") + body for body in hostile_maps()),
    ]


# --- sealed bodies ---

DIRECTION = Direction(PLAIN.conversation_id, False, PLAIN.to_service, PLAIN.from_service, b"i" * 16)
HEAD = encode_dialog(PLAIN)


def _sealed(packet: bytes = b"") -> bytes:
    """A good box, for the frame that `HEAD` begins."""
    key_id, payload = b"k" * 16, b"payload"
    clear, nonce = clear_part(key_id, b"e" * ECHO_BYTES, 7, packet)
    length = len(HEAD) + len(clear) + len(payload) + TAG_BYTES
    head = length.to_bytes(4, "big") + HEAD[4:] + clear
    return seal(frame_key(b"s" * 32, DIRECTION, key_id), nonce, head, payload)[len(HEAD) :]


@cache
def _good_boxes() -> tuple[bytes, ...]:
    anonymous = bytes((1, 0)) + bytes(8) + b"f" * 32 + b"w" * WRAPPED_BYTES
    return _sealed(), _sealed(anonymous), _sealed(bytes((1, 1)) + anonymous[2:] + b"g" * 32 + b"\4abcd")


def _box(data: bytes) -> None:
    """A box and the key packet in it; nothing opens but what was sealed."""
    box = read_box(data)
    if box.packet:
        refused(lambda: read_packet(box.packet), SealRefusedError)
    frame = (len(HEAD) + len(data)).to_bytes(4, "big") + HEAD[4:] + data
    payload = open_frame(frame_key(b"s" * 32, DIRECTION, box.key_id), box, frame, len(HEAD))
    assert payload == b"payload"
    assert data in _good_boxes()


# --- sealed frames ---


@cache
def _secured() -> Secured:
    return Secured(Mode.FULL, far_principal="CN=billing")


@cache
def _opener() -> Opener:
    return Opener(credentials("billing", "orders"), keys_max=64)


@cache
def _good_frames() -> tuple[bytes, ...]:
    contact = initiator(_secured())
    # With keys of this process alone: what another one has sealed is none of these.
    by = Sealer(_secured(), contact.direction(), credentials("orders", "billing"), os.urandom)
    return tuple(sealed(contact, by, bytes([number]) * 20) for number in range(3))


def _opened(data: bytes) -> None:
    """Whatever comes as a sealed frame: only what the far database has sealed is believed, and as it was."""
    header, body = decode_dialog(data)
    opened = _opener().open(header, data, body, lambda: None, NOW)
    # Two fields change on the way, and nothing else.
    good = {frame[:6] + frame[7:12] + frame[16:] for frame in _good_frames()}
    assert data[:6] + data[7:12] + data[16:] in good
    assert opened.body


@cache
def targets() -> tuple[Target, ...]:
    """The targets of this file."""
    return (
        Target("stream", _stream_or_nothing, (PeerError,), _stream_seeds, input_max=16 * KIB),
        Target("message", _message, (PeerError,), _message_seeds),
        Target("frames", _frames, (), _frame_seeds, input_max=8 * KIB),
        Target("frame", _dialog_frame, (FrameMalformedError,), _frame_seeds),
        Target("body", _bodies, (FrameMalformedError,), _body_seeds),
        Target("box", _box, (SealRefusedError,), lambda: list(_good_boxes())),
        Target("opened", _opened, (SealRefusedError, FrameMalformedError), lambda: list(_good_frames())),
    )
