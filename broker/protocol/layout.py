"""
Offsets, sizes and limits of protocol version 1; nothing here computes.

A frame is a prelude of eight bytes and a body. Kinds below `FIRST_DIALOG_KIND` are link frames and end at the
adjacent instance; the others are dialog frames, carry the 114-byte header below plus two names, and are routed.
All integers are unsigned and big-endian. Source: docs/protocol.md.

```
 0 length u32 | 4 kind u8 | 5 flags u8 | 6 hop_count u8 | 7 hop_limit u8                            prelude
 8 time_to_live u32 | 12 time_consumed u32 | 16 message_id | 32 conversation_id | 48 sequence_number u64
56 fragment_number u32 | 60 ack_fragment u32 | 64 ack_sequence u64 | 72 body_checksum u32
76 from_service_length u16 | 78 reserved u16 | 80 from_broker_instance
96 to_broker_instance | 112 to_service_length u16 | 114 to_service                                  route key
.. from_service | .. body
```
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct
from uuid import UUID

PROTOCOL = "sbrk"
VERSION = 1

# --- link frames ---


class FrameKind(IntEnum):
    """The kinds this version knows; 0x13 .. 0xFF are dialog frames of later versions and are routed unread."""

    HELLO = 0x01
    PING = 0x02
    PONG = 0x03
    PROBE = 0x04
    PROBE_REPLY = 0x05
    REJECTED = 0x06
    GOAWAY = 0x07
    FATAL = 0x08
    MESSAGE = 0x10
    ACK = 0x11
    FAULT = 0x12


FIRST_DIALOG_KIND = 0x10


class Flag(IntFlag):
    """Flags of a dialog frame; a link frame has none."""

    FROM_TARGET = 0x01
    LAST_FRAGMENT = 0x02
    SEALED = 0x04
    END_DIALOG = 0x08
    ERROR = 0x10
    TRACE = 0x20


# --- prelude ---

PRELUDE_BYTES = 8
PRELUDE = Struct(">IBBBB")  # length, kind, flags, hop_count, hop_limit

# --- dialog header ---

HEADER_BYTES = 114  # without the two names
HEADER = Struct(">IBBBBII16s16sQIIQIHH16s16sH")
KIND_AT = 4
FLAGS_AT = 5
HOP_COUNT_AT = 6
TIME_TO_LIVE_AT = 8
TIMES = Struct(">II")  # time_to_live, time_consumed, at TIME_TO_LIVE_AT
TIME_CONSUMED_AT = 12
MESSAGE_ID_AT = 16
CONVERSATION_AT = 32
SEQUENCE_AT = 48
FRAGMENT_AT = 56
PLACE_END = 60  # CONVERSATION_AT .. here: conversation_id, sequence_number, fragment_number in one slice
ENDS_AT = 80  # from_broker_instance .. from_service: both ends of the dialog, in one slice with the lengths
ROUTE_KEY_AT = 96  # to_broker_instance, to_service_length, to_service: one contiguous slice
TO_SERVICE_AT = 114
# The fields that the forwarding pass reads of a frame in one step: length, kind, flags, hop_count, hop_limit,
# time_to_live, time_consumed, from_service_length, to_service_length.
PASS = Struct(">IBBBBII60xH34xH")

GUID_BYTES = 16
NO_GUID = bytes(16)  # "not specified"


def show_guid(guid: bytes | UUID) -> str:
    """A GUID as views, commands, logs and errors show it: in upper case, as SQL Server does."""
    text = (guid.bytes if isinstance(guid, UUID) else guid).hex().upper()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# --- limits (unit, default, range, reason) ---

NAME_MAX_BYTES = 512  # a service name, 1 .. 512 bytes of UTF-8
MIN_DIALOG_FRAME = HEADER_BYTES + 2  # two names of one byte
HEAD_MAX_BYTES = HEADER_BYTES + 2 * NAME_MAX_BYTES  # all of a dialog frame but its body
LINK_BODY_MAX_BYTES = 16 * 1024  # body of any link frame: a HELLO is small, more is an attack
MAX_FRAME = 1024 * 1024  # bytes, when HELLO says nothing
MAX_FRAME_RANGE = (4 * 1024, 16 * 1024 * 1024)  # what HELLO may say
HEARTBEAT_MS = 15_000  # silence after which a side sends PING
HEARTBEAT_MS_RANGE = (100, 3_600_000)  # accepted from a peer's HELLO; a value outside is clamped
SILENCE_FACTOR = 3  # heartbeats of silence after which a peer is gone
HANDSHAKE_TIMEOUT = 10.0  # seconds to complete HELLO
FRAME_SECONDS = 10.0  # for any other frame that has begun to be complete ...
FRAME_BYTES_PER_SECOND = 16 * 1024  # ... and what its length takes at this rate: slower than any line of today
ADDRESSES_MAX = 64  # of a HELLO that are used: an instance listens on a few, and each has to be kept
HOP_LIMIT = 16  # hops a sender allows by default
TIME_TO_LIVE_MS = 60_000  # lifetime of one copy: just under the 64 s of the steady resend
PING_BYTES = 8
EARLY_WINDOW = 4096  # messages of a dialog accepted from the expected one on: `dialog.window` at its widest
HEADERS_MAX = 32  # of one message: trace context takes two or three
HEADERS_MAX_BYTES = 4096  # names and values of them together: they travel with the payload of fragment 0
SEAL_MAX_BYTES = 283  # by which a sealed body may be longer than what is in it; see broker.security.seal
