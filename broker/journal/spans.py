"""
The ids of traces and spans, worked out from what every instance on the way can read.

A gateway cannot read a sealed body, so it does not know the application's trace. It knows which message it has: the
dialog, the direction and the sequence number. All spans of one message are in the trace that follows from these, on
every instance, sealed or not; where the application's own span is known, at the ends, they have a link to it.

    trace id            the first 16 bytes of SHA-256("sbrk trace" | conversation_id | from_target | sequence_number)
    span id             the first 8 bytes of SHA-256("sbrk " role | message_id | hop_count)

`from_target` is one byte, 0 or 1, `sequence_number` 8 bytes and `hop_count` 1, big-endian; role is `send`, `forward` or
`deliver`. A message_id is of one transmission, so what is sent again has other spans in the same trace.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from importlib.metadata import version
from threading import Thread

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from broker.flow import Disposition, VisitOutcome
from broker.forwarding.entry import ForwardingEntry, PassOrigin, Queued
from broker.forwarding.outbox import Outbox
from broker.forwarding.ring import HEAD, HEAD_BYTES, TAKEN_BACK, RingContents
from broker.journal.rows import RingBatch
from broker.protocol.frame import maybe_trace_parent
from broker.protocol.layout import HEADER, HEADER_BYTES, Flag, FrameKind


class SpanRole(StrEnum):
    """What an instance did with a frame."""

    SEND = "send"
    FORWARD = "forward"
    DELIVER = "deliver"


def trace_id(conversation_id: bytes, sequence_number: int, *, is_from_target: bool) -> int:
    """The trace of a message. Shape: `conversation_id` 16 bytes; a number of 128 bits."""
    told = b"sbrk trace" + conversation_id + bytes((is_from_target,)) + sequence_number.to_bytes(8, "big")
    return int.from_bytes(sha256(told).digest()[:16], "big")


def span_id(role: SpanRole, message_id: bytes, hop_count: int) -> int:
    """
    The span of a frame at one instance.

    Args:
        role: What the instance did.
        message_id: Of the transmission, 16 bytes.
        hop_count: Gateways behind the frame as it arrived; 0 for `send`.

    Returns:
        A number of 64 bits.
    """
    told = f"sbrk {role}".encode() + message_id + bytes((hop_count,))
    return int.from_bytes(sha256(told).digest()[:8], "big")


def parent_id(role: SpanRole, message_id: bytes, hop_count: int) -> int | None:
    """The span at the instance before: the gateway that the frame came from, or its sender; None for the sender's."""
    if role is SpanRole.SEND:
        return None
    return span_id(SpanRole.FORWARD, message_id, hop_count - 1) if hop_count else span_id(SpanRole.SEND, message_id, 0)


# --- semantic ---
# What attributes of spans are called: the names of OpenTelemetry where it has one, ours below `broker.`.
#
# Source: OpenTelemetry semantic conventions 1.37, "Messaging spans" and "Messaging attributes".


SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
CONVERSATION_ID = "messaging.message.conversation_id"
ENVELOPE_SIZE = "messaging.message.envelope.size"  # bytes of the whole frame
ERROR_TYPE = "error.type"  # of what was dropped: its disposition

SERVICE_NAME = "service.name"  # of the resource
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE = "service.instance.id"

FROM_SERVICE = "broker.from_service"
FROM_TARGET = "broker.from_target"
SEQUENCE_NUMBER = "broker.message_sequence_number"
FRAGMENT_NUMBER = "broker.fragment_number"
HOP_COUNT = "broker.hop_count"
OUTCOME = "broker.outcome"  # as in the journal
ROUTE = "broker.route"
ADJACENT_IN = "broker.adjacent_in"
ADJACENT_OUT = "broker.adjacent_out"

SYSTEM_NAME = "sbrk"
TYPES = {"send": "send", "deliver": "receive"}  # the conventions have none for `forward`


# --- span ---
# From the ring's records to spans: one for each visit of a message with the TRACE flag.
#
# Of a message in several fragments the first and the last have spans. Acknowledgements and faults have none, nor has
# an
# arrival that a database here tells of itself. Rules, from ending to span, are those of the journal's rows:
#
# - no way: a database here tells. Acknowledged: none; else `deliver`.
# - a way, of a frame from here: `send`.
# - a way into a database here, of a frame from elsewhere: none; the database tells later.
# - any other way, of a frame from elsewhere: `forward`.


