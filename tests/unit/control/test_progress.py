from __future__ import annotations

import pytest

from broker.catalog.catalog import MESSAGES_MAX, ScriptMessages, ScriptProgress


def test_few_messages_are_told_one_by_one() -> None:
    messages = ScriptMessages()
    for number in range(MESSAGES_MAX):
        messages.add("route", number, "created")

    assert messages.lines() == [f"route {number} created" for number in range(MESSAGES_MAX)]


@pytest.mark.parametrize(("more", "line"), [(1, "2 more: route created 1, queue dropped 1"), (1999, None)])
def test_many_messages_are_counted_by_kind(more: int, line: str | None) -> None:
    messages = ScriptMessages()
    for number in range(MESSAGES_MAX + more):
        messages.add("route", number, "created")
    messages.add("queue", "q", "dropped")

    lines = messages.lines()

    assert len(lines) == MESSAGES_MAX + 1
    assert lines[-1] == (line or "2,000 more: route created 1,999, queue dropped 1")


def test_two_scripts_that_look_alike_are_not_the_same() -> None:
    assert ScriptProgress() != ScriptProgress()
