"""Who hears that a dialog is not known here, and when."""

from __future__ import annotations

import pytest

from broker.conversation.frames import Contact
from broker.dialog.arrivals import AGAIN, FAULTS_PER_SECOND, GRACE, KNOWN_MAX, Strangers


def contact(number: int) -> Contact:
    return Contact(number.to_bytes(16, "big"), False, "Billing", bytes(16), "Orders", bytes(range(16)))


def test_who_has_heard_from_here_is_told_at_once_and_not_again_for_a_while() -> None:
    strangers = Strangers()

    told = [strangers.may_tell(contact(1), 100.0 + at, is_certain=True) for at in (0, 1, AGAIN - 0.1, AGAIN)]

    assert [True, False, False, True] == told


def test_who_may_have_overtaken_the_beginning_is_told_when_it_still_comes_later() -> None:
    strangers = Strangers()

    told = [
        strangers.may_tell(contact(1), 100.0 + at, is_certain=False) for at in (0, 1, GRACE - 0.1, GRACE, GRACE + 1)
    ]

    assert [False, False, False, True, False] == told


def test_both_sides_of_a_dialog_are_two() -> None:
    strangers = Strangers()
    initiator = Contact(contact(1).conversation_id, True, "Orders", bytes(16), "Billing", bytes(range(16)))

    assert strangers.may_tell(contact(1), 100.0, is_certain=True)
    assert strangers.may_tell(initiator, 100.0, is_certain=True)


def test_flood_of_strangers_is_not_answered_with_another() -> None:
    strangers = Strangers()

    told = [strangers.may_tell(contact(number), 100.5, is_certain=True) for number in range(3 * FAULTS_PER_SECOND)]

    assert FAULTS_PER_SECOND == sum(told)
    assert strangers.may_tell(contact(-1 % 2**64), 101.0, is_certain=True)


@pytest.mark.parametrize("is_certain", [True, False])
def test_memory_is_bounded(*, is_certain: bool) -> None:
    strangers = Strangers()

    for number in range(2 * KNOWN_MAX):
        strangers.may_tell(contact(number), 100.0 + number, is_certain=is_certain)

    assert KNOWN_MAX == len(strangers._from)