_KINDS = {SpanRole.SEND: SpanKind.PRODUCER, SpanRole.FORWARD: SpanKind.INTERNAL, SpanRole.DELIVER: SpanKind.CONSUMER}
_ENDS_WELL = {
    Disposition.FORWARDED: VisitOutcome.FORWARDED,
    Disposition.DELIVERED: VisitOutcome.DELIVERED,
    Disposition.DUPLICATE: VisitOutcome.DUPLICATE,
}
_TRACE, _LAST, _FROM_TARGET = int(Flag.TRACE), int(Flag.LAST_FRAGMENT), int(Flag.FROM_TARGET)
_MESSAGE = int(FrameKind.MESSAGE)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Visit:
    """A record of the ring that has a span. Shape: `left` monotonic seconds; `frame_bytes` the whole frame."""

    role: SpanRole
    arrival: PassOrigin
    left: float
    way: ForwardingEntry | None
    disposition: Disposition | None
    frame_bytes: int
    is_from_target: bool
    hop_count: int
    message_id: bytes
    conversation_id: bytes
    sequence_number: int
    fragment_number: int
    to_service: str
    from_service: str

    @property
    def queued(self) -> Queued | None:
        """What a database here told of a frame of its own."""
        return self.arrival.queued.get(self.message_id)


class Spans:
    """Makes spans for one instance. Shape: `resource` and `scope` are those of all of them."""

    def __init__(self, resource: Resource, scope: InstrumentationScope) -> None:
        self._resource = resource
        self._scope = scope

    def of(self, batch: RingBatch) -> Iterator[ReadableSpan]:
        """The spans of a batch. Cost: below a microsecond for a record that is not traced."""
        for visit in _visits(batch.taken):
            yield self._span(visit, batch.offset)

    def _span(self, visit: _Visit, offset: float) -> ReadableSpan:
        trace = trace_id(visit.conversation_id, visit.sequence_number, is_from_target=visit.is_from_target)
        frame = (visit.role, visit.message_id, visit.hop_count)
        parent = parent_id(*frame)
        end = int((visit.left + offset) * _NANOSECONDS)
        queued = visit.queued
        start = visit.arrival.entered + offset if queued is None else queued.enqueued_at
        return ReadableSpan(
            name=f"{visit.role} {visit.to_service}",
            context=_context(trace, span_id(*frame), is_remote=False),
            parent=None if parent is None else _context(trace, parent, is_remote=True),
            resource=self._resource,
            attributes=_attributes(visit),
            links=_links(visit.arrival.trace_parent if queued is None else queued.trace_parent),
            kind=_KINDS[visit.role],
            status=_status(visit),
            start_time=min(end, int(start * _NANOSECONDS)),
            end_time=end,
            instrumentation_scope=self._scope,
        )


def _visits(taken: RingContents) -> Iterator[_Visit]:
    """The records that have a span, in their order."""
    data, at = taken.data, 0
    while at < len(data):
        size, number, arrival_number, left = HEAD.unpack_from(data, at)
        start, at = at + HEAD_BYTES, at + size
        if number == TAKEN_BACK or not data[start + 5] & _TRACE or data[start + 4] != _MESSAGE:
            continue
        fields = HEADER.unpack_from(data, start)
        length, _, flags, hop_count, _, _, _, message_id, conversation_id, sequence, fragment, *_, to_length = fields
        way, disposition = taken.endings[number]
        arrival = taken.arrivals[arrival_number]
        role = _role(way, disposition, arrival)
        if role is None or (fragment and not flags & _LAST):
            continue
        names = start + HEADER_BYTES
        yield _Visit(
            role,
            arrival,
            left,
            way,
            disposition,
            frame_bytes=length,
            is_from_target=bool(flags & _FROM_TARGET),
            hop_count=hop_count,
            message_id=message_id,
            conversation_id=conversation_id,
            sequence_number=sequence,
            fragment_number=fragment,
            to_service=str(data[names : names + to_length], "utf-8", "replace"),
            from_service=str(data[names + to_length : at], "utf-8", "replace"),
        )


def _role(way: ForwardingEntry | None, disposition: Disposition | None, arrival: PassOrigin) -> SpanRole | None:
    if way is None:
        return None if disposition is None else SpanRole.DELIVER
    if arrival.is_from_here:
        return SpanRole.SEND
    return None if disposition is Disposition.DELIVERED else SpanRole.FORWARD


def _outcome(visit: _Visit) -> VisitOutcome:
    ends = None if visit.disposition is None else _ENDS_WELL.get(visit.disposition)
    if ends is not None and visit.role is SpanRole.SEND:
        return VisitOutcome.RESENT if visit.queued is not None and visit.queued.is_resend else VisitOutcome.SENT
    return ends or VisitOutcome.DROPPED


def _status(visit: _Visit) -> Status:
    if _outcome(visit) is not VisitOutcome.DROPPED or visit.disposition is None:
        return Status(StatusCode.UNSET)
    return Status(StatusCode.ERROR, visit.disposition.value)


