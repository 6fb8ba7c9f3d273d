"""Every kind of frame as bytes and as a value, and every way in which bytes are not what their kind asks for."""

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from broker.errors import FrameMalformedError
from broker.protocol.envelope import TraceParent, are_bounded, maybe_trace_parent
from broker.protocol.frame import (
    Envelope,
    Fatal,
    Fault,
    GoAway,
    Header,
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
from broker.protocol.layout import HEADERS_MAX, HEADERS_MAX_BYTES, Flag, FrameKind

SHOP = UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11").bytes
BILLING = UUID("c7d2a9e4-10b6-4c3f-9d08-6f1e52ab7730").bytes
CONVERSATION = UUID("0a3f52c8-91d4-4e6b-b7f0-25c9e81d6a43").bytes


def message_id(number: int) -> bytes:
    return UUID(f"e1000000-0000-4000-8000-{number:012}").bytes


LINKS: list[tuple[str, LinkMessage]] = [
    (
        "HELLO",
        Hello(
            versions=(1,),
            instance=UUID("3f6c1d20-77aa-4b1e-9c55-1c0de5a7e001").bytes,
            arbitration=UUID("9a4e7b52-0c1d-4f8e-a3b6-d2f01c84e977").bytes,
            name="gateway-a",
            software="broker/0.1",
            max_frame=1048576,
            heartbeat_ms=15000,
            addresses=("tcp://gateway-a.example:4022",),
        ),
    ),
    ("PING", Ping(b"\0\0\0\0\0\0\0\1")),
    ("PONG", Pong(b"\0\0\0\0\0\0\0\1")),
    ("PROBE", Probe(id=7, service="//shop/Billing", broker_instance=BILLING)),
    ("PROBE_REPLY", ProbeReply(id=7, broker_instance=BILLING, role="principal", epoch=3)),
    (
        "REJECTED",
        Rejected(
            message=message_id(1),
            conversation=CONVERSATION,
            code=11289,
            reason="pool limit exceeded",
            retry_after_ms=500,
        ),
    ),
    ("GOAWAY", GoAway(reason="shutting down", deadline_ms=5000)),
    ("FATAL", Fatal(code=28041, text="malformed frame: unknown link kind 0x09")),
]

TO_TARGET = Header(
    kind=FrameKind.MESSAGE,
    flags=Flag.LAST_FRAGMENT,
    message_id=message_id(1),
    conversation_id=CONVERSATION,
    to_service="//shop/Billing",
    from_service="//shop/Orders",
    from_broker_instance=SHOP,
)
TO_INITIATOR = Header(
    kind=FrameKind.MESSAGE,
    flags=Flag.FROM_TARGET | Flag.LAST_FRAGMENT,
    message_id=message_id(3),
    conversation_id=CONVERSATION,
    to_service="//shop/Orders",
    from_service="//shop/Billing",
    from_broker_instance=BILLING,
    to_broker_instance=SHOP,
    ack_sequence=1,
)
ACK = replace(TO_INITIATOR, kind=FrameKind.ACK, flags=Flag.FROM_TARGET, message_id=message_id(2))
INVOICE = (
    Envelope(
        type="//shop/Invoice", contract="//shop/Invoicing", sent_us=1_790_000_000_000_000, lifetime=3600, headers=None
    ),
    b'{"order": 7}',
)
RECEIPT = (Envelope(type="//shop/Receipt", sent_us=1_790_000_000_250_000), b"ok")
END_OF_DIALOG = (
    Envelope(type="http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog", sent_us=1_790_000_000_300_000),
    b"",
)
MESSAGES = [
    ("MESSAGE", replace(TO_TARGET, body_checksum=0x15E14383), *INVOICE),
    ("MESSAGE one hop on", replace(TO_TARGET, body_checksum=0x15E14383, hop_count=1, time_consumed=12), *INVOICE),
    ("MESSAGE reply", replace(TO_INITIATOR, body_checksum=0xA8E5AC36), *RECEIPT),
    (
        "MESSAGE end of dialog",
        replace(
            TO_TARGET,
            flags=Flag.LAST_FRAGMENT | Flag.END_DIALOG,
            message_id=message_id(4),
            to_broker_instance=BILLING,
            sequence_number=1,
            ack_sequence=1,
            body_checksum=0x2EAE954F,
        ),
        *END_OF_DIALOG,
    ),
]
ACKS = [
    ("ACK", ACK, Stored()),
    ("ACK one hop on", replace(ACK, hop_count=1), Stored()),
    (
        "ACK out of order",
        replace(ACK, message_id=message_id(6), ack_sequence=2, ack_fragment=1, body_checksum=0x1CDD76C4),
        Stored(((3, 0, 4),)),
    ),
]
FAULT = (
    replace(
        TO_INITIATOR,
        kind=FrameKind.FAULT,
        flags=Flag.FROM_TARGET,
        message_id=message_id(5),
        ack_sequence=0,
        body_checksum=0x0CDBB09E,
    ),
    Fault(code=-8490, text="the service does not exist here"),
)


def link_frame(kind: int, body: bytes) -> bytes:
    return (8 + len(body)).to_bytes(4, "big") + bytes([kind, 0, 0, 0]) + body


# --- link frames ---


@pytest.mark.parametrize(("name", "message"), LINKS)
def test_link_frame_is_the_golden_one(golden: dict[str, bytes], name: str, message: LinkMessage) -> None:
    assert golden[name] == encode_link(message)


def test_missing_keys_take_their_documented_defaults_and_unknown_ones_are_ignored() -> None:
    """Which defaults those are is compared with the page in test_protocol_page.py."""
    body = msgspec.msgpack.encode({"reason": "upgrade", "since": [1, {"a": None}], "deadline_ms": 10})

    assert Hello() == decode_link(link_frame(FrameKind.HELLO, b"\x80"))
    assert GoAway(reason="upgrade", deadline_ms=10) == decode_link(link_frame(FrameKind.GOAWAY, body))


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b"\0\0\0\7\2\0\0", "link frame of 7 bytes"),
        (link_frame(0x09, b"\x80"), "unknown link kind 0x09"),
        (link_frame(FrameKind.MESSAGE, b"\x80"), "unknown link kind 0x10"),
        (link_frame(FrameKind.PING, bytes(7)), "PING with a body of 7 bytes, not 8"),
        (link_frame(FrameKind.PONG, bytes(9)), "PONG with a body of 9 bytes, not 8"),
        (link_frame(FrameKind.FATAL, b""), "body of FATAL: "),
        (link_frame(FrameKind.FATAL, b"\x90"), "body of FATAL: "),
        (link_frame(FrameKind.FATAL, b"\x80\x80"), "body of FATAL: "),
        (link_frame(FrameKind.FATAL, b"\x81\xa4text\xa1\xff"), "body of FATAL: "),
        (link_frame(FrameKind.FATAL, b"\x81\xa4code\xc0"), "body of FATAL: "),
        (link_frame(FrameKind.FATAL, b"\x81\xa1x" + b"\x91" * 16_000), "body of FATAL: "),
        (link_frame(FrameKind.HELLO, b"\x81\xa8versions\xdd\xff\xff\xff\xff"), "body of HELLO: "),
        *(
            (
                link_frame(kind, msgspec.msgpack.encode({field: bytes(15)})),
                f"body of {kind.name}: {field} is not a GUID",
            )
            for kind, fields in (
                (FrameKind.HELLO, ("instance", "arbitration")),
                (FrameKind.PROBE, ("broker_instance",)),
                (FrameKind.PROBE_REPLY, ("broker_instance",)),
                (FrameKind.REJECTED, ("message", "conversation")),
            )
            for field in fields
        ),
    ],
)
def test_link_frame_that_is_not_what_its_kind_asks_for_is_malformed(frame: bytes, problem: str) -> None:
    with pytest.raises(FrameMalformedError) as caught:
        decode_link(frame)

    assert caught.value.problem.startswith(problem)


