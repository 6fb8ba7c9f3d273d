"""A held frame tells how long it has lived, and what makes another one a copy of it."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry, PassOrigin
from broker.forwarding.held_frames import TIME_MAX, DialogAffinity, DialogPlacement, affinity_key_of, copy_key, hold
from broker.forwarding.pool import Pool, PoolQuota
from broker.protocol.frame import decode_dialog
from broker.protocol.layout import Flag, FrameKind
from tests.support.forwarding import make_frame
from tests.support.kernel import Shelf
from tests.support.pack import pack_of
from tests.support.tiers import examples

NOW = 1000.0


@pytest.mark.parametrize(
    ("difference", "is_copy"),
    [
        ({"message_id": b"n" * 16}, True),
        ({"hop_count": 3}, True),
        ({"conversation_id": b"d" * 16}, False),
        ({"sequence_number": 1}, False),
        ({"fragment_number": 1}, False),
        ({"kind": FrameKind.ACK}, False),
        ({"flags": Flag.FROM_TARGET}, False),
        ({"to_service": "//shop/Public"}, False),
        ({"from_service": "//shop/Other"}, False),
        ({"from_broker_instance": b"o" * 16}, False),
        ({"to_broker_instance": b"o" * 16}, False),
    ],
    ids=str,
)
def test_copies_are_frames_at_one_place_of_a_dialog(difference: dict[str, Any], *, is_copy: bool) -> None:
    assert is_copy == (copy_key(make_frame()) == copy_key(memoryview(make_frame(**difference))))


# --- pack ---
# Frames that wait together are told of, age and leave as each of them would by itself.


@pytest.fixture
def frames() -> list[bytes]:
    """Three of different lengths and lives."""
    return [make_frame(b"x" * n, sequence_number=n, time_to_live=1000 * (n + 1), time_consumed=n) for n in range(3)]


def test_each_frame_is_told_of_as_if_it_were_held_alone(frames: list[bytes]) -> None:
    ways = [ForwardingEntry(Shelf(n), Disposition.FORWARDED, kind=FrameKind.MESSAGE) for n in range(3)]
    arrival, payer = PassOrigin(NOW, "near", is_from_here=False), PoolQuota(Pool(1), 50)
    pack = pack_of(frames, NOW, ways=ways)._replace(arrival=arrival, quota=payer)
    places = [None, DialogPlacement(1, Shelf("here")), None]
    pack.lanes[1].placement = places[1]

    expected = zip(frames, ways, places, strict=True)
    assert [hold(frame, NOW, way, arrival, place, payer) for frame, way, place in expected] == list(pack.helds())
    assert 3 == pack.frames


@pytest.mark.parametrize("waited", [0.0, 0.0009, 0.25, 1.9999])
def test_frames_age_like_those_held_alone(waited: float, frames: list[bytes]) -> None:
    pack = pack_of(frames, NOW)
    data = bytearray(b"before" + pack.data)

    pack.age(data, len(b"before"), NOW + waited)

    assert b"before" + b"".join(held.aged(NOW + waited) for held in pack.helds()) == data
    assert b"".join(frames) == pack.data


def test_time_consumed_stops_at_what_its_field_can_say_of_pack() -> None:
    pack = pack_of([make_frame(time_to_live=TIME_MAX, time_consumed=TIME_MAX - 1)], NOW)
    data = bytearray(pack.data)

    pack.age(data, 0, NOW + 5)

    assert TIME_MAX == decode_dialog(bytes(data))[0].time_consumed
    assert next(iter(pack.helds())).aged(NOW + 5) == data


@pytest.mark.parametrize("gone", [1, 2])
def test_what_stays_is_a_pack_of_the_same_frames(gone: int, frames: list[bytes]) -> None:
    pack = pack_of(frames, NOW)

    rest = pack.without_first(gone)

    assert list(pack.helds())[gone:] == list(rest.helds())
    assert (b"".join(frames[gone:]), pack.keys[gone:], pack.name) == (rest.data, rest.keys, rest.name)
    assert (len(frames[gone]), len(rest.data)) == (rest.begun(1)[1], rest.begun(len(rest.data))[1])


# --- places ---
# A dialog has one place where the next of its frames has to wait: that of the first that still does.


@pytest.mark.parametrize(
    ("difference", "is_same"),
    [
        ({}, True),
        ({"sequence_number": 5, "fragment_number": 2, "message_id": b"n" * 16}, True),
        ({"kind": FrameKind.ACK, "hop_count": 3, "flags": Flag.TRACE}, True),
        ({"conversation_id": b"d" * 16}, False),
        ({"to_service": "//other"}, False),
        ({"to_broker_instance": b"i" * 16}, False),
        ({"flags": Flag.FROM_TARGET}, False),
    ],
    ids=str,
)
def test_key_is_that_of_all_frames_which_take_the_same_way(difference: dict[str, Any], *, is_same: bool) -> None:
    assert is_same == (affinity_key_of(make_frame()) == affinity_key_of(memoryview(make_frame(**difference))))


class Waiting(RuleBasedStateMachine):
    """As a list of (dialog, outbox) in the order of first entry does."""

    def __init__(self) -> None:
        super().__init__()
        self.places = DialogAffinity()
        self.shelves = [Shelf(n) for n in range(3)]
        self.model: dict[int, list[Shelf]] = {}
        self.held: list[tuple[int, Shelf, DialogPlacement]] = []

    @rule(key=st.integers(0, 2), shelf=st.integers(0, 2))
    def enter(self, key: int, shelf: int) -> None:
        outbox = self.shelves[shelf]
        self.held.append((key, outbox, self.places.enter(key, outbox)))
        order = self.model.setdefault(key, [])
        if outbox not in order:
            order.append(outbox)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.held:
            key, outbox, place = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.places.leave(place)
            if not any((key, outbox) == (other, whose) for other, whose, _ in self.held):
                self.model[key].remove(outbox)

    @invariant()
    def is_the_same(self) -> None:
        for key, order in self.model.items():
            assert (order[0] if order else None) is self.places.outbox_of(key)
        assert sum(bool(order) for order in self.model.values()) == len(self.places)


Waiting.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
TestWaiting = Waiting.TestCase
