"""
The frames of protocol version 1 as values: encode and decode, nothing else.

Link bodies are MessagePack maps: unknown keys are ignored, a missing key takes the default written here. A dialog
frame is a `Header` and a body. No function here keeps anything; decoding raises `FrameMalformedError` only.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from broker.errors import FrameMalformedError
from broker.protocol.envelope import split_envelope
from broker.protocol.layout import (
    FIRST_DIALOG_KIND,
    HEADER,
    HEADER_BYTES,
    HEARTBEAT_MS,
    HOP_LIMIT,
    MAX_FRAME,
    MIN_DIALOG_FRAME,
    NAME_MAX_BYTES,
    NO_GUID,
    PING_BYTES,
    PRELUDE,
    PRELUDE_BYTES,
    PROTOCOL,
    TIME_TO_LIVE_MS,
    Flag,
    FrameKind,
)

_T = TypeVar("_T")

# --- link frames ---


class Hello(msgspec.Struct, frozen=True):
    """The sender, its addresses, and what it accepts. `arbitration` is one per process, `max_frame` is in bytes."""

    protocol: str = PROTOCOL
    versions: tuple[int, ...] = (1,)
    instance: bytes = NO_GUID
    arbitration: bytes = NO_GUID
    name: str = ""
    software: str = ""
    max_frame: int = MAX_FRAME
    heartbeat_ms: int = HEARTBEAT_MS
    addresses: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


class Probe(msgspec.Struct, frozen=True):
    """Are you the principal of this broker instance now?"""

    id: int = 0
    service: str = ""
    broker_instance: bytes = NO_GUID


class ProbeReply(msgspec.Struct, frozen=True):
    """The answer: `role` is principal, mirror or unknown; the reply with the higher `epoch` wins."""

    id: int = 0
    broker_instance: bytes = NO_GUID
    role: str = "unknown"
    epoch: int = 0


class Rejected(msgspec.Struct, frozen=True):
    """Advisory: the next hop could not take this frame. `code` is the disposition's number."""

    message: bytes = NO_GUID
    conversation: bytes = NO_GUID
    sequence: int = 0
    fragment: int = 0
    code: int = 0
    reason: str = ""
    retry_after_ms: int = 0


class GoAway(msgspec.Struct, frozen=True):
    """The sender is draining: no new dialog frames to it after the deadline."""

    reason: str = ""
    deadline_ms: int = 0


