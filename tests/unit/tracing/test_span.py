"""One span for each visit of a traced message: which, whose child, from when to when, and what it tells."""

from __future__ import annotations

import uuid

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, StatusCode

from broker.flow import Disposition
from broker.forwarding.entry import PassOrigin, Queued
from broker.journal.spans import SpanRole, Spans, span_id, trace_id
from broker.protocol.layout import Flag, FrameKind
from tests.support.records import HEADER, Tape, frame, way

TRACE, LAST = int(Flag.TRACE), int(Flag.LAST_FRAGMENT)
ONE = TRACE | LAST  # a whole message
OFFSET = 1_000_000.0
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MESSAGE = bytes(range(16))


def spans(tape: Tape) -> list[ReadableSpan]:
    return list(Spans(Resource({}), InstrumentationScope("broker")).of(tape.batch(offset=OFFSET)))


def sent(*, is_resend: bool = False, disposition: Disposition = Disposition.FORWARDED) -> ReadableSpan:
    tape = Tape()
    queued = {MESSAGE: Queued(OFFSET + 990.0, is_resend, PARENT)}
    tape.enter(frame(flags=ONE), way(disposition), come_from=None, queued=queued, database="orders")
    (span,) = spans(tape)
    return span


def forwarded(hop_count: int = 1, disposition: Disposition = Disposition.FORWARDED) -> list[ReadableSpan]:
    tape = Tape()
    tape.enter(frame(flags=ONE, hop_count=hop_count), way(disposition))
    return spans(tape)


def told(disposition: Disposition | None, hop_count: int = 2) -> list[ReadableSpan]:
    tape = Tape()
    arrival = PassOrigin(999.0, "west", is_from_here=False, trace_parent=PARENT)
    tape.ring.tell(frame(flags=ONE, hop_count=hop_count + 1), disposition, arrival, 1001.5)
    return spans(tape)


def outcome(span: ReadableSpan) -> object:
    assert span.attributes is not None
    return span.attributes["broker.outcome"]


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def test_what_is_sent_begins_in_the_queue_and_is_linked_to_the_application() -> None:
    span = sent()

    assert ("send //to", SpanKind.PRODUCER, None) == (span.name, span.kind, span.parent)
    assert ((OFFSET + 990) * 1e9, (OFFSET + 1000) * 1e9) == (span.start_time, span.end_time)
    assert [0x00F067AA0BA902B7] == links(span)
    assert span.context is not None
    assert trace_id(b"c" * 16, 0, is_from_target=False) == span.context.trace_id
    assert span_id(SpanRole.SEND, MESSAGE, 0) == span.context.span_id
    assert span.context.trace_flags.sampled


def test_what_is_sent_again_says_so() -> None:
    assert ("sent", "resent") == (outcome(sent()), outcome(sent(is_resend=True)))


def test_what_is_forwarded_is_the_child_of_the_hop_before() -> None:
    (first,), (second,) = forwarded(0), forwarded(1)

    assert first.context is not None
    assert first.parent is not None
    assert second.parent is not None
    assert (span_id(SpanRole.SEND, MESSAGE, 0), first.context.span_id) == (first.parent.span_id, second.parent.span_id)
    assert ("forward //to", SpanKind.INTERNAL, []) == (second.name, second.kind, links(second))
    assert first.context.trace_id == first.parent.trace_id == second.parent.trace_id


def test_what_is_delivered_is_the_child_of_the_last_hop() -> None:
    (span,), (hop,) = told(Disposition.DELIVERED), forwarded(1)

    assert hop.context is not None
    assert span.parent is not None
    assert ("deliver //to", SpanKind.CONSUMER, hop.context.span_id) == (span.name, span.kind, span.parent.span_id)
    assert ((OFFSET + 999) * 1e9, (OFFSET + 1001.5) * 1e9) == (span.start_time, span.end_time)
    assert [0x00F067AA0BA902B7] == links(span)
    assert StatusCode.UNSET is span.status.status_code


def test_a_span_tells_what_the_frame_and_the_route_say() -> None:
    (span,) = forwarded(1)

    assert {
        "messaging.system": "sbrk",
        "messaging.operation.name": "forward",
        "messaging.destination.name": "//to",
        "messaging.message.id": MESSAGE.hex(),
        "messaging.message.conversation_id": str(uuid.UUID(bytes=b"c" * 16)),
        "messaging.message.envelope.size": len(frame()),
        "broker.from_service": "//from",
        "broker.from_target": False,
        "broker.message_sequence_number": 0,
        "broker.fragment_number": 0,
        "broker.hop_count": 1,
        "broker.outcome": "forwarded",
        "broker.adjacent_in": "west",
        "broker.adjacent_out": "tcp://east:4022",
        "broker.route": "ToEast",
    } == dict(span.attributes or {})


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (forwarded(1, Disposition.NO_ROUTE), "forward //to"),
        ([sent(disposition=Disposition.NO_ROUTE)], "send //to"),
        (told(Disposition.NO_ROUTE), "deliver //to"),
    ],
)
def test_what_is_dropped_is_an_error(found: list[ReadableSpan], name: str) -> None:
    (span,) = found

    assert (name, "dropped", StatusCode.ERROR) == (span.name, outcome(span), span.status.status_code)
    assert span.attributes is not None
    assert Disposition.NO_ROUTE.value == span.status.description == span.attributes["error.type"]


def test_a_second_copy_is_told_as_one() -> None:
    (span,) = told(Disposition.DUPLICATE)

    assert ("duplicate", StatusCode.UNSET) == (outcome(span), span.status.status_code)


def test_acknowledgements_and_what_a_database_tells_itself_have_no_span() -> None:
    assert ([], []) == (told(None), forwarded(1, Disposition.DELIVERED))


@pytest.mark.parametrize(
    ("flags", "kind", "number", "count"),
    [
        (LAST, FrameKind.MESSAGE, 0, 0),
        (TRACE, FrameKind.MESSAGE, 0, 1),
        (TRACE, FrameKind.MESSAGE, 1, 0),
        (ONE, FrameKind.MESSAGE, 2, 1),
        (ONE, FrameKind.ACK, 0, 0),
        (ONE, FrameKind.FAULT, 0, 0),
    ],
)
def test_first_and_last_fragments_of_traced_messages_have_spans(
    flags: int, kind: FrameKind, number: int, count: int
) -> None:
    tape = Tape()
    tape.enter(frame(flags=flags, kind=kind, fragment_number=number), way())

    assert count == len(spans(tape))


def test_directions_of_a_dialog_have_traces_of_their_own() -> None:
    tape = Tape()
    for flags in (ONE, ONE | Flag.FROM_TARGET):
        tape.enter(frame(flags=int(flags)), way())

    assert 2 == len({span.context.trace_id for span in spans(tape) if span.context is not None})


def test_what_was_taken_back_has_no_span() -> None:
    tape = Tape()
    data = frame(flags=ONE)
    tape.enter(data, way())
    moved = bytearray(data)
    moved[6] += 1
    tape.ring.take_back(bytes(moved))

    assert [] == spans(tape)


def test_the_ring_may_be_memory_that_is_lent() -> None:
    tape = Tape(1 << 16)
    tape.enter(frame(flags=ONE), way())
    batch = tape.batch()._replace(taken=tape.ring.take())
    tape.enter(frame(flags=ONE), way())
    lent = tape.ring.swap(bytearray(1 << 16))

    made = list(Spans(Resource({}), InstrumentationScope("broker")).of(batch._replace(taken=lent)))

    assert ["forward //to"] == [span.name for span in made]
    assert HEADER.to_service == "//to"
