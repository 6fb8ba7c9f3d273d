"""Ids that every instance on the way works out alike."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from threading import Event

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv._incubating.attributes import messaging_attributes as messaging
from opentelemetry.semconv.attributes import error_attributes, service_attributes
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import capture_logs

from broker.flow import Disposition
from broker.forwarding.entry import PassOrigin, Queued
from broker.journal import spans as semantic
from broker.journal.rows import NO_FOLLOWER, RingBatch
from broker.journal.spans import SpanRole, Spans, Tracing, parent_id, span_id, trace_id
from broker.protocol.layout import Flag, FrameKind
from examples.demo.topology import wait_for
from tests.support.records import HEADER, Tape, frame, way

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


# --- test_semantic ---
# Attributes are called as OpenTelemetry calls them, where it does.


def test_names_are_those_of_the_conventions() -> None:
    ours = (
        semantic.SYSTEM,
        semantic.OPERATION_NAME,
        semantic.OPERATION_TYPE,
        semantic.DESTINATION,
        semantic.MESSAGE_ID,
        semantic.CONVERSATION_ID,
        semantic.ENVELOPE_SIZE,
        semantic.ERROR_TYPE,
        semantic.SERVICE_NAME,
        semantic.SERVICE_VERSION,
    )

    assert (
        messaging.MESSAGING_SYSTEM,
        messaging.MESSAGING_OPERATION_NAME,
        messaging.MESSAGING_OPERATION_TYPE,
        messaging.MESSAGING_DESTINATION_NAME,
        messaging.MESSAGING_MESSAGE_ID,
        messaging.MESSAGING_MESSAGE_CONVERSATION_ID,
        messaging.MESSAGING_MESSAGE_ENVELOPE_SIZE,
        error_attributes.ERROR_TYPE,
        service_attributes.SERVICE_NAME,
        service_attributes.SERVICE_VERSION,
    ) == ours


def test_types_of_operations_are_those_of_the_conventions() -> None:
    known = {one.value for one in messaging.MessagingOperationTypeValues}

    assert set(semantic.TYPES.values()) <= known


def test_the_rest_is_below_our_own_name() -> None:
    named = {name: value for name, value in vars(semantic).items() if name.isupper() and isinstance(value, str)}
    own = {value for value in named.values() if value.startswith("broker.")}

    assert 9 == len(own)


# --- test_span ---
# One span for each visit of a traced message: which, whose child, from when to when, and what it tells.


TRACE, LAST = int(Flag.TRACE), int(Flag.LAST_FRAGMENT)
ONE = TRACE | LAST  # a whole message
OFFSET = 1_000_000.0
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MESSAGE_of_span = bytes(range(16))


def spans(tape: Tape) -> list[ReadableSpan]:
    return list(Spans(Resource({}), InstrumentationScope("broker")).of(tape.batch(offset=OFFSET)))


def sent(*, is_resend: bool = False, disposition: Disposition = Disposition.FORWARDED) -> ReadableSpan:
    tape = Tape()
    queued = {MESSAGE_of_span: Queued(OFFSET + 990.0, is_resend, PARENT)}
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
    tape.ring.report(frame(flags=ONE, hop_count=hop_count + 1), disposition, arrival, 1001.5)
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
    assert span_id(SpanRole.SEND, MESSAGE_of_span, 0) == span.context.span_id
    assert span.context.trace_flags.sampled


def test_what_is_sent_again_says_so() -> None:
    assert ("sent", "resent") == (outcome(sent()), outcome(sent(is_resend=True)))


def test_what_is_forwarded_is_the_child_of_the_hop_before() -> None:
    (first,), (second,) = forwarded(0), forwarded(1)

    assert first.context is not None
    assert first.parent is not None
    assert second.parent is not None
    assert (span_id(SpanRole.SEND, MESSAGE_of_span, 0), first.context.span_id) == (
        first.parent.span_id,
        second.parent.span_id,
    )
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
        "messaging.message.id": MESSAGE_of_span.hex(),
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


# --- test_tracing ---
# Spans are counted on every way they can go, and nobody waits for a collector.


TRACED = int(Flag.TRACE | Flag.LAST_FRAGMENT)


class Kept(SpanExporter):
    """An exporter that keeps what it gets. Shape: `is_open` lets it go on; `result` what it says."""

    def __init__(self, result: SpanExportResult = SpanExportResult.SUCCESS) -> None:
        self.spans: list[ReadableSpan] = []
        self.result = result
        self.is_open = Event()
        self.is_open.set()
        self.shutdowns = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.is_open.wait(30)
        self.spans += spans
        return self.result

    def shutdown(self) -> None:
        self.shutdowns += 1
        self.is_open.set()


Make = Callable[..., tuple[Tracing, Kept]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Tracing] = []

    def new(result: SpanExportResult = SpanExportResult.SUCCESS, **environ: str) -> tuple[Tracing, Kept]:
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        kept = Kept(result)
        tracing = Tracing("gw", exporter=kept)
        made.append(tracing)
        return tracing, kept

    yield new
    for one in made:
        one.close(10)


def batch(count: int = 1) -> RingBatch:
    tape = Tape()
    for number in range(count):
        tape.enter(frame(flags=TRACED, sequence_number=number), way())
    return tape.batch()


def counts(tracing: Tracing) -> tuple[int, int, int]:
    status = tracing.status()
    assert set(NO_FOLLOWER) == set(status)
    return status["spans"], status["spans_pending"], status["spans_dropped"]


def test_spans_reach_the_collector_and_are_counted(make: Make) -> None:
    tracing, kept = make(OTEL_RESOURCE_ATTRIBUTES="service.name=shop,zone=a")

    tracing.add(batch(3))
    tracing.close(10)

    assert (3, 0, 0) == counts(tracing)
    assert {("shop", "a", "gw")} == {
        tuple(span.resource.attributes[name] for name in ("service.name", "zone", "service.instance.id"))
        for span in kept.spans
    }
    assert 1 == kept.shutdowns


def test_what_a_collector_does_not_take_is_dropped(make: Make) -> None:
    tracing, _ = make(SpanExportResult.FAILURE)

    tracing.add(batch(2))
    wait_for(lambda: counts(tracing) == (0, 0, 2), seconds=30, what="two are dropped")


def test_above_the_bound_spans_are_dropped_and_nobody_waits(make: Make) -> None:
    tracing, kept = make(OTEL_BSP_MAX_QUEUE_SIZE="4", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="2")
    kept.is_open.clear()

    tracing.add(batch(10))

    assert (0, 4, 6) == counts(tracing)
    kept.is_open.set()
    wait_for(lambda: counts(tracing) == (4, 0, 6), seconds=30, what="four are taken")


def test_a_collector_that_does_not_answer_is_not_waited_for_at_the_end(make: Make) -> None:
    tracing, kept = make(OTEL_BSP_MAX_QUEUE_SIZE="4", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    kept.is_open.clear()
    tracing.add(batch(3))

    with capture_logs() as logs:
        tracing.close(0.05)

    assert ["spans are not sent to their end"] == [one["event"] for one in logs]
    assert 0 == tracing.pending
    assert 3 == sum(counts(tracing))


def test_a_fault_of_the_program_is_told_once_and_ends_nothing(make: Make) -> None:
    tracing, _ = make()
    good = batch()
    bad = good._replace(taken=good.taken._replace(endings={}))

    with capture_logs() as logs:
        tracing.add(bad)
        tracing.add(bad)
    tracing.add(good)
    tracing.close(10)

    assert ["spans are not made"] == [one["event"] for one in logs]
    assert (2, (1, 0, 0)) == (tracing.failures, counts(tracing))


def test_what_the_environment_says_wrongly_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="max_export_batch_size"):
        make(OTEL_BSP_MAX_QUEUE_SIZE="4", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="8")
