"""
The sealed box: the body of a frame that only the far database can read, and that nobody can change on the way.

Each frame is sealed anew (a resend has another message id) with AES-256-GCM, under a key of its dialog and direction.
What is authenticated with it: the 114 bytes of the header with hop_count and time_consumed taken as zero, both names,
and the part of the box that stands in clear. So nothing that a gateway must not change can be changed.

Layout of the box, big-endian: version (1), flags (1, reserved), id of the key (16), the beginning of the id of the
newest key that the sender has of the receiver, zero when it has none (8), nonce (12), length of the key packet (2), the
packet, ciphertext with its tag of 16 bytes.

The key is HKDF-SHA256 of the secret of the direction (in anonymous mode: of the dialog), salted with the id of the key.
A nonce is the count of frames under its key, which lives no longer than its process, so none is used twice.

Source: docs/protocol.md, section 5, SEALED; NIST SP 800-38D (GCM), RFC 5869 (HKDF).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from broker.flow import Disposition
from broker.security.key_packet import KEY_ID_BYTES, Direction
from broker.security.refusal import SealRefusedError

VERSION = 1
ECHO_BYTES = 8
NONCE_BYTES = 12
TAG_BYTES = 16
KEY_BYTES = 32
CLEAR = struct.Struct(f">BB{KEY_ID_BYTES}s{ECHO_BYTES}s{NONCE_BYTES}sH")
NO_ECHO = bytes(ECHO_BYTES)

_FRAME_KEY_LABEL = b"sbrk/1 frame key\0"
_HOP_AT, _TIME_AT, _AFTER_TIME = 6, 12, 16  # hop_count; time_consumed, 4 bytes
_NO_TIME = bytes(4)


class Box(NamedTuple):
    """The part of a box that stands in clear, nothing of it believed yet. Shape: `clear` all of it as it came."""

    key_id: bytes
    echo: bytes
    nonce: bytes
    packet: bytes
    clear: bytes


def frame_key(secret: bytes, direction: Direction, key_id: bytes) -> AESGCM:
    """The key of this id. Cost: some ten microseconds."""
    derived = HKDF(SHA256(), KEY_BYTES, salt=key_id, info=_FRAME_KEY_LABEL + direction.context()).derive(secret)
    return AESGCM(derived)


def clear_part(key_id: bytes, echo: bytes, count: int, packet: bytes = b"") -> tuple[bytes, bytes]:
    """What stands before the ciphertext, and the nonce in it; `count` of frames under this key."""
    nonce = count.to_bytes(NONCE_BYTES, "big")
    return CLEAR.pack(VERSION, 0, key_id, echo, nonce, len(packet)) + packet, nonce


def seal(key: AESGCM, nonce: bytes, head: bytes, body: bytes) -> bytes:
    """
    A whole sealed frame.

    Args:
        key: Of the direction.
        nonce: As the clear part names it.
        head: Header and names, hop_count and time_consumed 0, the length that of the whole; then the clear part.
        body: What is sealed.
    """
    return head + key.encrypt(nonce, body, head)


def read_box(body: bytes) -> Box:
    """
    The clear part of a box.

    Raises:
        SealRefusedError: too short, or another version.
    """
    if len(body) < CLEAR.size + TAG_BYTES or body[0] != VERSION:
        raise SealRefusedError(Disposition.SEAL_BROKEN, "the body is no sealed box of version 1")
    _, _, key_id, echo, nonce, length = CLEAR.unpack_from(body)
    end = CLEAR.size + length
    if end + TAG_BYTES > len(body):
        raise SealRefusedError(Disposition.SEAL_BROKEN, "the sealed box is cut off")
    return Box(key_id, echo, nonce, body[CLEAR.size : end], body[:end])


def open_frame(key: AESGCM, box: Box, frame: bytes, body_at: int) -> bytes:
    """
    What is in a sealed frame, once all of it is verified.

    Args:
        key: Which the box names.
        box: Its clear part.
        frame: All of it as it arrived.
        body_at: Where the box begins.

    Raises:
        SealRefusedError: any bit of it is not as it was sealed, but for hop_count and time_consumed.
    """
    end = body_at + len(box.clear)
    head = b"".join((frame[:_HOP_AT], b"\0", frame[_HOP_AT + 1 : _TIME_AT], _NO_TIME, frame[_AFTER_TIME:end]))
    try:
        return key.decrypt(box.nonce, frame[end:], head)
    except InvalidTag:
        raise SealRefusedError(Disposition.SEAL_BROKEN, "the seal is broken") from None
