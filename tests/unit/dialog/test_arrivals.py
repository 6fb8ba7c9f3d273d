"""What is told at once, what waits for a message that carries it, and what waits in vain."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from broker.conversation.frames import Contact
from broker.dialog import arrivals as module
from broker.dialog.arrivals import (
    ACK_DELAY,
    ENOUGH,
    FAULTS_PER_SECOND,
    GRACE,
    REPEAT_SECONDS,
    UNKNOWN_MAX,
    DelayedAcks,
    Inbox,
    UnknownDialogs,
)
from broker.security.secured import Secured
from broker.store.port import AckState
from tests.support.virtual_time import virtual_time

CONTACT = Contact(bytes(16), False, "Billing", bytes(16), "Orders", bytes(range(16)))
ONE = AckState(CONTACT, (1, 0), frames=1)


class Far:
    """Hears what is told. Shape: `heard` (endpoint_id, place) in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, tuple[int, int]]] = []
        self.acks = DelayedAcks(self.tell)

    def tell(self, stored: Mapping[int, AckState]) -> None:
        self.heard += [(endpoint_id, standing.place) for endpoint_id, standing in stored.items()]


@virtual_time
async def test_what_is_urgent_is_told_at_once_and_once_and_the_rest_after_a_while_or_at_the_end() -> None:
    far = Far()
    far.acks.on_stored({1: ONE, 2: ONE})

    far.acks.on_stored({1: replace(ONE, place=(2, 0), is_urgent=True)})

    assert [(1, (2, 0))] == far.heard
    await asyncio.sleep(ACK_DELAY * 0.9)
    assert [(1, (2, 0))] == far.heard
    await asyncio.sleep(ACK_DELAY * 0.2)
    assert [(1, (2, 0)), (2, (1, 0))] == far.heard
    far.acks.on_stored({3: ONE})
    far.acks.close()
    await asyncio.sleep(2 * ACK_DELAY)
    assert [(3, (1, 0))] == far.heard[2:]


@virtual_time
async def test_enough_is_enough_in_one_batch_or_several() -> None:
    far = Far()
    far.acks.on_stored({1: replace(ONE, frames=ENOUGH)})
    for number in range(1, ENOUGH + 1):
        far.acks.on_stored({2: replace(ONE, place=(number, 0))})

    assert [(1, (1, 0)), (2, (ENOUGH, 0))] == far.heard
    assert {} == far.acks.pending


@virtual_time
async def test_message_that_carries_it_saves_the_frame() -> None:
    far = Far()
    far.acks.on_stored({1: replace(ONE, place=(3, 0)), 2: replace(ONE, place=(3, 0))})

    far.acks.on_carried(1, (3, 0))
    far.acks.on_carried(2, (2, 5))
    far.acks.on_carried(9, (1, 0))
    await asyncio.sleep(2 * ACK_DELAY)

    assert [(2, (3, 0))] == far.heard


INSIDE = Secured(None, "CN=orders")
ORIGIN = object()


def test_crowd_is_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_FRAMES", 2)
    monkeypatch.setattr(module, "INBOX_MAX_BYTES", 5)
    inbox = Inbox()
    for number in range(5):
        assert inbox.put(b"%d" % number, ORIGIN, INSIDE if number in {1, 2, 4} else None, is_ack=False)

    first = inbox.pop_batch()
    has_room = [inbox.put(b"%d" % number, ORIGIN, INSIDE, is_ack=False) for number in (5, 6, 7)]

    assert ([b"0", b"1"], {1: INSIDE}, 0) == first[:3]
    assert [True, True, False] == has_room
    turns = [inbox.pop_batch() for _ in range(3)]
    assert [([b"2", b"3"], [0], 0), ([b"4", b"5"], [0, 1], 0), ([b"6"], [0], 0)] == [
        (frames, list(inside), acks) for frames, inside, acks, _ in turns
    ]
    assert not inbox


def test_neither_acknowledgements_nor_messages_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_FRAMES", 2)
    inbox = Inbox()
    for number in range(3):
        inbox.put(b"ack %d" % number, ORIGIN, INSIDE if number == 1 else None, is_ack=True)
    for number in range(3):
        inbox.put(b"message %d" % number, ORIGIN, INSIDE if number == 0 else None, is_ack=False)

    turns = [inbox.pop_batch(), inbox.pop_batch()]

    assert ([b"message 0", b"message 1", b"ack 0", b"ack 1"], {0: INSIDE, 3: INSIDE}, 2) == turns[0][:3]
    assert ([b"message 2", b"ack 2"], {}, 1) == turns[1][:3]


def contact(number: int) -> Contact:
    return Contact(number.to_bytes(16, "big"), False, "Billing", bytes(16), "Orders", bytes(range(16)))


@pytest.mark.parametrize(
    ("is_certain", "instants"),
    [
        (True, {0: True, 1: False, REPEAT_SECONDS - 0.1: False, REPEAT_SECONDS: True}),
        (False, {0: False, 1: False, GRACE - 0.1: False, GRACE: True, GRACE + 1: False}),
    ],
    ids=["has heard from here", "may have overtaken the beginning"],
)
def test_unknown_dialog_is_told_at_once_or_when_it_still_comes_later_and_not_again_for_a_while(
    *, is_certain: bool, instants: dict[float, bool]
) -> None:
    strangers = UnknownDialogs()

    told = [strangers.may_answer(contact(1), 100.0 + at, is_certain=is_certain) for at in instants]

    assert [*instants.values()] == told


def test_flood_of_strangers_is_not_answered_with_another() -> None:
    strangers = UnknownDialogs()

    told = [strangers.may_answer(contact(number), 100.5, is_certain=True) for number in range(3 * FAULTS_PER_SECOND)]

    assert FAULTS_PER_SECOND == sum(told)
    assert strangers.may_answer(contact(-1 % 2**64), 101.0, is_certain=True)


@pytest.mark.parametrize("is_certain", [True, False])
def test_memory_is_bounded(*, is_certain: bool) -> None:
    strangers = UnknownDialogs()

    for number in range(2 * UNKNOWN_MAX):
        strangers.may_answer(contact(number), 100.0 + number, is_certain=is_certain)

    assert UNKNOWN_MAX == len(strangers._due)
