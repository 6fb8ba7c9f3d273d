"""One span for each visit of a traced message, and how spans reach a collector."""

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
from broker.journal.rows import RingBatch
from broker.journal.spans import SpanRole, Tracing, span_id, spans_of, trace_id
from broker.journal.writer import NO_SPANS
from broker.protocol.layout import Flag, FrameKind
from examples.demo.topology import wait_for
from tests.support.records import Tape, frame, way

DIALOG, MESSAGE = b"c" * 16, bytes(range(16))
TRACE, LAST = int(Flag.TRACE), int(Flag.LAST_FRAGMENT)
ONE = TRACE | LAST  # a whole message
OFFSET = 1_000_000.0
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_ids_are_those_of_the_page() -> None:
    assert sha256(b"sbrk trace" + DIALOG + b"\1" + bytes(7) + b"\7").hexdigest()[:32] == (
        f"{trace_id(DIALOG, 7, is_from_target=True):032x}"
    )
    assert sha256(b"sbrk forward" + MESSAGE + b"\3").hexdigest()[:16] == f"{span_id(SpanRole.FORWARD, MESSAGE, 3):016x}"
    assert 6 == len({trace_id(DIALOG, one, is_from_target=way) for one in range(3) for way in (False, True)})


def spans(tape: Tape) -> list[ReadableSpan]:
    return list(spans_of(tape.batch(offset=OFFSET), Resource({}), InstrumentationScope("broker")))


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


def reported(disposition: Disposition | None, hop_count: int = 2) -> list[ReadableSpan]:
    """What a database here says of a frame."""
    tape = Tape()
    arrival = PassOrigin(999.0, "west", is_from_here=False, trace_parent=PARENT)
    tape.ring.report(frame(flags=ONE, hop_count=hop_count + 1), disposition, arrival, 1001.5)
    return spans(tape)


def outcome(span: ReadableSpan) -> object:
    assert span.attributes is not None
    return span.attributes["broker.outcome"]


def ids(span: ReadableSpan) -> tuple[int, int, int | None]:
    """Trace, span and parent."""
    assert span.context is not None
    assert span.parent is None or span.parent.trace_id == span.context.trace_id
    return span.context.trace_id, span.context.span_id, span.parent and span.parent.span_id


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def test_what_is_sent_begins_in_the_queue_and_is_linked_to_the_application() -> None:
    span = sent()

    assert ("send //to", SpanKind.PRODUCER) == (span.name, span.kind)
    assert ((OFFSET + 990) * 1e9, (OFFSET + 1000) * 1e9) == (span.start_time, span.end_time)
    assert [0x00F067AA0BA902B7] == links(span)
    assert (trace_id(DIALOG, 0, is_from_target=False), span_id(SpanRole.SEND, MESSAGE, 0), None) == ids(span)
    assert span.context is not None
    assert span.context.trace_flags.sampled
    assert ("sent", "resent") == (outcome(span), outcome(sent(is_resend=True)))


def test_what_is_forwarded_and_delivered_is_the_child_of_the_hop_before() -> None:
    (first,), (second,), (last,) = forwarded(0), forwarded(1), reported(Disposition.DELIVERED)

    assert [ids(sent())[1], ids(first)[1], ids(second)[1]] == [ids(one)[2] for one in (first, second, last)]
    assert 1 == len({ids(one)[0] for one in (first, second, last)})
    assert ("forward //to", SpanKind.INTERNAL, []) == (second.name, second.kind, links(second))
    assert ("deliver //to", SpanKind.CONSUMER, [0x00F067AA0BA902B7]) == (last.name, last.kind, links(last))
    assert ((OFFSET + 999) * 1e9, (OFFSET + 1001.5) * 1e9) == (last.start_time, last.end_time)
    assert StatusCode.UNSET is last.status.status_code


def test_a_span_has_what_the_frame_and_the_route_say_by_the_names_of_the_conventions() -> None:
    (span,) = forwarded(1)
    (dropped,) = reported(Disposition.NO_ROUTE)

    assert {
        "messaging.system": "sbrk",
        "messaging.operation.name": "forward",
        "messaging.destination.name": "//to",
        "messaging.message.id": MESSAGE.hex(),
        "messaging.message.conversation_id": str(uuid.UUID(bytes=DIALOG)),
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
    known = {value for value in (*vars(messaging).values(), error_attributes.ERROR_TYPE) if isinstance(value, str)}
    assert {one for one in (dropped.attributes or {}) if not one.startswith("broker.")} <= known
    operations = {one.value for one in messaging.MessagingOperationTypeValues}
    types = [(one.attributes or {})[messaging.MESSAGING_OPERATION_TYPE] for one in (sent(), dropped)]
    assert ["send", "receive"] == types
    assert set(types) <= operations


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (forwarded(1, Disposition.NO_ROUTE), "forward //to"),
        ([sent(disposition=Disposition.NO_ROUTE)], "send //to"),
        (reported(Disposition.NO_ROUTE), "deliver //to"),
    ],
)
def test_what_is_dropped_is_an_error(found: list[ReadableSpan], name: str) -> None:
    (span,) = found

    assert (name, "dropped", StatusCode.ERROR) == (span.name, outcome(span), span.status.status_code)
    assert span.attributes is not None
    assert Disposition.NO_ROUTE.value == span.status.description == span.attributes["error.type"]


def test_a_second_copy_is_a_duplicate_and_acknowledgements_have_no_span() -> None:
    (span,) = reported(Disposition.DUPLICATE)

    assert ("duplicate", StatusCode.UNSET) == (outcome(span), span.status.status_code)
    assert ([], []) == (reported(None), forwarded(1, Disposition.DELIVERED))


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


class Kept(SpanExporter):
    """An exporter that keeps what it gets; `is_open` lets it go on, `result` is its answer."""

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
        tape.enter(frame(flags=ONE, sequence_number=number), way())
    return tape.batch()


def counts(tracing: Tracing) -> tuple[int, int, int]:
    status = tracing.status()
    assert set(NO_SPANS) == set(status)
    return status["spans"], status["spans_pending"], status["spans_dropped"]


def test_spans_reach_the_collector_and_are_counted(make: Make) -> None:
    tracing, kept = make(OTEL_RESOURCE_ATTRIBUTES="service.name=shop,zone=a")

    tracing.add(batch(3))
    tracing.close(10)

    assert (3, 0, 0) == counts(tracing)
    names = (service_attributes.SERVICE_NAME, "zone", "service.instance.id")
    assert {("shop", "a", "gw")} == {tuple(span.resource.attributes[name] for name in names) for span in kept.spans}
    assert kept.spans[0].resource.attributes[service_attributes.SERVICE_VERSION]
    assert 1 == kept.shutdowns


def test_what_a_collector_does_not_take_is_dropped(make: Make) -> None:
    tracing, _ = make(SpanExportResult.FAILURE)

    tracing.add(batch(2))
    wait_for(lambda: counts(tracing) == (0, 0, 2), seconds=30, what="two are dropped")


def test_above_the_bound_spans_are_dropped_without_waiting(make: Make) -> None:
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


def test_a_fault_of_the_program_is_logged_once_and_ends_nothing(make: Make) -> None:
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
