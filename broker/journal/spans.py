"""
Spans of OpenTelemetry, made from the records of the journal and sent by OTLP over HTTP.

A gateway cannot read a sealed body, so it does not know the application's trace. It knows the dialog, the direction and
the sequence number of a message. The trace id is computed from these, so all spans of a message are in one trace on
every instance, sealed or not. At the ends, where the application's span is known, they have a link to it.

    trace id            the first 16 bytes of SHA-256("sbrk trace" | conversation_id | from_target | sequence_number)
    span id             the first 8 bytes of SHA-256("sbrk " role | message_id | hop_count)

`from_target` is one byte, 0 or 1, `sequence_number` 8 bytes and `hop_count` 1, big-endian; role is `send`, `forward` or
`deliver`. A message_id is of one transmission, so a resend has other spans in the same trace.

Every visit of a message with the TRACE flag has a span; of a message in several fragments the first and the last have
one. Acknowledgements and faults have none. The outcome of a visit is that of its row in the journal. Its role:

- acknowledged: none.
- of a frame that a database here reports on: `deliver`.
- of another frame from here: `send`.
- of another frame from elsewhere: `forward`, or none if it is for a database here, which reports on it later.

The writer thread of the journal makes the spans; the batch processor of the SDK collects and sends them. Pending spans
are bounded by OTEL_BSP_MAX_QUEUE_SIZE: above it, for example when the collector is down, spans are dropped and counted.
The OTEL_* variables of the SDK configure the address, headers, certificates and time-outs.

Source: OpenTelemetry semantic conventions 1.37, "Messaging spans" and "Messaging attributes"; OpenTelemetry
specification, "Environment Variable Specification" and "OpenTelemetry Protocol Exporter".
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
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

from broker.flow import VisitOutcome
from broker.forwarding.outbox import Outbox
from broker.forwarding.ring import HEAD, HEAD_BYTES, TAKEN_BACK
from broker.journal.rows import RingBatch, outcomes
from broker.protocol.envelope import maybe_trace_parent
from broker.protocol.layout import HEADER, HEADER_BYTES, Flag, FrameKind


class SpanRole(StrEnum):
    """The part of an instance in the transport of a frame."""

    SEND = "send"
    FORWARD = "forward"
    DELIVER = "deliver"


def trace_id(conversation_id: bytes, sequence_number: int, *, is_from_target: bool) -> int:
    """Return the trace id of a message, 128 bits; `conversation_id` has 16 bytes."""
    text = b"sbrk trace" + conversation_id + bytes((is_from_target,)) + sequence_number.to_bytes(8, "big")
    return int.from_bytes(sha256(text).digest()[:16], "big")


def span_id(role: SpanRole, message_id: bytes, hop_count: int) -> int:
    """
    Return the span id of a frame at one instance.

    Args:
        role: The part of the instance.
        message_id: The id of the transmission, 16 bytes.
        hop_count: The gateways that the frame had passed when it arrived; 0 for `send`.

    Returns:
        A number of 64 bits.
    """
    text = f"sbrk {role}".encode() + message_id + bytes((hop_count,))
    return int.from_bytes(sha256(text).digest()[:8], "big")


def parent_id(role: SpanRole, message_id: bytes, hop_count: int) -> int | None:
    """Return the span id at the instance before, a gateway or the sender; None for the span of the sender."""
    if role is SpanRole.SEND:
        return None
    return span_id(SpanRole.FORWARD, message_id, hop_count - 1) if hop_count else span_id(SpanRole.SEND, message_id, 0)


# --- from records to spans ---

_TYPES = {SpanRole.SEND: "send", SpanRole.DELIVER: "receive"}  # the conventions have none for `forward`
_KINDS = {SpanRole.SEND: SpanKind.PRODUCER, SpanRole.FORWARD: SpanKind.INTERNAL, SpanRole.DELIVER: SpanKind.CONSUMER}
_TRACE, _LAST, _FROM_TARGET = int(Flag.TRACE), int(Flag.LAST_FRAGMENT), int(Flag.FROM_TARGET)
_MESSAGE = int(FrameKind.MESSAGE)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NANOSECONDS = 1_000_000_000


def spans_of(batch: RingBatch, resource: Resource, scope: InstrumentationScope) -> Iterator[ReadableSpan]:
    """
    Yield the spans of a batch, in the order of its records. Cost: below a microsecond for one that is not traced.

    The attributes are what is known of a visit, by the names of OpenTelemetry, and below `broker.` by our own.
    """
    data, at = batch.taken.data, 0
    while at < len(data):
        size, number, arrival_number, left = HEAD.unpack_from(data, at)
        start, at = at + HEAD_BYTES, at + size
        if number == TAKEN_BACK or not data[start + 5] & _TRACE or data[start + 4] != _MESSAGE:
            continue
        fields = HEADER.unpack_from(data, start)
        length, _, flags, hop_count, _, _, _, message_id, conversation_id, sequence, fragment, *_, to_length = fields
        (way, disposition), arrival = batch.taken.endings[number], batch.taken.arrivals[arrival_number]
        here, elsewhere = outcomes(way, disposition)
        outcome = here if arrival.is_from_here else elsewhere
        if outcome is None or outcome is VisitOutcome.ACKNOWLEDGED or (fragment and not flags & _LAST):
            continue
        role = SpanRole.DELIVER if way is None else SpanRole.SEND if arrival.is_from_here else SpanRole.FORWARD
        queued = arrival.queued.get(message_id)  # of a frame that a database here sent
        if outcome is VisitOutcome.SENT and queued is not None and queued.is_resend:
            outcome = VisitOutcome.RESENT
        reason = disposition.value if disposition is not None and outcome is VisitOutcome.DROPPED else None
        names = start + HEADER_BYTES
        to_service, from_service = (
            str(name, "utf-8", "replace") for name in (data[names : names + to_length], data[names + to_length : at])
        )
        is_from_target = bool(flags & _FROM_TARGET)
        attributes: dict[str, AttributeValue | None] = {
            "messaging.system": "sbrk",
            "messaging.operation.name": role.value,
            "messaging.operation.type": _TYPES.get(role),
            "messaging.destination.name": to_service,
            "messaging.message.id": message_id.hex(),
            "messaging.message.conversation_id": str(uuid.UUID(bytes=conversation_id)),
            "messaging.message.envelope.size": length,  # of the whole frame
            "broker.from_service": from_service,
            "broker.from_target": is_from_target,
            "broker.message_sequence_number": sequence,
            "broker.fragment_number": fragment,
            "broker.hop_count": hop_count,
            "broker.outcome": outcome.value,  # as in the journal
            "broker.adjacent_in": arrival.adjacent_in or None,
            "broker.route": (way and way.route) or None,
            "broker.adjacent_out": str(way.sink.address) if way and isinstance(way.sink, Outbox) else None,
            "error.type": reason,  # the disposition of a dropped frame
        }
        trace = trace_id(conversation_id, sequence, is_from_target=is_from_target)
        parent = parent_id(role, message_id, hop_count)
        end = int((left + batch.offset) * _NANOSECONDS)
        began = arrival.entered + batch.offset if queued is None else queued.enqueued_at
        yield ReadableSpan(
            name=f"{role} {to_service}",
            context=_context(trace, span_id(role, message_id, hop_count), is_remote=False),
            parent=None if parent is None else _context(trace, parent, is_remote=True),
            resource=resource,
            attributes={name: value for name, value in attributes.items() if value is not None},
            links=_links(arrival.trace_parent if queued is None else queued.trace_parent),
            kind=_KINDS[role],
            status=Status(StatusCode.ERROR if reason else StatusCode.UNSET, reason),
            start_time=min(end, int(began * _NANOSECONDS)),
            end_time=end,
            instrumentation_scope=scope,
        )


def _links(trace_parent: str) -> tuple[Link, ...]:
    """Return a link to the span of the application, if it is known."""
    parent = maybe_trace_parent(trace_parent)
    if parent is None:
        return ()
    trace, span = (int.from_bytes(one, "big") for one in (parent.trace_id, parent.span_id))
    return (Link(_context(trace, span, is_remote=True)),)


def _context(trace: int, span: int, *, is_remote: bool) -> SpanContext:
    return SpanContext(trace, span, is_remote=is_remote, trace_flags=_SAMPLED)


# --- from spans to the collector ---

QUEUE_MAX = 2048  # spans, the default of the specification

log = structlog.get_logger(__name__)


class _Counted(SpanExporter):
    """An exporter that counts spans, `exported` and `failed`. It runs in the thread of the batch processor."""

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
        """Stop sending and retrying. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._exporter.shutdown()