class Fatal(msgspec.Struct, frozen=True):
    """The connection closes after this."""

    code: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ping:
    """Eight bytes that the peer sends back."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Pong:
    """The eight bytes of the PING."""

    payload: bytes


LinkMessage = Hello | Ping | Pong | Probe | ProbeReply | Rejected | GoAway | Fatal

KIND_OF: dict[type[LinkMessage], FrameKind] = {
    Hello: FrameKind.HELLO,
    Ping: FrameKind.PING,
    Pong: FrameKind.PONG,
    Probe: FrameKind.PROBE,
    ProbeReply: FrameKind.PROBE_REPLY,
    Rejected: FrameKind.REJECTED,
    GoAway: FrameKind.GOAWAY,
    Fatal: FrameKind.FATAL,
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: dict[int, msgspec.msgpack.Decoder[LinkMessage]] = {
    kind: msgspec.msgpack.Decoder(form) for form, kind in KIND_OF.items() if issubclass(form, msgspec.Struct)
}
_GUID_FIELDS = {
    FrameKind.HELLO: ("instance", "arbitration"),
    FrameKind.PROBE: ("broker_instance",),
    FrameKind.PROBE_REPLY: ("broker_instance",),
    FrameKind.REJECTED: ("message", "conversation"),
}


def encode_link(message: LinkMessage) -> bytes:
    """One whole link frame."""
    body = message.payload if isinstance(message, Ping | Pong) else _ENCODER.encode(message)
    return PRELUDE.pack(PRELUDE_BYTES + len(body), KIND_OF[type(message)], 0, 0, 0) + body


def decode_link(frame: bytes | bytearray | memoryview) -> LinkMessage:
    """
    The message in one whole link frame.

    Raises:
        FrameMalformedError: shorter than a prelude, an unknown kind, or a body that is not what the kind asks for.
    """
    if len(frame) < PRELUDE_BYTES:
        raise FrameMalformedError(f"link frame of {len(frame)} bytes")
    kind = frame[4]
    body = bytes(frame[PRELUDE_BYTES:])
    if kind in (FrameKind.PING, FrameKind.PONG):
        if len(body) != PING_BYTES:
            raise FrameMalformedError(f"{FrameKind(kind).name} with a body of {len(body)} bytes, not {PING_BYTES}")
        return Ping(body) if kind == FrameKind.PING else Pong(body)
    decoder = _DECODER.get(kind)
    if decoder is None:
        raise FrameMalformedError(f"unknown link kind 0x{kind:02x}")
    message = _decode(decoder, body, f"body of {FrameKind(kind).name}")
    for field in _GUID_FIELDS.get(FrameKind(kind), ()):
        if len(getattr(message, field)) != len(NO_GUID):
            raise FrameMalformedError(f"body of {FrameKind(kind).name}: {field} is not a GUID of 16 bytes")
    return message


# --- dialog frames ---


@dataclass(slots=True, unsafe_hash=True)  # frozen ones take as long to make as all the rest of decoding
class Header:
    """
    Everything a dialog frame carries before its body; field names as in the layout. Not to be changed.

    GUIDs are 16 bytes in RFC 9562 order, zero = not specified; times are milliseconds; names 1 .. 512 bytes of UTF-8.
    """

    kind: int
    flags: int
    message_id: bytes
    conversation_id: bytes
    to_service: str
    from_service: str
    from_broker_instance: bytes
    to_broker_instance: bytes = NO_GUID
    sequence_number: int = 0
    fragment_number: int = 0
    ack_sequence: int = 0
    ack_fragment: int = 0
    body_checksum: int = 0
    hop_count: int = 0
    hop_limit: int = HOP_LIMIT
    time_to_live: int = TIME_TO_LIVE_MS
    time_consumed: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """The position of the fragment in its direction: sequence number, then fragment number."""
        return self.sequence_number, self.fragment_number

    @property
    def is_from_target(self) -> bool:
        """Whether the target side of the dialog sent it."""
        return bool(self.flags & Flag.FROM_TARGET)


def encode_dialog(header: Header, body: bytes = b"") -> bytes:
    """
    One whole dialog frame.

    Raises:
        ValueError: a name that is empty or longer than 512 bytes.
    """
    return encode_head(header, len(body)) + body


def encode_head(header: Header, body_bytes: int) -> bytes:
    """
    The header and names of a dialog frame, before a body of so many bytes.

    Raises:
        ValueError: a name that is empty or longer than 512 bytes.
    """
    to_service = header.to_service.encode()
    from_service = header.from_service.encode()
    for name in (to_service, from_service):
        if not 1 <= len(name) <= NAME_MAX_BYTES:
            raise ValueError(f"a service name has 1 .. {NAME_MAX_BYTES} bytes, not {len(name)}")
    head = HEADER.pack(
        HEADER_BYTES + len(to_service) + len(from_service) + body_bytes,
        header.kind,
        header.flags,
        header.hop_count,
        header.hop_limit,
        header.time_to_live,
        header.time_consumed,
        header.message_id,
        header.conversation_id,
        header.sequence_number,
        header.fragment_number,
        header.ack_fragment,
        header.ack_sequence,
        header.body_checksum,
        len(from_service),
        0,
        header.from_broker_instance,
        header.to_broker_instance,
        len(to_service),
    )
    return b"".join((head, to_service, from_service))


def decode_dialog(frame: bytes | bytearray | memoryview) -> tuple[Header, bytes]:
    """
    Header and body of one whole dialog frame.

    Raises:
        FrameMalformedError: too short, a link kind, inner lengths that do not add up, a name that is not UTF-8.
    """
    if len(frame) < MIN_DIALOG_FRAME:
        raise FrameMalformedError(f"dialog frame of {len(frame)} bytes")
    fields = HEADER.unpack_from(frame)
    from_length, to_length = fields[14], fields[18]
    body_at = HEADER_BYTES + to_length + from_length
    if fields[0] != len(frame) or fields[1] < FIRST_DIALOG_KIND or body_at > len(frame):
        raise FrameMalformedError("inner lengths do not add up")
    if not (1 <= to_length <= NAME_MAX_BYTES and 1 <= from_length <= NAME_MAX_BYTES):
        raise FrameMalformedError(f"names of {to_length} and {from_length} bytes, not 1 .. {NAME_MAX_BYTES}")
    try:
        to_service = str(frame[HEADER_BYTES : HEADER_BYTES + to_length], "utf-8")
        from_service = str(frame[HEADER_BYTES + to_length : body_at], "utf-8")
    except UnicodeDecodeError as error:
        raise FrameMalformedError(f"service name is not UTF-8: {error.reason}") from error
    _, kind, flags, hop_count, hop_limit, time_to_live, time_consumed, message_id, conversation_id, *rest = fields
    sequence, fragment, ack_fragment, ack_sequence, body_checksum, _, _, from_instance, to_instance, _ = rest
    header = Header(  # by position: every frame that ends here pays for this
        kind,
        flags,
        message_id,
        conversation_id,
        to_service,
        from_service,
        from_instance,
        to_instance,
        sequence,
        fragment,
        ack_sequence,
        ack_fragment,
        body_checksum,
        hop_count,
        hop_limit,
        time_to_live,
        time_consumed,
    )
    return header, bytes(frame[body_at:])


def checksum(body: bytes) -> int:
    """CRC-32 of a body; 0 means "not given", so a body that hashes to 0 travels unchecked."""
    return zlib.crc32(body)


# --- bodies of dialog frames ---


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    The envelope that fragment 0 of a message carries before its payload.

    Attributes:
        contract: Only in message 0.
        sent_us: UTC microseconds at the sender.
        lifetime: Whole seconds the dialog may still live, only in message 0.
        headers: At most HEADERS_MAX, of HEADERS_MAX_BYTES together.
    """

    type: str = ""
    contract: str = ""
    sent_us: int = 0
    lifetime: int | None = None
    headers: dict[str, str] | None = None


class Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    Body of an ACK.

    Attributes:
        stored: Runs of [sequence, first_fragment, last_fragment] held out of order.
        code: Why the message at the acknowledged place was not stored although it arrived; 0 = nothing is said.
        reason: The same in words.
        confirm: A target asks for a frame that names its broker instance.
    """

    stored: tuple[tuple[int, int, int], ...] = ()
    code: int = 0
    reason: str = ""
    confirm: bool = False


class Fault(msgspec.Struct, frozen=True):
    """Body of a FAULT: one of the documented negative codes and its text."""

    code: int = 0
    text: str = ""


_NOTHING = Stored()
_ENVELOPE = msgspec.msgpack.Decoder(Envelope)
_STORED = msgspec.msgpack.Decoder(Stored)
_FAULT = msgspec.msgpack.Decoder(Fault)


def encode_envelope(envelope: Envelope) -> bytes:
    """The length-prefixed envelope that opens fragment 0."""
    body = _ENCODER.encode(envelope)
    return len(body).to_bytes(4, "big") + body


def decode_envelope(body: bytes) -> tuple[Envelope, bytes]:
    """
    Envelope and payload of fragment 0.

    Raises:
        FrameMalformedError: a length that does not fit, or no such map.
    """
    envelope, payload = split_envelope(body)
    return _decode(_ENVELOPE, envelope, "envelope"), payload


def encode_fault(fault: Fault) -> bytes:
    """Body of a FAULT frame."""
    return _ENCODER.encode(fault)


def decode_fault(body: bytes) -> Fault:
    """The broker-made error in a FAULT frame; raises FrameMalformedError."""
    return _decode(_FAULT, body, "FAULT")


def encode_stored(stored: Stored) -> bytes:
    """Body of an ACK frame; empty when there is nothing to say."""
    return _ENCODER.encode(stored) if stored != _NOTHING else b""


def decode_stored(body: bytes) -> Stored:
    """Return what an ACK says besides the acknowledged place; nothing for an empty body. Raises FrameMalformedError."""
    return _decode(_STORED, body, "ACK") if body else Stored()


def _decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes, what: str) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # RecursionError: a few KiB of nested arrays under an unknown key are enough to exhaust the stack's allowance.
        raise FrameMalformedError(f"{what}: {error}") from error