# --- dialog frames ---


DialogFrame = tuple[str, Header, bytes, Callable[[bytes], object], object]
DIALOG_FRAMES: list[DialogFrame] = [
    *(
        (name, header, encode_envelope(envelope) + payload, decode_envelope, (envelope, payload))
        for name, header, envelope, payload in MESSAGES
    ),
    *((name, header, encode_stored(stored), decode_stored, stored) for name, header, stored in ACKS),
    ("FAULT", FAULT[0], encode_fault(FAULT[1]), decode_fault, FAULT[1]),
]


@pytest.mark.parametrize("case", DIALOG_FRAMES, ids=lambda case: case[0])
def test_dialog_frame_is_the_golden_one(golden: dict[str, bytes], case: DialogFrame) -> None:
    name, header, body, decode, content = case

    assert golden[name] == encode_dialog(header, body)
    assert (header, body) == decode_dialog(memoryview(golden[name]))
    assert content == decode(body)


@pytest.mark.parametrize("field", ["to_service", "from_service"])
@pytest.mark.parametrize("name", ["", "é" * 256 + "x"])
def test_name_that_has_no_room_is_not_encoded(field: str, name: str) -> None:
    header = replace(TO_TARGET, to_service=name) if field == "to_service" else replace(TO_TARGET, from_service=name)

    with pytest.raises(ValueError, match=f"a service name has 1 .. 512 bytes, not {len(name.encode())}"):
        encode_dialog(header)


