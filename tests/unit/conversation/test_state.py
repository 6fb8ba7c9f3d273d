"""What changes a state, and what each allows."""

from __future__ import annotations

import pytest

from broker.conversation.state import CAN_SEND, TAKES_MESSAGES, TRANSITIONS, ConversationState, Happening

STEPS = [
    # state, then what it becomes by: first sent, first received, end received, error received, ended here, end acked
    ("SO", "CO", None, "DI", "ER", "CD", None),
    ("SI", None, "CO", "DI", "ER", "DO", None),
    ("CO", None, None, "DI", "ER", "DO", None),
    ("DI", None, None, None, "ER", "CD", None),
    ("DO", None, None, "CD", "CD", None, "CD"),
    ("ER", None, None, None, None, "CD", None),
    ("CD", None, None, None, None, None, None),
]


@pytest.mark.parametrize("row", STEPS, ids=lambda row: row[0])
def test_transitions_are_those_of_the_documented_states(row: tuple[str, ...]) -> None:
    state = ConversationState(row[0])

    steps = tuple(TRANSITIONS.get((state, happening)) for happening in Happening)

    assert row[1:] == steps


def test_what_may_be_sent_and_taken_in_which_state() -> None:
    assert {"SO", "CO"} == CAN_SEND
    assert {"SO", "SI", "CO"} == TAKES_MESSAGES
