"""Ids that every instance on the way works out alike."""

from __future__ import annotations

from hashlib import sha256

from broker.journal.spans import SpanRole, parent_id, span_id, trace_id

DIALOG, MESSAGE = b"c" * 16, bytes(range(16))


def test_ids_are_those_of_the_page() -> None:
    assert sha256(b"sbrk trace" + DIALOG + b"\1" + bytes(7) + b"\7").hexdigest()[:32] == (
        f"{trace_id(DIALOG, 7, is_from_target=True):032x}"
    )
    assert sha256(b"sbrk forward" + MESSAGE + b"\3").hexdigest()[:16] == f"{span_id(SpanRole.FORWARD, MESSAGE, 3):016x}"


def test_messages_of_a_dialog_are_told_apart() -> None:
    traces = {trace_id(DIALOG, number, is_from_target=way) for number in range(3) for way in (False, True)}

    assert 6 == len(traces)


def test_parent_is_the_span_at_the_instance_before() -> None:
    sent = span_id(SpanRole.SEND, MESSAGE, 0)
    first, second = (span_id(SpanRole.FORWARD, MESSAGE, hops) for hops in range(2))

    assert parent_id(SpanRole.SEND, MESSAGE, 0) is None
    assert [sent, first] == [parent_id(SpanRole.FORWARD, MESSAGE, hops) for hops in range(2)]
    assert [sent, first, second] == [parent_id(SpanRole.DELIVER, MESSAGE, hops) for hops in range(3)]
