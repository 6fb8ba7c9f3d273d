"""One walk: which frames go to which sink, what of the slab is changed, and where the walk stops."""

import pytest

from broker.errors import FrameMalformedError, FrameTooLargeError
from broker.flow import Disposition
from broker.forwarding import kernel as module
from broker.forwarding.kernel import Kernel
from broker.protocol.frame import Ping, Pong, encode_link
from broker.protocol.layout import Flag, FrameKind
from tests.support.forwarding import make_frame
from tests.support.kernel import MAX_FRAME, Walker, hopped

PING = encode_link(Ping(b"12345678"))
PONG = encode_link(Pong(b"12345678"))


pytestmark = pytest.mark.usefixtures("kernel_name")
IN_PLAIN_PYTHON = pytest.mark.parametrize("kernel_name", ["python"], indirect=True)

# --- the plain case ---


def test_route_is_asked_for_once_for_each_key_kind_and_side() -> None:
    walker = Walker()
    variants = [{}, {"kind": FrameKind.ACK}, {"flags": Flag.FROM_TARGET}, {"to_broker_instance": b"b" * 16}]
    frames = [make_frame(**variant) for variant in variants]  # type: ignore[arg-type]

    walker.walk(b"".join(frames * 3))
    walker.walk(b"".join(frames))

    key = bytes(16) + len("//to").to_bytes(2, "big") + b"//to"
    named = b"b" * 16 + key[16:]
    asked = [
        (key, FrameKind.MESSAGE, False),
        (key, FrameKind.ACK, False),
        (key, FrameKind.MESSAGE, True),
        (named, FrameKind.MESSAGE, False),
    ]
    assert [(k, b"c" * 16, kind, side) for k, kind, side in asked] == walker.asked
    assert {bool} == {type(side) for *_, side in walker.asked}  # it goes into answers as JSON


# --- what is not the plain case ---


def test_walk_takes_care_of_so_many_frames_and_leaves_the_rest_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.forwarding.entry.CARE_MAX", 5)
    walker = Walker()
    plain = make_frame(to_service="A")
    walker.walk(plain)
    spent = make_frame(hop_count=200, to_service="A")

    batch, _ = walker.walk(PING + plain * 50 + spent * 3 + PING + plain * 7 + PING + plain + spent)

    assert len(PING + plain * 50 + spent * 3 + PING + plain * 7) == batch.consumed
    assert ([PING, PING], {FrameKind.MESSAGE: 60}, None) == (batch.link_frames, batch.received, batch.error)


def test_link_frames_are_copied_out_in_order_and_not_counted() -> None:
    walker = Walker()
    frame = make_frame(to_service="A")

    batch, shelves = walker.walk(PING + frame + PONG + frame + PING)
    walker.slab[:] = bytes(len(walker.slab))

    assert batch.link_frames == [PING, PONG, PING]
    assert ({FrameKind.MESSAGE: 2}, hopped(frame, frame)) == (batch.received, b"".join(shelves["A"]))


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    ("offset", "value", "error"),
    [
        (0, (MAX_FRAME + 1).to_bytes(4, "big"), FrameTooLargeError),
        (0, (115).to_bytes(4, "big"), FrameMalformedError),
        (0, (7).to_bytes(4, "big"), FrameMalformedError),
        (0, (120).to_bytes(4, "big"), FrameMalformedError),
        (4, b"\x09", FrameMalformedError),
        (4, b"\x00", FrameMalformedError),
        (76, b"\x00\x00", FrameMalformedError),
        (76, (513).to_bytes(2, "big"), FrameMalformedError),
        (112, b"\x00\x00", FrameMalformedError),
        (112, (513).to_bytes(2, "big"), FrameMalformedError),
        (112, (200).to_bytes(2, "big"), FrameMalformedError),
    ],
)
def test_walk_stops_before_bytes_that_are_no_frame(
    offset: int, value: bytes, error: type[Exception], *, is_known: bool
) -> None:
    walker = Walker()
    good = make_frame(to_service="A")
    bad = good[:offset] + value + good[offset + len(value) :]
    if is_known:
        walker.walk(good)

    batch, shelves = walker.walk(good + bad + good)

    assert (len(good), error) == (batch.consumed, type(batch.error))
    assert shelves == {"A": [hopped(good)]}
    assert batch.received == {FrameKind.MESSAGE: 1}


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("name_bytes", [1, 16, 100, 512])
def test_frame_one_byte_too_short_for_its_names_is_malformed(name_bytes: int, *, is_known: bool) -> None:
    walker, name = Walker(), "A" * name_bytes
    good = make_frame(b"", to_service=name)
    bad = (len(good) - 1).to_bytes(4, "big") + good[4:-1]
    if is_known:
        walker.walk(good)

    batch, shelves = walker.walk(good + bad + good)

    assert (len(good), FrameMalformedError, {name: [hopped(good)]}) == (batch.consumed, type(batch.error), shelves)


# --- what is remembered ---


@IN_PLAIN_PYTHON
def test_verdicts_on_the_prelude_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORDS_MAX", 4)
    walker = Walker()
    frames = [make_frame(to_service="A", hop_limit=limit) for limit in range(1, 17)]

    batch, shelves = walker.walk(b"".join(frames * 2))

    assert isinstance(walker.kernel, Kernel)
    assert len(walker.kernel._words) <= 4
    assert ({FrameKind.MESSAGE: 32}, hopped(*frames, *frames)) == (batch.received, b"".join(shelves["A"]))


def test_a_way_of_what_is_asked_for_is_not_remembered() -> None:
    """Each such frame is a reason to ask again, as soon as that is allowed."""
    walker = Walker()
    asking = walker.way(Disposition.ASKING_FOR_ROUTE, FrameKind.MESSAGE)
    walker.ways["A", FrameKind.MESSAGE] = asking

    walker.walk(make_frame(to_service="A") * 3)
    walker.ways["A", FrameKind.MESSAGE] = walker.way("A found", FrameKind.MESSAGE)
    walker.walk(make_frame(to_service="A") * 3)

    walker.kernel.tally()
    assert (3, 3) == (asking.frames, walker.way("A found", FrameKind.MESSAGE).frames)
    assert 4 == len(walker.asked)
