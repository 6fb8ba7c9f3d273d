"""The sealed box: what is in it comes out whole, and no bit of the frame around it can be changed."""

from __future__ import annotations

import pytest

from broker.flow import Disposition
from broker.protocol.frame import Header, decode_dialog, encode_head
from broker.protocol.layout import HEADER_BYTES, SEAL_MAX_BYTES, Flag, FrameKind
from broker.security.seal import (
    CLEAR,
    NO_ECHO,
    PACKET_MAX,
    TAG_BYTES,
    Direction,
    SealRefusedError,
    clear_part,
    frame_key,
    open_frame,
    read_box,
    seal,
)
from tests.support.sealed import VECTORS

SECRET, KEY_ID = bytes(range(32)), bytes(range(16))
DIRECTION = Direction(b"c" * 16, is_from_target=False, to_service="B", from_service="A", broker_instance=b"i" * 16)
BODY = b"what is sealed"
KEY = frame_key(SECRET, DIRECTION, KEY_ID)


def frame(body: bytes = BODY, *, count: int = 0, packet: bytes = b"") -> bytes:
    clear, nonce = clear_part(KEY_ID, NO_ECHO, count, packet)
    header = Header(FrameKind.MESSAGE, Flag.SEALED, b"m" * 16, b"c" * 16, "B", "A", b"i" * 16)
    return seal(KEY, nonce, encode_head(header, len(clear) + len(body) + TAG_BYTES) + clear, body)


def opened(data: bytes) -> bytes:
    body_at = HEADER_BYTES + 2
    return open_frame(KEY, read_box(data[body_at:]), data, body_at)


@pytest.mark.parametrize("packet", [b"", b"p" * 200])
@pytest.mark.parametrize("body", [b"", b"x", BODY * 1000])
def test_what_is_sealed_comes_out(body: bytes, packet: bytes) -> None:
    data = frame(body, packet=packet)

    assert body == opened(data)
    assert len(data) == HEADER_BYTES + 2 + CLEAR.size + len(packet) + len(body) + TAG_BYTES
    assert len(data) - HEADER_BYTES - 2 - len(body) <= SEAL_MAX_BYTES


def test_the_clear_part_says_which_key_and_how() -> None:
    clear, nonce = clear_part(KEY_ID, b"e" * 8, 258, b"packet")

    box = read_box(clear + bytes(TAG_BYTES))

    assert (KEY_ID, b"e" * 8, nonce, b"packet", clear) == box
    assert bytes(10) + b"\x01\x02" == nonce


def test_two_frames_of_one_body_are_different() -> None:
    one, other = frame(count=1), frame(count=2)

    assert one[-len(BODY) - TAG_BYTES :] != other[-len(BODY) - TAG_BYTES :]


def test_only_hops_and_time_may_change_on_the_way() -> None:
    """Every single bit of the frame, that is of the header, the names and the box."""
    data = frame(packet=b"p" * 20)
    changed: set[int] = set()

    for at in range(len(data) * 8):
        spoilt = bytearray(data)
        spoilt[at // 8] ^= 1 << at % 8
        try:
            assert BODY == opened(bytes(spoilt))
        except SealRefusedError:
            continue
        changed.add(at // 8)

    assert {6, 12, 13, 14, 15} == changed


def test_nothing_can_be_cut_off() -> None:
    data = frame()

    for end in range(HEADER_BYTES + 2, len(data)):
        with pytest.raises(SealRefusedError) as caught:
            opened(data[:end])
        assert Disposition.SEAL_BROKEN is caught.value.disposition


@pytest.mark.parametrize(
    "body", [b"", bytes(CLEAR.size + TAG_BYTES), b"\2" + bytes(99), b"\1" + bytes(37) + b"\xff\xff" + bytes(99)]
)
def test_what_is_no_box_is_refused(body: bytes) -> None:
    with pytest.raises(SealRefusedError):
        read_box(body)


@pytest.mark.parametrize("secret", [SECRET, bytes(32)])
@pytest.mark.parametrize("key_id", [KEY_ID, bytes(16)])
@pytest.mark.parametrize("is_from_target", [False, True])
def test_another_secret_id_or_direction_is_another_key(secret: bytes, key_id: bytes, *, is_from_target: bool) -> None:
    direction = Direction(b"c" * 16, is_from_target, "B", "A", b"i" * 16)
    data = frame()
    body_at = HEADER_BYTES + 2
    key = frame_key(secret, direction, key_id)

    if (secret, key_id, is_from_target) == (SECRET, KEY_ID, False):
        assert BODY == open_frame(key, read_box(data[body_at:]), data, body_at)
    else:
        with pytest.raises(SealRefusedError):
            open_frame(key, read_box(data[body_at:]), data, body_at)


def test_the_vector_of_the_page() -> None:
    """The frame opens, and is made to the letter."""
    data = VECTORS["frame"]
    header, body = decode_dialog(data)
    direction = Direction(
        header.conversation_id,
        header.is_from_target,
        header.to_service,
        header.from_service,
        header.from_broker_instance,
    )
    key = frame_key(VECTORS["secret"], direction, VECTORS["key id"])
    box = read_box(body)
    clear, nonce = clear_part(VECTORS["key id"], box.echo, 7)

    assert b"plain text" == open_frame(key, box, data, len(data) - len(body))
    assert data == seal(key, nonce, encode_head(header, len(body)) + clear, b"plain text")


def test_the_layout_knows_how_much_longer_a_sealed_body_may_be() -> None:
    assert CLEAR.size + PACKET_MAX + TAG_BYTES == SEAL_MAX_BYTES