def _attributes(visit: _Visit) -> dict[str, AttributeValue]:
    told: dict[str, AttributeValue] = {
        SYSTEM: SYSTEM_NAME,
        OPERATION_NAME: visit.role.value,
        DESTINATION: visit.to_service,
        MESSAGE_ID: visit.message_id.hex(),
        CONVERSATION_ID: str(uuid.UUID(bytes=visit.conversation_id)),
        ENVELOPE_SIZE: visit.frame_bytes,
        FROM_SERVICE: visit.from_service,
        FROM_TARGET: visit.is_from_target,
        SEQUENCE_NUMBER: visit.sequence_number,
        FRAGMENT_NUMBER: visit.fragment_number,
        HOP_COUNT: visit.hop_count,
        OUTCOME: _outcome(visit).value,
    }
    if visit.role in TYPES:
        told[OPERATION_TYPE] = TYPES[visit.role]
    if visit.arrival.adjacent_in:
        told[ADJACENT_IN] = visit.arrival.adjacent_in
    if visit.way is not None and visit.way.route:
        told[ROUTE] = visit.way.route
    if visit.way is not None and isinstance(visit.way.sink, Outbox):
        told[ADJACENT_OUT] = str(visit.way.sink.address)
    if _outcome(visit) is VisitOutcome.DROPPED and visit.disposition is not None:
        told[ERROR_TYPE] = visit.disposition.value
    return told


def _links(trace_parent: str) -> tuple[Link, ...]:
    """To the application's own span, where that is known."""
    parent = maybe_trace_parent(trace_parent)
    if parent is None:
        return ()
    trace, span = (int.from_bytes(one, "big") for one in (parent.trace_id, parent.span_id))
    return (Link(_context(trace, span, is_remote=True)),)


def _context(trace: int, span: int, *, is_remote: bool) -> SpanContext:
    return SpanContext(trace, span, is_remote=is_remote, trace_flags=_SAMPLED)


# --- tracing ---
# Spans leave for a collector by OTLP over HTTP, from a thread of their own that nobody waits for.
#
# The writer of the journal makes them (`span.py`); the SDK's batch processor takes, gathers and sends them. What
# waits is
# bounded by OTEL_BSP_MAX_QUEUE_SIZE: above it, as when a collector is dead, spans are dropped and counted, messages
# are
# not. Where to send, with which headers, certificates and time-outs, is what the OTEL_* variables of the SDK say.
#
# Source: OpenTelemetry specification, "Environment Variable Specification" and "OpenTelemetry Protocol Exporter".


QUEUE_MAX = 2048  # spans, the default of the specification

log = structlog.get_logger(__name__)


class _Counted(SpanExporter):
    """
    An exporter whose spans are counted; its thread is that of the batch processor.

    Shape: `exported` that the collector has taken, `failed` that it has not.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self.exported = self.failed = 0
        self._exporter = exporter
        self._is_open = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            if self._is_open:
                result = self._exporter.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self.exported += len(spans)
            else:
                self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        """Nothing is sent any more, and nothing is tried again. Twice does nothing."""
        if self._is_open:
            self._is_open = False
            self._exporter.shutdown()


class Tracing:
    """
    The spans of one process. `add` belongs to the writer of the journal, `status` and `close` to the loop.

    Shape: `offered` spans to the batch processor, `refused` for which there was no room; `failures` of the program.
    """

    def __init__(self, instance: str, *, exporter: SpanExporter | None = None) -> None:
        """
        Begin to send.

        Args:
            instance: Its name.
            exporter: None for OTLP over HTTP.

        Raises:
            ValueError: a variable of the environment has a value that the SDK refuses.
        """
        self.offered = self.refused = self.failures = 0
        told = {
            SERVICE_NAME: "broker",
            SERVICE_VERSION: version("broker"),
            SERVICE_INSTANCE: instance,
        }
        resource = Resource(told).merge(OTELResourceDetector().detect())  # what the environment says counts
        self._spans = Spans(resource, InstrumentationScope("broker", version("broker")))
        self._most = int(os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE) or QUEUE_MAX)
        self._exporter = _Counted(exporter or OTLPSpanExporter())
        self._processor = BatchSpanProcessor(self._exporter, max_queue_size=self._most)

    @property
    def pending(self) -> int:
        """Spans that wait, or are on their way to the collector."""
        return max(0, self.offered - self._exporter.exported - self._exporter.failed)

    def add(self, batch: RingBatch) -> None:
        """Make the spans of a batch, in whatever thread; nothing is waited for, and nothing fails."""
        try:
            for span in self._spans.of(batch):
                if self.pending < self._most:
                    self.offered += 1
                    self._processor.on_end(span)
                else:
                    self.refused += 1
        except Exception:
            self.failures += 1
            if self.failures == 1:
                log.exception("spans are not made")

    def status(self) -> Mapping[str, int]:
        """Spans that a collector has taken, that wait, and that none will take."""
        return {
            "spans": self._exporter.exported,
            "spans_pending": self.pending,
            "spans_dropped": self.refused + self._exporter.failed,
        }

    def close(self, seconds: float) -> None:
        """Send what waits, in this time; blocking. What a collector does not take in it is dropped."""
        ending = Thread(target=self._processor.shutdown, name="tracing-end", daemon=True)
        ending.start()
        ending.join(seconds)
        if ending.is_alive():
            log.warning("spans are not sent to their end", spans=self.pending, waited_s=seconds)
            self._exporter.shutdown()  # ends the attempts of the exporter, so that of its thread
            ending.join(1.0)
