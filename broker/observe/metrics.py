"""
Metrics for Prometheus: read when scraped, from plain integers that other objects count on.

Nothing is counted here and nothing is kept between two scrapes but the label values told so far. `read_metrics` copies
what belongs to the loop; `Exposition.render`, in a thread, adds what is in files and tables, and writes the text. The
table `METRICS` is the contract together with docs/metrics.md; a name or a label in it never changes its meaning.

Source: Prometheus documentation, "Writing exporters", "Exposition formats"; OpenMetrics 1.0.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from broker.flow import Disposition
from broker.mirror.role import Role
from broker.net.dialer import Attempts
from broker.net.link import Link
from broker.net.peers import Peers
from broker.observe.backlog import read_backlog
from broker.observe.described import Described
from broker.observe.instance import Running
from broker.observe.journal import JOURNAL_METRICS, journal_readers
from broker.observe.label import OTHER, LabelCap, Labels
from broker.observe.lag import LoopLag
from broker.observe.ledger import read_ledger
from broker.observe.mirror import MIRROR_STATE_HELP, forwarded_samples, principal_samples, state_samples
from broker.observe.route_up import METRIC as ROUTE_UP
from broker.observe.route_up import RouteUp
from broker.observe.status import direction, dropped_by_reason, kind_name, loop_name
from broker.observe.transport import TRANSPORT_METRICS, transport_readers
from broker.routing.address import NetworkAddress
from broker.routing.choose import Health
from broker.routing.table import RouteTable

Samples = Iterable[tuple[Labels, float]]

UNACCOUNTED = "broker_ledger_unaccounted_messages"


METRICS = (
    Described(
        "broker_build_info",
        "Always 1; the labels tell what runs.",
        ("software", "python", "loop", "kernel"),
    ),
    Described("broker_uptime_seconds", "Time since the instance was started."),
    Described("broker_ready", "1 while the instance serves, 0 while it starts or stops."),
    Described(
        "broker_workers",
        "Processes that carry messages now; as many as endpoint.workers says when all is well.",
    ),
    Described("broker_worker_restarts_total", "How often a worker has died and another one took its place."),
    Described(
        "broker_connections",
        "Connections to adjacent instances now.",
        ("peer", "direction", "state"),
    ),
    Described(
        "broker_messages_received_total",
        "Dialog frames that came in: from an adjacent instance, or, with an empty peer, from a database here.",
        ("peer", "kind"),
    ),
    Described(
        "broker_messages_forwarded_total",
        "Dialog frames handed to the connection to a next hop.",
        ("route", "peer"),
    ),
    Described(
        "broker_messages_delivered_total",
        "Whole messages put into the queue of a service here.",
        ("service",),
    ),
    Described(
        "broker_messages_dropped_total",
        "Dialog frames that ended here without arriving; their senders still have each message.",
        ("reason",),
    ),
    Described(
        "broker_peer_faults_total",
        "Connections that ended because the peer broke a rule of the protocol.",
        ("error",),
    ),
    Described("broker_forward_pool_bytes", "Memory taken by frames that wait for their next hop."),
    Described("broker_forward_pool_limit_bytes", "What broker_forward_pool_bytes never exceeds."),
    Described("broker_forward_pool_messages", "Dialog frames that wait for their next hop."),
    Described(
        "broker_forward_share_exceeded_total",
        "Dialog frames dropped because their next hop had its share of the pool; also counted as pool limit exceeded.",
    ),
    Described(
        "broker_route_up",
        "0 when the address of a live route did not answer or was lost, and nothing has reached it since; else 1. "
        "Of a table the first 10,000 routes are looked at.",
        ("route", "address"),
    ),
    Described(
        "broker_retransmits_total",
        "Messages sent again because no acknowledgement came in time, or their path broke.",
        ("peer",),
    ),
    Described(
        "broker_duplicates_total", "Dialog frames that had been stored before: acknowledged again, not delivered again."
    ),
    Described(
        "broker_database_principal",
        "1 while this instance is the principal of its database, 0 while it is a mirror.",
        ("database",),
        fold=max,
    ),
    Described(
        "broker_database_epoch",
        "How often somebody has taken the database over, as far as this instance knows.",
        ("database",),
        fold=max,
    ),
    Described(
        "broker_transmission_queue_messages",
        "Messages of applications here that the far side has not acknowledged.",
        ("database",),
    ),
    Described(
        "broker_transmission_queue_oldest_seconds",
        "Age of the first of them, 0 when there is none.",
        ("database",),
        fold=max,
    ),
    Described(
        "broker_mirror_principal",
        "1 for the address of a mirrored route in use to which its messages go, else 0.",
        ("route", "address"),
        fold=max,
    ),
    Described("broker_mirror_state", MIRROR_STATE_HELP, ("route",), fold=max),
    Described("broker_mirror_probes_total", "PROBE frames sent to partners of mirrored routes."),
    Described("broker_mirror_answers_total", "PROBE_REPLY frames of partners of mirrored routes, by role.", ("role",)),
    Described(
        "broker_ledger_messages",
        "Messages that applications here have sent, and what became of them: acknowledged, held, or why they"
        " failed; these add up to those sent.",
        ("database", "entry"),
    ),
    Described(
        "broker_ledger_unaccounted_messages",
        "With a database, its messages sent that are neither acknowledged nor held nor failed for a reason. With an"
        " empty one, dialog frames that came in and are neither forwarded nor delivered nor dropped nor held. 0 unless"
        " there is a fault of the program.",
        ("database",),
    ),
    *JOURNAL_METRICS,
    *TRANSPORT_METRICS,
    Described(
        "broker_event_loop_lag_seconds",
        "By how much the event loop was late at worst in the last 15 s.",
    ),
    Described(
        "broker_metrics_label_overflow_total",
        'How often a value was told as "other", because the label had 500 others.',
    ),
)
_BY_NAME = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True, slots=True)
class Reading:
    """
    What the loop had at one moment.

    Shape: `samples` by metric; `tables` the routes of all databases, msdb included; `down` the addresses that are not
    reached; `paths` the files of the user databases.
    """

    samples: Mapping[str, list[tuple[Labels, float]]]
    tables: tuple[RouteTable, ...]
    down: frozenset[NetworkAddress]
    paths: Mapping[str, Path]


def read_metrics(instance: Running, lag: LoopLag) -> Reading:
    """Copy what belongs to the loop. Cost: what was ever counted apart, not what is under way."""
    peers = instance.peers
    return Reading(
        samples={name: list(read(instance)) for name, read in _READERS.items()}
        | {"broker_event_loop_lag_seconds": [((), lag.seconds)]},
        tables=tuple(database.table for database in instance.catalog.databases.values()),
        down=frozenset(address for address, tried in peers.attempts.items() if _is_down(peers, address, tried)),
        paths={name: endpoint.path for name, endpoint in instance.endpoints.items()},
    )


class Exposition:
    """The text of the metrics of one instance. For one thread of its own."""

    def __init__(self) -> None:
        self._cap = LabelCap()
        self._route_up = RouteUp(self._cap)

    def render(self, reading: Reading, accept: str) -> tuple[bytes, str]:
        """
        The text of a scrape. Blocking.

        Args:
            reading: What `read_metrics` gave a moment ago.
            accept: The header field of the request; decides between Prometheus text and OpenMetrics.

        Returns:
            The body and its content type.
        """
        ledgers = _ledgers(reading.paths)
        ledgers[UNACCOUNTED] = [*reading.samples[UNACCOUNTED], *ledgers[UNACCOUNTED]]
        samples: dict[str, Samples] = {**reading.samples, **_transmission_queues(reading.paths), **ledgers}
        folded = {name: self._cap.fold(name, samples[name], _BY_NAME[name].fold) for name in samples}
        folded[ROUTE_UP] = self._route_up.samples(reading.tables, reading.down, now=datetime.now(UTC))
        folded["broker_metrics_label_overflow_total"] = {(): float(self._cap.overflows)}
        encode, content_type = choose_encoder(accept)
        return encode(_Once([_family(metric, folded[metric.name]) for metric in METRICS])), content_type


class _Once(Collector):
    """Families that are ready, in the form in which the library takes them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _family(metric: Described, samples: Mapping[Labels, float]) -> Metric:
    make = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family


