"""A dialog has one place where the next of its frames has to wait: that of the first that still does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.forwarding.held_frames import DialogAffinity, DialogPlacement, key_of, place_key
from broker.protocol.layout import Flag, FrameKind
from tests.support.kernel import Shelf
from tests.support.tiers import examples

MakeFrame = Callable[..., bytes]


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
def test_key_is_that_of_all_frames_which_take_the_same_way(
    difference: dict[str, object], *, is_same: bool, make_frame: MakeFrame
) -> None:
    assert is_same == (place_key(make_frame()) == place_key(memoryview(make_frame(**difference))))


@pytest.mark.parametrize("flags", [0, Flag.FROM_TARGET])
def test_key_of_a_frame_is_that_of_what_decides_its_way(flags: int, make_frame: MakeFrame) -> None:
    frame = make_frame(to_service="//é", conversation_id=b"d" * 16, flags=flags)
    route_key = bytes(16) + b"\0\x04" + "//é".encode()[:4]

    assert len("//é".encode()) == 4
    assert place_key(frame) == key_of(route_key, b"d" * 16, is_from_target=bool(flags))


def test_place_is_where_the_first_waits_until_the_last_of_them_has_left() -> None:
    places, here, there = DialogAffinity(), Shelf("here"), Shelf("there")
    old = [places.enter(1, here) for _ in range(2)]
    new = places.enter(1, there)

    found = [places.where(1)]
    for place in (old[0], old[1], new):
        places.leave(place)
        found.append(places.where(1))

    assert [here, here, there, None] == found
    assert (None, 0) == (places.where(2), len(places))


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
            assert (order[0] if order else None) is self.places.where(key)
        assert sum(bool(order) for order in self.model.values()) == len(self.places)


Waiting.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
TestWaiting = Waiting.TestCase
