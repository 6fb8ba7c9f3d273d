"""The kind of a metric is known by its name, but for a histogram."""

from __future__ import annotations

from typing import Any

import pytest

from broker.observe.samples import MetricDefinition, single

PARTS = ("_bucket", "_sum", "_count")


@pytest.mark.parametrize(
    ("metric", "kind", "only_grows", "scraped"),
    [
        (MetricDefinition("a_total", "help"), "counter", True, ("a_total",)),
        (MetricDefinition("a_bytes", "help"), "gauge", False, ("a_bytes",)),
        (
            MetricDefinition("a_seconds", "help", is_histogram=True),
            "histogram",
            True,
            tuple("a_seconds" + one for one in PARTS),
        ),
    ],
)
def test_kind(metric: MetricDefinition, kind: str, only_grows: bool, scraped: tuple[str, ...]) -> None:  # noqa: FBT001 - a case
    assert (metric.kind, metric.is_counter, metric.sample_names) == (kind, only_grows, scraped)


def test_metric_without_labels_has_one_sample() -> None:
    instance: Any = "instance"

    assert list(single(lambda _: 8.0)(instance)) == [((), 8)]
