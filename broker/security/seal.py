"""
The sealed box, the body of a frame that only the far database can read and no other party can change; its key packet.

Each frame is sealed again (a resend has another message id) with AES-256-GCM, under a key of its dialog and direction.
Authenticated with it: the 114 bytes of the header with hop_count and time_consumed taken as zero, both names, and the
clear part of the box. So nothing that a gateway must not change can be changed.

Layout of the box, big-endian: version (1), flags (1, reserved), id of the key (16), the beginning of the id of the
newest key that the sender has of the receiver, zero when it has none (8), nonce (12), length of the key packet (2), the
packet, ciphertext with its tag of 16 bytes.

The key is HKDF-SHA256 of the secret of the direction (in anonymous mode: of the dialog), salted with the id of the key.
A nonce is the count of frames under its key, which lives no longer than its process, so none is used twice.

A key packet brings that secret, 32 random bytes, to the far side alone. It is encrypted by HPKE (X25519, HKDF-SHA256,
AES-256-GCM) to the receiver's sealing certificate, with a new encapsulated key each time, so a stolen key of the sender
reveals no secret. In full mode the sender signs all of it. The purpose of the packet is the `info` of HPKE: the dialog,
its direction, both services, the sender's broker instance, the id of the key, the certificates, the instant. It is
signed, so a packet opens for that purpose only.

Layout of a packet, big-endian: version (1), mode (1: 0 anonymous, 1 full), made_at in UTC seconds (8), SHA-256 of the
receiver's sealing certificate (32), encapsulated key and secret (80); in full mode SHA-256 of the sender's signing
certificate (32), length of the signature (1) and the signature: Ed25519, or ECDSA with SHA-256 in DER.

No clock is read; random bytes are drawn by the library.

Source: docs/protocol.md, section 10; NIST SP 800-38D (GCM), RFC 5869 (HKDF), RFC 9180 (HPKE, mode base), RFC
8032 (Ed25519), FIPS 186-5 (ECDSA).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from broker.flow import Disposition
from broker.protocol.frame import Header
from broker.security.identity import FINGERPRINT_BYTES, OwnIdentity, Sealing, SigningKey, VerifyingKey
from broker.security.secured import SECRET_BYTES, Mode

VERSION = 1
KEY_ID_BYTES = 16
ECHO_BYTES = 8
NONCE_BYTES = 12
TAG_BYTES = 16
KEY_BYTES = 32
WRAPPED_BYTES = 32 + SECRET_BYTES + 16  # encapsulated key, secret, tag
NO_ECHO = bytes(ECHO_BYTES)
CLEAR = struct.Struct(f">BB{KEY_ID_BYTES}s{ECHO_BYTES}s{NONCE_BYTES}sH")
_PACKET_LABEL = b"sbrk/1 key packet\0"
_FRAME_KEY_LABEL = b"sbrk/1 frame key\0"
_SIGNED = b"sbrk/1 key packet signature\0"
_HEAD = struct.Struct(f">BBQ{FINGERPRINT_BYTES}s{WRAPPED_BYTES}s")
_SIGNER = struct.Struct(f">{FINGERPRINT_BYTES}sB")
_HOP_AT, _TIME_AT, _AFTER_TIME = 6, 12, 16  # hop_count; time_consumed, 4 bytes
_NO_TIME = bytes(4)
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_ECDSA = ec.ECDSA(SHA256())


class SealRefusedError(Exception):
    """
    A sealed frame, or the key packet in one, that is refused; it is dropped, and nothing else happens.

    Attributes:
        disposition: Under which it is counted.
        why: In words, without anything secret.
    """

    def __init__(self, disposition: Disposition, why: str) -> None:
        super().__init__(disposition, why)
        self.disposition = disposition
        self.why = why

    def __str__(self) -> str:
        return f"{self.disposition}: {self.why}"


@dataclass(frozen=True, slots=True)
class Direction:
    """
    Use of a key: one direction of one dialog, from one database.

    Attributes:
        conversation_id, broker_instance: The sender's, 16 bytes.
    """

    conversation_id: bytes
    is_from_target: bool
    to_service: str
    from_service: str
    broker_instance: bytes

    def context(self) -> bytes:
        """All of it as bytes, in one way only."""
        texts = self.to_service.encode(), self.from_service.encode()
        names = b"".join(len(name).to_bytes(2, "big") + name for name in texts)
        return bytes((self.is_from_target,)) + self.conversation_id + self.broker_instance + names


def direction_of(header: Header) -> Direction:
    """The direction that a frame travels in."""
    return Direction(
        header.conversation_id,
        header.is_from_target,
        header.to_service,
        header.from_service,
        header.from_broker_instance,
    )


# --- the box ---


class Box(NamedTuple):
    """The clear part of a box, not verified; `clear` is all of it as it came."""

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
    """Return the bytes before the ciphertext, and the nonce in them; `count` of frames under this key."""
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
        raise SealRefusedError(Disposition.SEAL_BROKEN, "the body is not a sealed box of version 1")
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


# --- key packets ---


@dataclass(frozen=True, slots=True)
class KeyPacket:
    """
    A packet as it was read, with nothing of it verified yet.

    Attributes:
        made_at: UTC seconds since 1970.
        receiver: A fingerprint, 32 bytes.
        signer: A fingerprint, 32 bytes; empty when anonymous.
        signature: Empty when anonymous.
    """

    mode: Mode
    made_at: int
    receiver: bytes
    wrapped: bytes
    signer: bytes = b""
    signature: bytes = b""


def make_packet(
    direction: Direction, key_id: bytes, secret: bytes, far: Sealing, *, made_at: int, signer: OwnIdentity | None
) -> bytes:
    """
    Wrap a secret.

    Args:
        direction: The direction of a dialog that the key of the secret serves.
        key_id: Of that key, 16 bytes.
        secret: 32 random bytes.
        far: The sealing certificate of the receiver.
        made_at: UTC seconds since 1970.
        signer: The sender; None = anonymous.

    Returns:
        The packet. Cost: two or three operations on a curve, some hundred microseconds.
    """
    mode = Mode.ANONYMOUS if signer is None else Mode.FULL
    fingerprint = b"" if signer is None else signer.signing.fingerprint
    info = _info(direction, key_id, KeyPacket(mode, made_at, far.fingerprint, b"", fingerprint))
    wrapped = _SUITE.encrypt(secret, far.key, info)
    head = _HEAD.pack(VERSION, mode is Mode.FULL, made_at, far.fingerprint, wrapped)
    if signer is None:
        return head
    signature = _sign(signer.signing_key, _SIGNED + info + wrapped)
    return head + _SIGNER.pack(fingerprint, len(signature)) + signature


def read_packet(data: bytes) -> KeyPacket:
    """
    Take a packet apart.

    Raises:
        SealRefusedError: another version, or lengths that do not add up.
    """
    if len(data) < _HEAD.size or data[0] != VERSION or data[1] > 1:
        raise SealRefusedError(Disposition.SEAL_BROKEN, "the key packet is none of version 1")
    _, is_full, made_at, receiver, wrapped = _HEAD.unpack_from(data)
    if not is_full:
        if len(data) != _HEAD.size:
            raise SealRefusedError(Disposition.SEAL_BROKEN, "the key packet has more than its parts")
        return KeyPacket(Mode.ANONYMOUS, made_at, receiver, wrapped)
    if len(data) < _HEAD.size + _SIGNER.size:
        raise SealRefusedError(Disposition.SEAL_BROKEN, "the key packet is cut off")
    signer, length = _SIGNER.unpack_from(data, _HEAD.size)
    signature = data[_HEAD.size + _SIGNER.size :]
    if len(signature) != length or not length:
        raise SealRefusedError(Disposition.SEAL_BROKEN, "the key packet is cut off")
    return KeyPacket(Mode.FULL, made_at, receiver, wrapped, signer, signature)


def open_packet(
    packet: KeyPacket, direction: Direction, key_id: bytes, own: OwnIdentity, *, sender: VerifyingKey | None
) -> bytes:
    """
    Return the secret in a packet, once its signature is verified.

    Args:
        packet: As it was read.
        direction: The direction that the key serves, as the frame states it.
        key_id: The id that the frame names.
        own: The identity of the database that opens it.
        sender: The key of the signing certificate that the packet names; None for an anonymous one.

    Raises:
        SealRefusedError: it is for another receiver or another purpose, or not from the stated sender.
    """
    info = _info(direction, key_id, packet)
    if packet.mode is Mode.FULL and (
        sender is None or not _is_signed(sender, packet.signature, _SIGNED + info + packet.wrapped)
    ):
        raise SealRefusedError(Disposition.SEAL_BROKEN, "the signature of the key packet is not its sender's")
    key = own.opening.get(packet.receiver)
    if key is None:
        found = f"sha256:{packet.receiver.hex()}"
        raise SealRefusedError(Disposition.SECURITY_UNRESOLVED, f"it is sealed to another certificate, {found}")
    try:
        return _SUITE.decrypt(packet.wrapped, key, info)
    except InvalidTag as error:
        raise SealRefusedError(Disposition.SEAL_BROKEN, "the key packet does not open") from error


def _info(direction: Direction, key_id: bytes, packet: KeyPacket) -> bytes:
    """Return the purpose of a packet; fields of fixed length are first, so it can be read in one way only."""
    fixed = bytes((VERSION, packet.mode is Mode.FULL)) + packet.made_at.to_bytes(8, "big") + key_id + packet.receiver
    return _PACKET_LABEL + fixed + (packet.signer or bytes(FINGERPRINT_BYTES)) + direction.context()


def _sign(key: SigningKey, data: bytes) -> bytes:
    return key.sign(data) if isinstance(key, ed25519.Ed25519PrivateKey) else key.sign(data, _ECDSA)


def _is_signed(key: VerifyingKey, signature: bytes, data: bytes) -> bool:
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, data)
        else:
            key.verify(signature, data, _ECDSA)
    except InvalidSignature:
        return False
    return True
