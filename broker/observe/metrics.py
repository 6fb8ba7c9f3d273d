"""
Metrics for Prometheus: read when scraped, from plain integers that other objects count on.

Nothing is counted here and nothing is kept between two scrapes but the label values told so far. `read_metrics` copies
what belongs to the loop; `Exposition.render`, in a thread, adds what is in files and tables, and writes the text. The
table `METRICS` is the contract together with docs/metrics.md; a name or a label in it never changes its meaning. What
each theme has is in a module of its own: its rows of the table, and what reads them.

Source: Prometheus documentation, "Writing exporters", "Exposition formats"; OpenMetrics 1.0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from broker.net.dial_history import DialHistory
from broker.net.peers import Peers
from broker.observe.described import MetricDefinition, Reader
from broker.observe.histogram import histogram_family
from broker.observe.instance import Running
from broker.observe.journal import JOURNAL_METRICS, journal_readers
from broker.observe.label import LabelCap, Labels
from broker.observe.mirror import MIRROR_METRICS, mirror_readers
from broker.observe.process import PROCESS_METRICS, process_samples
from broker.observe.route_up import METRIC as ROUTE_UP
from broker.observe.route_up import RouteUp
from broker.observe.run import RUN_METRICS, run_readers
from broker.observe.side import SIDE_METRICS, Sides
from broker.observe.stored import STORED_METRICS, stored_readers, stored_samples
from broker.observe.traffic import FORWARDED, TRAFFIC_METRICS, traffic_readers
from broker.observe.transport import TRANSPORT_METRICS, transport_readers
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from broker.routing.table import RouteTable

OVERFLOW = "broker_metrics_label_overflow_total"
TURN_SECONDS = 0.002  # of the loop for a scrape, and then others have their turn
PART_SAMPLES = 500  # between two looks at the clock, half a millisecond
# Metrics with a sample for each route that carries: their readers note what they need at their first step.
_IN_PARTS = frozenset({FORWARDED})

METRICS = (
    *RUN_METRICS,
    *TRAFFIC_METRICS,
    MetricDefinition(
        ROUTE_UP,
        "0 when the address of a live route did not answer or was lost, and nothing has reached it since; else 1. "
        "Of a table the first 10,000 routes are looked at.",
        ("route", "address"),
    ),
    *MIRROR_METRICS,
    *STORED_METRICS,
    *SIDE_METRICS,
    *JOURNAL_METRICS,
    *TRANSPORT_METRICS,
    *PROCESS_METRICS,
    MetricDefinition(OVERFLOW, 'How often a value was told as "other", because the label had 500 others.'),
)
_BY_NAME = {metric.name: metric for metric in METRICS}

_READERS: Mapping[str, Reader] = {
    **run_readers(),
    **traffic_readers(),
    **mirror_readers(),
    **stored_readers(),
    **journal_readers(),
    **transport_readers(),
}
READ_ON_THE_LOOP = frozenset(_READERS)


@dataclass(frozen=True, slots=True)
class MetricReading:
    """
    What the loop had at one moment.

    Shape: `samples` by metric; `tables` the routes of all databases, msdb included; `down` the addresses that are not
    reached; `paths` the files of the user databases.
    """

    samples: Mapping[str, list[tuple[Labels, float]]]
    tables: tuple[RouteTable, ...]
    down: frozenset[NetworkAddress]
    paths: Mapping[str, Path]


async def read_metrics(instance: Running) -> MetricReading:
    """
    Copy what belongs to the loop, in several turns of the loop so that nobody waits long.

    Cost: what was ever counted apart, not what is under way; a thousand connections take 10 ms in all.
    """
    samples: dict[str, list[tuple[Labels, float]]] = {}
    due = time.monotonic() + TURN_SECONDS
    for name, some in _steps(instance):
        samples.setdefault(name, []).extend(some)
        if time.monotonic() >= due:
            await asyncio.sleep(0)
            due = time.monotonic() + TURN_SECONDS
    peers = instance.peers
    return MetricReading(
        samples=samples,
        tables=tuple(database.table for database in instance.catalog.databases.values()),
        down=frozenset(address for address, tried in peers.attempts.items() if _is_down(peers, address, tried)),
        paths={name: endpoint.path for name, endpoint in instance.endpoints.items()},
    )


def _steps(instance: Running) -> Iterator[tuple[str, list[tuple[Labels, float]]]]:
    """One metric after the other, each as of one moment; large ones in parts."""
    for name, read in _READERS.items():
        samples, size = iter(read(instance)), PART_SAMPLES if name in _IN_PARTS else None
        yield name, list(islice(samples, size))
        while part := list(islice(samples, size)):
            yield name, part


class Exposition:
    """The text of the metrics of one instance. For one thread of its own."""

    def __init__(self) -> None:
        self._cap = LabelCap()
        self._route_up = RouteUp(self._cap)
        self._sides = Sides()

    def render(self, reading: MetricReading, accept: str) -> tuple[bytes, str]:
        """
        The text of a scrape. Blocking.

        Args:
            reading: What `read_metrics` gave a moment ago.
            accept: The header field of the request; decides between Prometheus text and OpenMetrics.

        Returns:
            The body and its content type.
        """
        samples: dict[str, list[tuple[Labels, float]]] = {name: list(some) for name, some in reading.samples.items()}
        for more in (stored_samples(reading.paths), self._sides.samples(reading.paths), process_samples()):
            for name, some in more.items():
                samples.setdefault(name, []).extend(some)
        folded = {name: self._cap.fold(name, samples[name], _BY_NAME[name].fold) for name in samples}
        folded[ROUTE_UP] = self._route_up.samples(reading.tables, reading.down, now=datetime.now(UTC))
        folded[OVERFLOW] = {(): float(self._cap.overflows)}
        encode, content_type = choose_encoder(accept)
        return encode(_Once([_family(metric, folded.get(metric.name, {})) for metric in METRICS])), content_type


class _Once(Collector):
    """Families that are ready, in the form in which the library takes them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _family(metric: MetricDefinition, samples: Mapping[Labels, float]) -> Metric:
    if metric.is_histogram:
        return histogram_family(metric, samples)
    make = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family


def _is_down(peers: Peers, address: NetworkAddress, attempts: DialHistory) -> bool:
    """Whether the last that is known of an address is a failure."""
    return attempts.failures > 0 and peers.health_of(address) is not AddressHealth.CONNECTED
