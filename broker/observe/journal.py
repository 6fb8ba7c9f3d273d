"""The metrics of the journal and of the spans made of it; all 0 where none is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from broker.observe.described import MetricDefinition
from broker.observe.instance import Running
from broker.observe.label import Labels

_FIELDS = {  # of `Journal.status`, by metric
    "broker_journal_records_total": "records",
    "broker_journal_pending_records": "pending",
    "broker_journal_shed_total": "shed",
    "broker_journal_files_total": "files",
    "broker_journal_bytes_total": "bytes",
    "broker_journal_errors_total": "errors",
    "broker_journal_removed_files_total": "removed_files",
    "broker_tracing_spans_total": "spans",
    "broker_tracing_pending_spans": "spans_pending",
    "broker_tracing_dropped_spans_total": "spans_dropped",
}

JOURNAL_METRICS = (
    MetricDefinition(
        "broker_journal_records_total", "Visits of messages in the files of the journal that have appeared."
    ),
    MetricDefinition(
        "broker_journal_pending_records", "Visits that are recorded and in no file that has appeared yet."
    ),
    MetricDefinition(
        "broker_journal_shed_total",
        "Visits that were to be recorded and are lost: there was no room, or they could not be written.",
    ),
    MetricDefinition("broker_journal_files_total", "Files of the journal that have appeared."),
    MetricDefinition("broker_journal_bytes_total", "Size of the files of the journal that have appeared."),
    MetricDefinition("broker_journal_errors_total", "How often a file of the journal could not be written or removed."),
    MetricDefinition(
        "broker_journal_removed_files_total", "Files of the journal removed for their age or their total size."
    ),
    MetricDefinition("broker_tracing_spans_total", "Spans of traced messages that a collector has taken."),
    MetricDefinition("broker_tracing_pending_spans", "Spans that wait for a collector to take them."),
    MetricDefinition(
        "broker_tracing_dropped_spans_total",
        "Spans that no collector will have: it did not take them, or too many waited for it.",
    ),
)


def journal_readers() -> Mapping[str, Callable[[Running], Iterable[tuple[Labels, float]]]]:
    """What reads each of them on the loop."""
    return {metric: _reader(field) for metric, field in _FIELDS.items()}


def _reader(field: str) -> Callable[[Running], Iterable[tuple[Labels, float]]]:
    def read(instance: Running) -> Iterable[tuple[Labels, float]]:
        return [((), 0 if instance.journal is None else instance.journal.status()[field])]

    return read
