"""
A bound on how many values a label of a metric may take.

Peers choose their names and operators write routes by the thousand, and every value of a label is a series that the
scraper keeps for weeks. The first `VALUES_MAX` values of a label are told, every later one is told as "other"; which
are the first is remembered, so that a counter never moves from one series to another.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from prometheus_client.core import HistogramMetricFamily

from broker.forwarding.latency import BOUNDS
from broker.observe.instance import Running

VALUES_MAX = 500
OTHER = "other"

Labels = tuple[str, ...]
Fold = Callable[[float, float], float]


class LabelCap:
    """Remembers the values told so far; changed by one thread. Shape: `overflows` how often one was told as "other"."""

    def __init__(self, values_max: int = VALUES_MAX) -> None:
        self.overflows = 0
        self._values_max = values_max
        self._told: dict[tuple[str, int], set[str]] = {}

    def fold(self, metric: str, samples: Iterable[tuple[Labels, float]], fold: Fold) -> dict[Labels, float]:
        """
        The samples of a metric with labels within the bound.

        Args:
            metric: Its name.
            samples: Labels and value; labels may repeat.
            fold: What becomes of two values with the same labels: their sum, or the lesser.
        """
        folded: dict[Labels, float] = {}
        for labels, value in samples:
            capped = self.cap(metric, labels)
            folded[capped] = fold(folded[capped], value) if capped in folded else value
        return folded

    def cap(self, metric: str, labels: Labels) -> Labels:
        """Labels within the bound."""
        return tuple([self._cap(metric, position, label) for position, label in enumerate(labels)])

    def _cap(self, metric: str, position: int, label: str) -> str:
        told = self._told.setdefault((metric, position), set())
        if label in told:
            return label
        if len(told) < self._values_max:
            told.add(label)
            return label
        self.overflows += 1
        return OTHER


# --- described ---
# What the contract says of one metric, and the form in which its values are read.


Samples: TypeAlias = Iterable[tuple[Labels, float]]
Reader: TypeAlias = Callable[[Running], Samples]


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """
    One metric of the contract.

    Shape: `name` as scraped; a counter's ends in `_total`; `fold` joins samples whose labels became equal;
    `is_histogram` when its samples have one label more, as `broker.observe.samples` says.
    """

    name: str
    help: str
    labels: Labels = ()
    fold: Fold = operator.add
    is_histogram: bool = False

    @property
    def is_counter(self) -> bool:
        """Whether it only grows while the instance runs."""
        return self.is_histogram or self.name.endswith("_total")

    @property
    def kind(self) -> str:
        """The type under which it is scraped."""
        return "histogram" if self.is_histogram else "counter" if self.is_counter else "gauge"

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names under which its values are scraped."""
        return tuple(self.name + part for part in ("_bucket", "_sum", "_count")) if self.is_histogram else (self.name,)


def single(value: Callable[[Running], float]) -> Reader:
    """The reader of a metric without labels."""
    return lambda instance: [((), value(instance))]


# --- histogram ---
# Histograms as samples: counts by bucket and a sum, which add up like every other counter.
#
# A sample of a histogram has one label more than its metric: the upper bound of a bucket, and its value is what fell
# into
# that bucket alone; or `SUM`, and its value is the sum of all. So samples of several databases are added
# name by name, and only the text has the buckets that Prometheus wants, each with all that is below it.


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
