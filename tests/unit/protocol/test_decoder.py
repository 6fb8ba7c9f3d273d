"""Frames out of bytes, refused as early as the bytes allow."""

import pytest

from broker.errors import FrameMalformedError, FrameTooLargeError, PeerError
from broker.protocol.decoder import FrameDecoder, check_frame, maybe_length, recognise
from broker.protocol.layout import FrameKind

MAX_FRAME = 4096


def prelude(length: int, kind: int) -> bytes:
    return length.to_bytes(4, "big") + bytes([kind, 0, 0, 0])


def dialog(length: int, *, to_length: int = 1, from_length: int = 1) -> bytes:
    """A dialog frame of zeros with these lengths in their fields."""
    frame = bytearray(length)
    frame[:8] = prelude(length, FrameKind.MESSAGE)
    frame[76:78] = from_length.to_bytes(2, "big")
    frame[112:114] = to_length.to_bytes(2, "big")
    return bytes(frame)


TLS = "looks like TLS, and encryption is disabled here: set endpoint.encryption"
# What begins a frame, how many of its bytes are enough to refuse it, and the refusal.
REFUSED_BEGINNINGS = [
    (prelude(0, FrameKind.PING), 4, "malformed frame: length field says 0, below the 8 of the prelude"),
    (prelude(7, FrameKind.PING), 4, "malformed frame: length field says 7, below the 8 of the prelude"),
    (prelude(4097, FrameKind.MESSAGE), 4, "frame of 4097 bytes is above max_frame 4096"),
    (prelude(2**32 - 1, FrameKind.MESSAGE), 4, "frame of 4294967295 bytes is above max_frame 4096"),
    (b"\x16\x03\x01\x02\0\1", 4, f"not a frame: it {TLS}"),
    (b"GET / HTTP/1.1\r\n", 4, "not a frame: it looks like HTTP"),
    (prelude(8, 0x00), 5, "malformed frame: unknown link kind 0x00"),
    (prelude(8, 0x09), 5, "malformed frame: unknown link kind 0x09"),
    (prelude(8, 0x0F), 5, "malformed frame: unknown link kind 0x0f"),
    (prelude(15, FrameKind.PING), 5, "malformed frame: PING of 15 bytes, not 16 .. 16"),
    (prelude(17, FrameKind.PONG), 5, "malformed frame: PONG of 17 bytes, not 16 .. 16"),
    (prelude(115, FrameKind.MESSAGE), 5, "malformed frame: dialog frame of 115 bytes, below 116"),
    (prelude(115, 0xFF), 5, "malformed frame: dialog frame of 115 bytes, below 116"),
]

REFUSED_FRAMES = [
    (b"\0\0\0\7\2\0\0", "frame of 7 bytes, below the 8 of its prelude"),
    (prelude(9, FrameKind.HELLO), "length field says 9, the frame has 8 bytes"),
    (prelude(8, 0x0A), "unknown link kind 0x0a"),
    (prelude(8, FrameKind.PING), "PING of 8 bytes, not 16 .. 16"),
    (prelude(16393, FrameKind.FATAL) + bytes(16385), "FATAL of 16393 bytes, not 8 .. 16392"),
    (prelude(115, FrameKind.ACK) + bytes(107), "dialog frame of 115 bytes, below 116"),
    (dialog(116, to_length=0), "names of 0 and 1 bytes, not 1 .. 512"),
    (dialog(116, from_length=0), "names of 1 and 0 bytes, not 1 .. 512"),
    (dialog(800, to_length=513), "names of 513 and 1 bytes, not 1 .. 512"),
    (dialog(800, from_length=513), "names of 1 and 513 bytes, not 1 .. 512"),
    (dialog(1137, to_length=512, from_length=512), "names of 512 and 512 bytes in a frame of 1137"),
]


# --- recognise ---


@pytest.mark.parametrize(
    ("first_bytes", "hint"),
    [
        (b"GET / HTTP/1.1", "looks like HTTP"),
        (b"POST", "looks like HTTP"),
        (b"HEAD", "looks like HTTP"),
        (b"PUT /", "looks like HTTP"),
        (b"OPTIONS *", "looks like HTTP"),
        (b"PRI * HTTP/2.0", "looks like HTTP"),
        (b"HTTP/1.1 400 Bad Request", "looks like the answer of an HTTP server"),
        (b"<!DOCTYPE HTML>", "looks like the answer of an HTTP server"),
        (b"SSH-2.0-OpenSSH", "looks like SSH"),
        (b"\x16\x03\x01\x02", TLS),
        (b"\x15\x03\x03\x00", TLS),
        (b"PROXY TCP4", "looks like a PROXY protocol header: switch it off at the load balancer"),
        (b"\r\n\r\n\0\r\nQUIT\n", "looks like a PROXY protocol header: switch it off at the load balancer"),
        (b"\xff\xff\xff\xff", ""),
        (b"GE", ""),
        (b"", ""),
    ],
)
def test_stranger_is_recognised_by_its_first_bytes(first_bytes: bytes, hint: str) -> None:
    assert hint == recognise(first_bytes)


# --- maybe_length ---


@pytest.mark.parametrize(("beginning", "enough", "refusal"), REFUSED_BEGINNINGS)
def test_bad_beginning_is_refused_by_its_fewest_bytes(beginning: bytes, enough: int, refusal: str) -> None:
    """However it is cut; and the largest frame is no bad one."""
    decoder = FrameDecoder(MAX_FRAME)
    assert maybe_length(beginning, 0, enough - 1, MAX_FRAME) is None
    for at in range(enough - 1):
        assert decoder.feed(beginning[at : at + 1]) == []

    with pytest.raises(PeerError) as caught:
        maybe_length(beginning, 0, enough, MAX_FRAME)
    with pytest.raises(PeerError) as fed:
        decoder.feed(beginning[enough - 1 : enough])

    assert refusal == str(caught.value) == str(fed.value)
    assert decoder.buffered == 0
    assert MAX_FRAME == maybe_length(prelude(MAX_FRAME, 0x13), 0, 8, MAX_FRAME)


# --- check_frame ---


@pytest.mark.parametrize(("frame", "problem"), REFUSED_FRAMES, ids=lambda value: str(value)[-32:])
def test_broken_frame_is_malformed_wherever_it_lies(frame: bytes, problem: str) -> None:
    with pytest.raises(FrameMalformedError) as caught:
        check_frame(b"\0\0\0" + frame + b"\0", 3, 3 + len(frame))

    assert problem == caught.value.problem


# --- Decoder ---


def test_frames_are_copies_of_a_buffer_that_is_used_again() -> None:
    slab = bytearray(dialog(200) + dialog(300)[:50])
    decoder = FrameDecoder(MAX_FRAME)

    frames = decoder.feed(memoryview(slab))
    slab[:] = b"\xff" * len(slab)

    assert [dialog(200)] == frames
    assert [dialog(300)] == decoder.feed(dialog(300)[50:])


def test_decoder_stays_in_error() -> None:
    decoder = FrameDecoder(MAX_FRAME)
    with pytest.raises(FrameTooLargeError) as first:
        decoder.feed(b"SSH-2.0-OpenSSH_9.2\r\n")

    with pytest.raises(FrameTooLargeError) as again:
        decoder.feed(dialog(116))

    assert again.value is first.value is decoder.error
    assert first.value.hint == "looks like SSH"