def changed(frame: bytes, at: int, *new: int) -> bytes:
    return frame[:at] + bytes(new) + frame[at + len(new) :]


SMALLEST = encode_dialog(replace(TO_TARGET, to_service="t", from_service="f"))


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (SMALLEST[:-1], "dialog frame of 115 bytes"),
        (changed(SMALLEST, 3, 117), "inner lengths do not add up"),
        (changed(SMALLEST, 4, FrameKind.FATAL), "inner lengths do not add up"),
        (changed(SMALLEST, 113, 2), "inner lengths do not add up"),
        (changed(SMALLEST, 77, 2), "inner lengths do not add up"),
        (changed(SMALLEST, 113, 0), "names of 0 and 1 bytes, not 1 .. 512"),
        (changed(SMALLEST, 77, 0), "names of 1 and 0 bytes, not 1 .. 512"),
        (changed(encode_dialog(TO_TARGET, bytes(600)), 112, 2, 1), "names of 513 and 13 bytes, not 1 .. 512"),
        (changed(SMALLEST, 114, 0xFF), "service name is not UTF-8: invalid start byte"),
        (changed(SMALLEST, 115, 0xC3), "service name is not UTF-8: unexpected end of data"),
    ],
)
def test_dialog_frame_whose_structure_is_broken_is_malformed(frame: bytes, problem: str) -> None:
    with pytest.raises(FrameMalformedError) as caught:
        decode_dialog(frame)

    assert problem == caught.value.problem


# --- bodies of dialog frames ---


@pytest.mark.parametrize(
    ("decode", "body", "problem"),
    [
        (decode_envelope, b"", "envelope is longer than its fragment"),
        (decode_envelope, b"\0\0\0", "envelope is longer than its fragment"),
        (decode_envelope, b"\0\0\0\2\x80", "envelope is longer than its fragment"),
        (decode_envelope, b"\0\0\0\0", "envelope: "),
        (decode_envelope, b"\0\0\0\1\x90", "envelope: "),
        (decode_envelope, b"\0\0\0\x0a\x81\xa7headers\x01", "envelope: "),
        (decode_fault, b"\x01", "FAULT: "),
        (decode_stored, b"\x81\xa6stored\x91\x92\x01\x02", "ACK: "),
    ],
)
def test_broken_body_is_malformed(decode: Callable[[bytes], object], body: bytes, problem: str) -> None:
    with pytest.raises(FrameMalformedError) as caught:
        decode(body)

    assert problem in caught.value.problem


# --- headers ---
# The bounds of headers, to the byte.


@pytest.mark.parametrize(
    ("headers", "is_bounded"),
    [
        ({str(number): "" for number in range(HEADERS_MAX)}, True),
        ({str(number): "" for number in range(HEADERS_MAX + 1)}, False),
        ({"ä": "€" + "x" * (HEADERS_MAX_BYTES - 5)}, True),
        ({"ä": "€" + "x" * (HEADERS_MAX_BYTES - 4)}, False),
    ],
)
def test_a_message_may_have_so_many_and_no_more(headers: dict[str, str], is_bounded: bool) -> None:  # noqa: FBT001
    assert is_bounded == are_bounded(headers)


# --- trace context ---
# What is understood of a `traceparent`.


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"01-{TRACE}-{SPAN}-01", True),
        (f"01-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_span_of_the_sender_is_told(text: str, is_sampled: bool) -> None:  # noqa: FBT001 - a column of the table
    assert TraceParent(bytes.fromhex(TRACE), bytes.fromhex(SPAN), is_sampled) == maybe_trace_parent(text)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_what_is_no_trace_parent_is_none(text: str | None) -> None:
    assert maybe_trace_parent(text) is None
