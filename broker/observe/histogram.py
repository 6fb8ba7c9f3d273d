"""
Histograms as samples: counts by bucket and a sum, which add up like every other counter.

A sample of a histogram has one label more than its metric: the upper bound of a bucket, and its value is what fell into
that bucket alone; or `SUM`, and its value is the sum of all. So samples of several databases are added
name by name, and only the text has the buckets that Prometheus wants, each with all that is below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import HistogramMetricFamily

from broker.forwarding.hop import BOUNDS
from broker.observe.described import MetricDefinition
from broker.observe.label import Labels

SUM = "sum"
BUCKETS = (*(repr(bound) for bound in BOUNDS), "+Inf")


def histogram_samples(labels: Labels, counts: Mapping[int, float], total: float) -> Iterator[tuple[Labels, float]]:
    """
    The samples of one series.

    Args:
        labels: Of the metric.
        counts: By place in `BUCKETS`; those that are left out are 0.
        total: The sum of all.
    """
    for place, bucket in enumerate(BUCKETS):
        yield (*labels, bucket), counts.get(place, 0)
    yield (*labels, SUM), total


def histogram_family(metric: MetricDefinition, samples: Mapping[Labels, float]) -> HistogramMetricFamily:
    """What the library renders."""
    series: dict[Labels, dict[str, float]] = {}
    for (*of_series, part), value in samples.items():
        series.setdefault(tuple(of_series), {})[part] = value
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, parts in series.items():
        below = 0.0
        buckets = []
        for bucket in BUCKETS:
            below += parts.get(bucket, 0)
            buckets.append((bucket, below))
        family.add_metric(labels, buckets, parts.get(SUM, 0))
    return family
