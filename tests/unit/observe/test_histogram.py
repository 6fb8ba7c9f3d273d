"""Buckets are told one by one, added up like counters, and rendered with all that is below each."""

from __future__ import annotations

import operator

from prometheus_client.core import Sample

from broker.forwarding.latency import BOUNDS
from broker.observe.samples import BUCKETS, SUM, LabelCap, MetricDefinition, histogram_family, histogram_samples

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
