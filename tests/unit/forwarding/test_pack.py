"""Frames that wait together are told of, age and leave as each of them would by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry, PassOrigin
from broker.forwarding.held_frames import TIME_MAX, DialogPlacement, Lane, hold
from broker.forwarding.pool import Payer, Pool
from broker.protocol.layout import FrameKind
from tests.support.kernel import Shelf
from tests.support.pack import WAY, pack_of

MakeFrame = Callable[..., bytes]

NOW = 1000.0


@pytest.fixture
def frames(make_frame: MakeFrame) -> list[bytes]:
    """Three of different lengths and lives."""
    return [make_frame(b"x" * n, sequence_number=n, time_to_live=1000 * (n + 1), time_consumed=n) for n in range(3)]


def test_each_frame_is_told_of_as_if_it_were_held_alone(frames: list[bytes]) -> None:
    ways = [ForwardingEntry(Shelf(n), Disposition.FORWARDED, kind=FrameKind.MESSAGE) for n in range(3)]
    place, arrival, payer = (
        DialogPlacement(1, Shelf("here")),
        PassOrigin(NOW, "near", is_from_here=False),
        Payer(Pool(1), 50),
    )
    pack = pack_of(frames, NOW, ways=ways)._replace(arrival=arrival, payer=payer)
    pack.lanes[1].place = place

    told = list(pack.helds())

    places = [None, place, None]
    assert told == [
        hold(frame, NOW, way, arrival, where, payer) for frame, way, where in zip(frames, ways, places, strict=True)
    ]
    assert 3 == pack.frames


@pytest.mark.parametrize("waited", [0.0, 0.0009, 0.25, 1.9999])
def test_frames_age_like_those_held_alone(waited: float, frames: list[bytes]) -> None:
    pack = pack_of(frames, NOW)
    data = bytearray(b"before" + pack.data)

    pack.age(data, len(b"before"), NOW + waited)

    assert b"before" + b"".join(held.aged(NOW + waited) for held in pack.helds()) == data
    assert b"".join(frames) == pack.data


def test_time_consumed_stops_at_what_its_field_can_say(make_frame: MakeFrame) -> None:
    pack = pack_of([make_frame(time_to_live=TIME_MAX, time_consumed=TIME_MAX - 1)], NOW)
    data = bytearray(pack.data)

    pack.age(data, 0, NOW + 5)

    assert next(iter(pack.helds())).aged(NOW + 5) == data


def test_what_has_begun_to_leave_is_told_by_frame(frames: list[bytes]) -> None:
    pack = pack_of(frames, NOW)
    ends = [sum(map(len, frames[:n])) for n in range(4)]

    for sent in range(ends[-1] + 1):
        begun = sum(start < sent for start in ends[:3])
        assert (begun, ends[begun]) == pack.begun(sent)


@pytest.mark.parametrize("gone", [1, 2])
def test_what_stays_is_a_pack_of_the_same_frames(gone: int, frames: list[bytes]) -> None:
    pack = pack_of(frames, NOW)

    rest = pack.behind(gone)

    assert list(pack.helds())[gone:] == list(rest.helds())
    assert (b"".join(frames[gone:]), pack.keys[gone:], pack.name) == (rest.data, rest.keys, rest.name)
    assert (len(frames[gone]), len(rest.data)) == (rest.begun(1)[1], rest.begun(len(rest.data))[1])


def test_first_ones_are_counted_by_way_and_place(frames: list[bytes]) -> None:
    pack = pack_of(frames, NOW)
    one, other = Lane(WAY, b"", None), Lane(WAY, b"", None)
    other.place = DialogPlacement(1, Shelf("here"))
    pack = pack._replace(lanes=[one, other, one])

    assert [(WAY, None, 1), (WAY, other.place, 1)] == list(pack.by_dialog(2))
    assert [(WAY, None, 2), (WAY, other.place, 1)] == list(pack.by_dialog(3))
