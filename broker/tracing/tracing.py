"""
Spans leave for a collector by OTLP over HTTP, from a thread of their own that nobody waits for.

The writer of the journal makes them (`span.py`); the SDK's batch processor takes, gathers and sends them. What waits is
bounded by OTEL_BSP_MAX_QUEUE_SIZE: above it, as when a collector is dead, spans are dropped and counted, messages are
not. Where to send, with which headers, certificates and time-outs, is what the OTEL_* variables of the SDK say.

Source: OpenTelemetry specification, "Environment Variable Specification" and "OpenTelemetry Protocol Exporter".
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from threading import Thread

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from broker.journal.batch import RingBatch
from broker.tracing import semantic
from broker.tracing.span import Spans

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
            semantic.SERVICE_NAME: "broker",
            semantic.SERVICE_VERSION: version("broker"),
            semantic.SERVICE_INSTANCE: instance,
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
