"""Spans are counted on every way they can go, and nobody waits for a collector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Event

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from structlog.testing import capture_logs

from broker.journal.rows import NOBODY_FOLLOWS, RingBatch
from broker.journal.spans import Tracing
from broker.protocol.layout import Flag
from examples.demo.topology import wait_for
from tests.support.records import Tape, frame, way

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
    assert set(NOBODY_FOLLOWS) == set(status)
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
    bad = good._replace(taken=good.taken._replace(ways={}))

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