# --- on the loop ------------------------------------------------------------------------------------------------


def _is_down(peers: Peers, address: NetworkAddress, attempts: Attempts) -> bool:
    """Whether the last that is known of an address is a failure."""
    return attempts.failures > 0 and peers.health_of(address) is not Health.CONNECTED


def _build(instance: Running) -> Samples:
    yield (instance.software, platform.python_version(), loop_name(), instance.forwarder.kernel_name), 1


def _connections(instance: Running) -> Samples:
    def labels(link: Link) -> Labels:
        return link.peer_name, direction(link), link.state.value

    return Counter(map(labels, instance.peers.links.values())).items()


def _received(instance: Running) -> Samples:
    for peer, counts in instance.peers.received().items():
        yield from (((peer, kind_name(kind)), count) for kind, count in counts.items())
    received = instance.past.received.copy()
    for endpoint in instance.endpoints.values():
        received.update(endpoint.transmitter.received)
    yield from ((("", kind_name(kind)), count) for kind, count in received.items())


def _forwarded(instance: Running) -> Samples:
    yield from forwarded_samples(instance.forwarder)
    if instance.forwarder.retired_frames:
        yield (OTHER, OTHER), instance.forwarder.retired_frames


def _delivered(instance: Running) -> Samples:
    delivered = instance.past.delivered.copy()
    for endpoint in instance.endpoints.values():
        delivered.update(endpoint.delivered)
    yield from (((service,), count) for service, count in delivered.items())


