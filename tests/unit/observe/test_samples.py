"""The kind of a metric is known by its name, but for a histogram."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from prometheus_client.core import Sample

from broker.forwarding.latency import BOUNDS
from broker.observe.samples import (
    BUCKETS,
    OTHER,
    SUM,
    VALUES_MAX,
    Fold,
    LabelCap,
    MetricDefinition,
    histogram_family,
    histogram_samples,
    single,
)

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


# --- test_histogram ---
# Buckets are told one by one, added up like counters, and rendered with all that is below each.


METRIC = MetricDefinition("a_seconds", "help", ("peer",), is_histogram=True)


def test_every_bucket_is_told_though_it_is_empty() -> None:
    samples = dict(histogram_samples(("near",), {0: 2, len(BOUNDS): 1}, 7.5))

    assert list(samples) == [("near", bucket) for bucket in (*BUCKETS, SUM)]
    assert {labels[1]: value for labels, value in samples.items() if value} == {BUCKETS[0]: 2, "+Inf": 1, SUM: 7.5}


def test_text_has_what_is_below_each_bound() -> None:
    samples = dict(histogram_samples(("near",), {0: 2, 1: 3, len(BOUNDS): 1}, 7.5))

    rendered = histogram_family(METRIC, samples).samples

    assert rendered[:3] == [
        Sample("a_seconds_bucket", {"peer": "near", "le": BUCKETS[0]}, 2),
        Sample("a_seconds_bucket", {"peer": "near", "le": BUCKETS[1]}, 5),
        Sample("a_seconds_bucket", {"peer": "near", "le": BUCKETS[2]}, 5),
    ]
    assert rendered[-3:] == [
        Sample("a_seconds_bucket", {"peer": "near", "le": "+Inf"}, 6),
        Sample("a_seconds_count", {"peer": "near"}, 6),
        Sample("a_seconds_sum", {"peer": "near"}, 7.5),
    ]


def test_samples_of_two_add_up() -> None:
    """As those of peers past the bound on labels do."""
    parts = [*histogram_samples(("a",), {0: 1}, 0.5), *histogram_samples(("b",), {0: 2, 3: 1}, 1.5)]

    folded = LabelCap(values_max=0).fold("other", parts, operator.add)
    kept = LabelCap().fold("a_seconds", [*parts, *parts], operator.add)

    assert set(folded.values()) == {sum(value for _, value in parts)}
    assert (kept["a", BUCKETS[0]], kept["b", BUCKETS[0]], kept["b", SUM]) == (2, 4, 3.0)


def test_metric_without_samples_has_none() -> None:
    assert histogram_family(METRIC, {}).samples == []


def test_values_within_the_bound_are_told() -> None:
    folded = LabelCap(2).fold("m", [(("a",), 1), (("b",), 2)], operator.add)

    assert folded == {("a",): 1, ("b",): 2}


def test_samples_with_equal_labels_are_one() -> None:
    folded = LabelCap(2).fold("m", [(("a",), 1), (("a",), 2)], operator.add)

    assert folded == {("a",): 3}


@pytest.mark.parametrize(("fold", "expected"), [(operator.add, 7), (min, 3), (max, 4)])
def test_values_past_the_bound_are_one(fold: Fold, expected: float) -> None:
    cap = LabelCap(1)

    folded = cap.fold("m", [(("a",), 1), (("b",), 3), (("c",), 4)], fold)

    assert folded == {("a",): 1, (OTHER,): expected}
    assert cap.overflows == 2


def test_first_values_stay_the_first() -> None:
    """A counter never moves from its series to another, whatever order it comes in."""
    cap = LabelCap(1)
    cap.fold("m", [(("a",), 1)], operator.add)

    folded = cap.fold("m", [(("b",), 3), (("a",), 2)], operator.add)

    assert folded == {(OTHER,): 3, ("a",): 2}


def test_every_label_of_every_metric_has_a_bound_of_its_own() -> None:
    cap = LabelCap(1)

    cap.fold("m", [(("a", "b"), 1)], operator.add)
    folded = cap.fold("n", [(("c", "d"), 1)], operator.add)

    assert folded == {("c", "d"): 1}


def test_labels_without_values_are_let_through() -> None:
    assert LabelCap().fold("m", [((), 1)], operator.add) == {(): 1}


def test_bound_is_what_the_page_says() -> None:
    assert VALUES_MAX == 500