class Tracing:
    """
    The spans of one process. The writer thread of the journal calls `add`, the loop `status` and `close`.

    `offered` counts spans given to the batch processor, `refused` those above the bound, `failures` exceptions.
    """

    def __init__(self, instance: str, *, exporter: SpanExporter | None = None) -> None:
        """
        Start to send.

        Args:
            instance: The name of the instance.
            exporter: None for OTLP over HTTP.

        Raises:
            ValueError: a variable of the environment has a value that the SDK refuses.
        """
        self.offered = self.refused = self.failures = 0
        attributes = {
            "service.name": "broker",
            "service.version": version("service-broker"),
            "service.instance.id": instance,
        }
        resource = Resource(attributes).merge(OTELResourceDetector().detect())  # the environment has precedence
        self._spans = partial(
            spans_of, resource=resource, scope=InstrumentationScope("broker", version("service-broker"))
        )
        self._most = int(os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE) or QUEUE_MAX)
        self._exporter = _Counted(exporter or OTLPSpanExporter())
        self._processor = BatchSpanProcessor(self._exporter, max_queue_size=self._most)

    @property
    def pending(self) -> int:
        """Spans that wait or are being sent."""
        return max(0, self.offered - self._exporter.exported - self._exporter.failed)

    def add(self, batch: RingBatch) -> None:
        """Make the spans of a batch, in any thread. Never waits and never raises."""
        try:
            for span in self._spans(batch):
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
        """Return the counts of spans sent, pending and dropped, for a status."""
        return {
            "spans": self._exporter.exported,
            "spans_pending": self.pending,
            "spans_dropped": self.refused + self._exporter.failed,
        }

    def close(self, seconds: float) -> None:
        """Send the pending spans within this time, and drop the rest. Blocking."""
        ending = Thread(target=self._processor.shutdown, name="tracing-end", daemon=True)
        ending.start()
        ending.join(seconds)
        if ending.is_alive():
            log.warning("spans are not sent to their end", spans=self.pending, waited_s=seconds)
            self._exporter.shutdown()  # stops the retries of the exporter, and with them its thread
            ending.join(1.0)