def _dropped(instance: Running) -> Samples:
    dropped = dropped_by_reason(instance)
    arrived = (Disposition.FORWARDED, Disposition.DELIVERED)
    # Every reason is told from the start, so that the first drop is a change from 0 and not a new series.
    return [((disposition.value,), dropped[disposition]) for disposition in Disposition if disposition not in arrived]


def _retransmits(instance: Running) -> Samples:
    resent = instance.past.resent_to.copy()
    for endpoint in instance.endpoints.values():
        resent.update(endpoint.transmitter.resent_to)
    return [((peer,), count) for peer, count in resent.items() if count]


def _duplicates(instance: Running) -> Samples:
    here = sum(endpoint.dropped[Disposition.DUPLICATE] for endpoint in instance.endpoints.values())
    yield (), here + instance.past.dropped[Disposition.DUPLICATE]


def _principal(instance: Running) -> Samples:
    for name, standing in instance.standings().items():
        yield (name,), standing.role is Role.PRINCIPAL


def _epoch(instance: Running) -> Samples:
    for name, standing in instance.standings().items():
        yield (name,), standing.epoch


def _one(value: Callable[[Running], float]) -> Callable[[Running], Samples]:
    """The reader of a metric without labels."""
    return lambda instance: [((), value(instance))]


_READERS: Mapping[str, Callable[[Running], Samples]] = {
    "broker_build_info": _build,
    "broker_uptime_seconds": _one(lambda instance: time.time() - instance.started_at),
    "broker_ready": _one(lambda instance: instance.is_ready),
    "broker_workers": _one(lambda instance: instance.is_ready),
    "broker_worker_restarts_total": _one(lambda _: 0),
    "broker_connections": _connections,
    "broker_messages_received_total": _received,
    "broker_messages_forwarded_total": _forwarded,
    "broker_messages_delivered_total": _delivered,
    "broker_messages_dropped_total": _dropped,
    "broker_peer_faults_total": lambda instance: [((error,), count) for error, count in instance.peers.faults.items()],
    "broker_forward_pool_bytes": _one(lambda instance: instance.forwarder.pool.used_bytes),
    "broker_forward_pool_limit_bytes": _one(lambda instance: instance.forwarder.pool.limit_bytes),
    "broker_forward_pool_messages": _one(lambda instance: instance.forwarder.pool.frames),
    "broker_forward_share_exceeded_total": _one(lambda instance: instance.forwarder.pool.over_share),
    "broker_retransmits_total": _retransmits,
    "broker_duplicates_total": _duplicates,
    "broker_database_principal": _principal,
    "broker_database_epoch": _epoch,
    "broker_mirror_principal": lambda instance: principal_samples(instance.mirrors),
    "broker_mirror_state": lambda instance: state_samples(instance.mirrors),
    "broker_mirror_probes_total": _one(lambda instance: instance.mirrors.probes),
    "broker_mirror_answers_total": lambda instance: [((role,), n) for role, n in instance.mirrors.answers.items()],
    UNACCOUNTED: lambda instance: [(("",), instance.forwarder.unaccounted)],
    **journal_readers(),
    **transport_readers(),
}


READ_ON_THE_LOOP = frozenset(_READERS)


# --- in the thread ----------------------------------------------------------------------------------------------


def _transmission_queues(paths: Mapping[str, Path]) -> dict[str, Samples]:
    """By database; one whose file cannot be read now is left out of this scrape."""
    backlogs = {name: read_backlog(path) for name, path in paths.items()}
    known = {(name,): backlog for name, backlog in backlogs.items() if backlog is not None}
    return {
        "broker_transmission_queue_messages": [(labels, backlog.messages) for labels, backlog in known.items()],
        "broker_transmission_queue_oldest_seconds": [(labels, backlog.oldest_s) for labels, backlog in known.items()],
    }


def _ledgers(paths: Mapping[str, Path]) -> dict[str, Samples]:
    """By database, as far as their files can be read now."""
    read = {name: read_ledger(path) for name, path in paths.items()}
    known = {name: balance for name, balance in read.items() if balance is not None}
    return {
        "broker_ledger_messages": [
            ((name, reason or entry), messages)
            for name, balance in known.items()
            for entry, reason, messages in balance.entries()
            if entry != "unaccounted"
        ],
        UNACCOUNTED: [((name,), balance.unaccounted) for name, balance in known.items()],
    }
