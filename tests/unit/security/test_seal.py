"""The sealed box: what is in it comes out whole, and no bit of the frame around it can be changed."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519

from broker.flow import Disposition
from broker.protocol.frame import Header, decode_dialog, encode_head
from broker.protocol.layout import SEAL_MAX_BYTES, Flag, FrameKind
from broker.security.identity import OwnIdentity, Sealing, Signing
from broker.security.principal import Who
from broker.security.seal import (
    CLEAR,
    NO_ECHO,
    TAG_BYTES,
    Direction,
    SealRefusedError,
    clear_part,
    direction_of,
    frame_key,
    make_packet,
    open_frame,
    open_packet,
    read_box,
    read_packet,
    seal,
)
from broker.security.secured import Mode
from tests.support.identities import own, signing
from tests.support.sealed import VECTORS

# --- key packet ---
# Key packets: opened by whom they are for, for what they are for, and by nobody else; vectors of docs/protocol.md.


SECRET, KEY_ID, NOW = bytes(range(32)), bytes(range(16)), 1_800_000_000
DIRECTION = Direction(b"c" * 16, is_from_target=False, to_service="B", from_service="A", broker_instance=b"i" * 16)
ORDERS, BILLING = own("orders"), own("billing")
TO_BILLING = signing("billing").sealing[0]


def packet(*, is_full: bool = True) -> bytes:
    return make_packet(DIRECTION, KEY_ID, SECRET, TO_BILLING, made_at=NOW, signer=ORDERS if is_full else None)


def opened(
    data: bytes,
    direction: Direction = DIRECTION,
    key_id: bytes = KEY_ID,
    by: OwnIdentity = BILLING,
    sender: Signing | None = None,
) -> bytes:
    found = read_packet(data)
    key = None if found.mode is Mode.ANONYMOUS else (sender or signing("orders")).key
    return open_packet(found, direction, key_id, by, sender=key)


@pytest.mark.parametrize("is_full", [True, False])
def test_the_secret_comes_out(*, is_full: bool) -> None:
    data = packet(is_full=is_full)

    assert SECRET == opened(data)
    assert CLEAR.size + TAG_BYTES + len(data) <= SEAL_MAX_BYTES
    assert SECRET not in data


def test_a_signer_may_have_a_key_on_p_256() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    sealing = BILLING.signing.sealing
    sender = OwnIdentity(Signing(Who(), b"s" * 32, key.public_key(), 0, 1, sealing), key, {})

    data = make_packet(DIRECTION, KEY_ID, SECRET, TO_BILLING, made_at=NOW, signer=sender)

    assert SECRET == opened(data, sender=sender.signing)
    with pytest.raises(SealRefusedError, match="signature"):
        opened(data[:-1] + bytes([data[-1] ^ 1]), sender=sender.signing)


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize(
    "other",
    [
        replace(DIRECTION, conversation_id=b"d" * 16),
        replace(DIRECTION, is_from_target=True),
        replace(DIRECTION, to_service="BA", from_service=""),
        replace(DIRECTION, from_service="C"),
        replace(DIRECTION, broker_instance=b"j" * 16),
    ],
    ids=["dialog", "direction", "names", "sender", "instance"],
)
def test_it_opens_for_its_direction_of_its_dialog_only(other: Direction, *, is_full: bool) -> None:
    with pytest.raises(SealRefusedError) as caught:
        opened(packet(is_full=is_full), other)

    assert Disposition.SEAL_BROKEN is caught.value.disposition


def test_another_signer_is_not_believed() -> None:
    with pytest.raises(SealRefusedError, match="not its sender's"):
        opened(packet(), sender=signing("billing"))


def test_who_has_another_key_cannot_open_it() -> None:
    with pytest.raises(SealRefusedError, match="sealed to another certificate, sha256:") as caught:
        opened(packet(), by=ORDERS)

    assert Disposition.SECURITY_UNRESOLVED is caught.value.disposition


@pytest.mark.parametrize("is_full", [True, False])
def test_no_bit_can_be_turned_over(*, is_full: bool) -> None:
    data = packet(is_full=is_full)

    for at in range(len(data) * 8):
        spoilt = bytearray(data)
        spoilt[at // 8] ^= 1 << at % 8
        with pytest.raises(SealRefusedError):
            opened(bytes(spoilt))


def test_a_packet_whose_point_is_of_low_order_does_not_open() -> None:
    found = read_packet(packet(is_full=False))

    with pytest.raises(SealRefusedError, match="does not open"):
        open_packet(replace(found, wrapped=bytes(len(found.wrapped))), DIRECTION, KEY_ID, BILLING, sender=None)


# --- vectors ---


@pytest.mark.parametrize("name", ["packet, full", "packet, anonymous"])
def test_vectors_of_the_page_open(name: str) -> None:
    receiver = x25519.X25519PrivateKey.from_private_bytes(VECTORS["receiver private key (X25519)"])
    sender = ed25519.Ed25519PrivateKey.from_private_bytes(VECTORS["sender private key (Ed25519)"])
    fingerprint = VECTORS["receiver certificate (SHA-256)"]
    sealing = Sealing(fingerprint, receiver.public_key(), 0, 1)
    reader = OwnIdentity(Signing(Who(), b"", sender.public_key(), 0, 1, (sealing,)), sender, {fingerprint: receiver})
    direction = Direction(
        VECTORS["conversation_id"],
        is_from_target=False,
        to_service="//shop/Billing",
        from_service="//shop/Orders",
        broker_instance=VECTORS["from_broker_instance"],
    )
    found = read_packet(VECTORS[name])

    secret = open_packet(found, direction, VECTORS["key id"], reader, sender=sender.public_key())

    assert VECTORS["secret"] == secret
    assert 1_800_000_000 == found.made_at
    if found.mode is Mode.FULL:
        assert VECTORS["sender certificate (SHA-256)"] == found.signer


# --- refusal ---
# A refusal says under what it is counted, and why.


BODY = b"what is sealed"
KEY = frame_key(SECRET, DIRECTION, KEY_ID)


def frame(body: bytes = BODY, *, count: int = 0, packet: bytes = b"") -> bytes:
    clear, nonce = clear_part(KEY_ID, NO_ECHO, count, packet)
    header = Header(FrameKind.MESSAGE, Flag.SEALED, b"m" * 16, b"c" * 16, "B", "A", b"i" * 16)
    return seal(KEY, nonce, encode_head(header, len(clear) + len(body) + TAG_BYTES) + clear, body)


def test_the_clear_part_says_which_key_and_how() -> None:
    clear, nonce = clear_part(KEY_ID, b"e" * 8, 258, b"packet")

    box = read_box(clear + bytes(TAG_BYTES))

    assert (KEY_ID, b"e" * 8, nonce, b"packet", clear) == box
    assert bytes(10) + b"\x01\x02" == nonce


@pytest.mark.parametrize(
    "body", [b"", bytes(CLEAR.size + TAG_BYTES), b"\2" + bytes(99), b"\1" + bytes(37) + b"\xff\xff" + bytes(99)]
)
def test_what_is_no_box_is_refused(body: bytes) -> None:
    with pytest.raises(SealRefusedError):
        read_box(body)


def test_the_vector_of_the_page() -> None:
    """The frame opens, and is made to the letter."""
    data = VECTORS["frame"]
    header, body = decode_dialog(data)
    key = frame_key(VECTORS["secret"], direction_of(header), VECTORS["key id"])
    box = read_box(body)
    clear, nonce = clear_part(VECTORS["key id"], box.echo, 7)

    assert b"plain text" == open_frame(key, box, data, len(data) - len(body))
    assert data == seal(key, nonce, encode_head(header, len(body)) + clear, b"plain text")
