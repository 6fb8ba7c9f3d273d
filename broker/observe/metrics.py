"""
Metrics for Prometheus: the table of all of them, and the text of a scrape.

Nothing is counted here. A metric is one entry of `METRICS`: name, help, labels, and the function that reads its samples
from a `Scrape`, which is a snapshot of the instance, what the files of its databases hold, and the process. The table
is the contract together with docs/metrics.md; a name or a label in it never changes its meaning. Every reason is
exported from the start, so that the first drop is a step from 0 and not a new series.

Peers choose their names and operators write routes by the thousand, and every value of a label is a series that the
scraper keeps for weeks. So the first `VALUES_MAX` values of a label are exported, every later one as "other"; which
are the first is remembered, so that a counter never moves from one series to another.

A sample of a histogram is what fell into each of the `BUCKETS` alone, and the sum of all. So samples of several
databases are added place by place, and only the text has the buckets that Prometheus wants, each with all that is below
it.

Source: Prometheus documentation, "Writing exporters", "Exposition formats", "Process metrics"; OpenMetrics 1.0.
"""

from __future__ import annotations

import operator
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate, islice
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from broker.dialog.send_queue import MICROSECONDS
from broker.flow import Disposition
from broker.forwarding.latency import BOUNDS
from broker.observe.database_stats import (
    QuickStats,
    SideCounter,
    SideCounts,
    age_samples,
    read_quick_stats,
    state_samples,
)
from broker.observe.logs import dropped_lines
from broker.observe.snapshot import RoutesSnapshot, Snapshot, SnapshotSection, kind_name
from broker.routing.address import NetworkAddress
from broker.routing.mirrored import MirrorRole
from broker.routing.route import is_live
from broker.routing.table import RouteTable

SECTIONS: tuple[SnapshotSection, ...] = (
    "run",
    "links",
    "forwarding",
    "traffic",
    "by_route",
    "routes",
    "mirrors",
    "roles",
    "databases",
    "transport",
)
"""The sections of a snapshot that a scrape needs."""

VALUES_MAX = 500
OTHER = "other"
ROUTES_MAX = 10_000  # of a table; walking them takes some 0.2 s of a core, and a million would take 20 s
SLICE_ROUTES = 50  # 1 ms: for as long as that the loop may have to wait for the interpreter's lock ...
PAUSE_SECONDS = 0.001  # ... which it has to itself in between
BUCKETS = (*(repr(bound) for bound in BOUNDS), "+Inf")

Labels: TypeAlias = tuple[str, ...]
Samples: TypeAlias = Iterable[tuple[Labels, Any]]
Merge: TypeAlias = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Scrape:
    """
    The sources of the samples of one scrape: `stats` of the databases whose files can be read, `process` by metric.

    Instants in `snapshot` are seconds of the loop's clock, which `Snapshot.utc` converts. Only `started_at`,
    `run.reloaded_at` and those of `roles` are UTC seconds since 1970.
    """

    snapshot: Snapshot
    stats: Mapping[str, QuickStats] = field(default_factory=dict)
    sides: Mapping[str, SideCounts] = field(default_factory=dict)
    process: Mapping[str, list[tuple[Labels, float]]] = field(default_factory=dict)


Read: TypeAlias = Callable[[Scrape], Samples]


@dataclass(frozen=True)
class MetricDefinition:
    """
    One metric of the contract.

    Attributes:
        name: As scraped; a counter's ends in `_total`.
        read: Its samples; left out for those that `Exposition` makes itself.
        merge: Combines two samples whose labels became equal; those of a histogram are added up.
    """

    name: str
    help: str
    read: Read = lambda _: ()
    labels: Labels = ()
    merge: Merge = operator.add
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


# --- reading samples ---


def _one(path: str) -> Read:
    """Read one number of the snapshot."""
    get = operator.attrgetter(path)
    return lambda scrape: [((), get(scrape.snapshot))]


def _by(path: str, *always: str) -> Read:
    """Read a mapping of the snapshot by value of the label; those of `always` are there from the start."""
    get = operator.attrgetter(path)

    def read(scrape: Scrape) -> Samples:
        return [((label,), count) for label, count in (dict.fromkeys(always, 0) | get(scrape.snapshot)).items()]

    return read


def _build(scrape: Scrape) -> Samples:
    snapshot = scrape.snapshot
    return [((snapshot.software, platform.python_version(), snapshot.loop, snapshot.kernel), 1)]


def _reloads(scrape: Scrape) -> Samples:
    reload = scrape.snapshot.run.reload
    return [(("succeeded",), reload.succeeded), (("failed",), reload.failed)]


def _links(attribute: str) -> Read:
    """Connections by peer, direction and one of their states."""
    get = operator.attrgetter(attribute)
    return lambda scrape: Counter(
        (link.label, link.status.direction, get(link.status)) for link in scrape.snapshot.links
    ).items()


def _received(scrape: Scrape) -> Samples:
    for peer, counts in scrape.snapshot.traffic.received.items():
        yield from (((peer, kind_name(kind)), count) for kind, count in counts.items())


def _forwarded(scrape: Scrape) -> Samples:
    for one in scrape.snapshot.by_route:
        yield (OTHER, OTHER) if one.next_hop is None else (one.route, one.next_hop), one.frames


def _dropped(scrape: Scrape) -> Samples:
    arrived = Disposition.FORWARDED, Disposition.DELIVERED
    dropped = scrape.snapshot.traffic.dropped
    return [((reason.value,), dropped.get(reason, 0)) for reason in Disposition if reason not in arrived]


def _add_up(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    """Two samples of a histogram together."""
    return tuple(map(operator.add, one, other))


def _hops(scrape: Scrape) -> Samples:
    traffic = scrape.snapshot.traffic
    return [((), (*traffic.hops, traffic.hop_seconds))]


def _round_trips(scrape: Scrape) -> Samples:
    for peer, counts in scrape.snapshot.traffic.round_trips.items():
        in_buckets = (counts.get(position, 0) for position in range(len(BUCKETS)))
        yield (peer,), (*in_buckets, counts.get(MICROSECONDS, 0) / 1e6)


def _mirror_principals(scrape: Scrape) -> Samples:
    for mirror in scrape.snapshot.mirrors:
        for address in (mirror.pair.address, mirror.pair.mirror_address):
            yield (mirror.status.route, str(address)), mirror.status.principal == str(address)


def _commits(scrape: Scrape) -> Samples:
    return [((name,), (*one.commits[0], one.commits[1])) for name, one in scrape.snapshot.databases]


def _backlog(attribute: str) -> Read:
    get = operator.attrgetter(attribute)
    return lambda scrape: [((name,), get(stats.backlog)) for name, stats in scrape.stats.items()]


def _ledgers(scrape: Scrape) -> Samples:
    for name, stats in scrape.stats.items():
        for entry, reason, messages in stats.ledger.entries():
            if entry != "unaccounted":
                yield (name, reason or entry), messages


def _unaccounted(scrape: Scrape) -> Samples:
    yield ("",), scrape.snapshot.forwarding.unaccounted
    yield from (((name,), one.ledger.unaccounted) for name, one in scrape.stats.items())


def _queues(attribute: str) -> Read:
    get = operator.attrgetter(attribute)
    return lambda scrape: [
        ((name, queue.name), get(queue)) for name, one in scrape.sides.items() for queue in one.queues
    ]


def _journal(attribute: str, scrape: Scrape) -> Samples:
    """0 where no journal is kept."""
    return [((), getattr(scrape.snapshot.run.journal, attribute, 0))]


def _expiries(scrape: Scrape) -> Samples:
    for role, certificate in scrape.snapshot.transport.certificates:
        yield (role, certificate.principal_name), certificate.not_after.timestamp()


def _process(metric: str, scrape: Scrape) -> Samples:
    return scrape.process.get(metric, ())


# --- the table ---

ROUTE_UP = "broker_route_up"
OVERFLOW = "broker_metrics_label_overflow_total"
METRICS = (
    MetricDefinition(
        "broker_build_info", "Always 1; the labels show what runs.", _build, ("software", "python", "loop", "kernel")
    ),
    MetricDefinition(
        "broker_uptime_seconds",
        "Time since the instance was started.",
        lambda scrape: [((), time.time() - scrape.snapshot.started_at)],
    ),
    MetricDefinition("broker_ready", "1 while /readyz answers yes, 0 while it answers no.", _one("is_ready")),
    MetricDefinition(
        "broker_task_failures_total",
        "Restarts of permanent tasks after a fault of the program.",
        _by("run.task_failures"),
        ("task",),
    ),
    MetricDefinition(
        "broker_config_last_reload_successful",
        "1 if the last reload of the configuration was successful, or there was none; 0 if it failed.",
        _one("run.reload.successful"),
    ),
    MetricDefinition(
        "broker_config_last_reload_success_timestamp_seconds",
        "When the configuration in force was loaded, in seconds since 1970.",
        _one("run.reloaded_at"),
    ),
    MetricDefinition("broker_config_reloads_total", "Reloads of the configuration, by result.", _reloads, ("result",)),
    MetricDefinition(
        "broker_config_keys_waiting",
        "Settings whose new values wait for a restart.",
        lambda scrape: [((), len(scrape.snapshot.run.reload.waiting))],
    ),
    MetricDefinition(
        "broker_log_lines_dropped_total",
        "Lines of the log that were dropped because standard error blocked.",
        lambda _: [((), dropped_lines())],
    ),
    MetricDefinition(
        "broker_event_loop_lag_seconds",
        "The longest delay of the event loop in the last 15 s.",
        _one("run.lag_s"),
    ),
    MetricDefinition(
        "broker_connections", "Connections to adjacent instances now.", _links("state"), ("peer", "direction", "state")
    ),
    MetricDefinition(
        "broker_connection_flows",
        "The same connections by the traffic observed: flowing, idle, blocked, stalled, opening, leaving or down.",
        _links("flow"),
        ("peer", "direction", "flow"),
    ),
    MetricDefinition(
        "broker_messages_received_total",
        "Dialog frames received from adjacent instances, and, with an empty peer, from databases here.",
        _received,
        ("peer", "kind"),
    ),
    MetricDefinition(
        "broker_messages_forwarded_total",
        "Dialog frames handed to the connection to a next hop.",
        _forwarded,
        ("route", "peer"),
    ),
    MetricDefinition(
        "broker_messages_delivered_total",
        "Whole messages put into the queue of a service here.",
        _by("traffic.delivered"),
        ("service",),
    ),
    MetricDefinition(
        "broker_messages_dropped_total",
        "Dialog frames dropped here; their senders still have each message.",
        _dropped,
        ("reason",),
    ),
    MetricDefinition(
        "broker_peer_faults_total",
        "Connections that ended because the peer violated the protocol.",
        _by("traffic.peer_errors"),
        ("error",),
    ),
    MetricDefinition(
        "broker_forward_pool_bytes",
        "Memory of frames that wait for their next hop.",
        _one("forwarding.pool_bytes"),
    ),
    MetricDefinition(
        "broker_forward_pool_limit_bytes",
        "The limit of broker_forward_pool_bytes.",
        _one("forwarding.pool_limit_bytes"),
    ),
    MetricDefinition(
        "broker_forward_pool_messages", "Dialog frames that wait for their next hop.", _one("forwarding.held")
    ),
    MetricDefinition(
        "broker_forward_share_exceeded_total",
        "Dialog frames dropped because their next hop had used its share of the pool; also counted as "
        "pool limit exceeded.",
        _one("traffic.over_share"),
    ),
    MetricDefinition(
        "broker_hop_duration_seconds",
        "Time of dialog frames of adjacent instances here: from the read until the frame was handed to "
        "the connection to its next hop, or to a database here. Waiting counts.",
        _hops,
        is_histogram=True,
    ),
    MetricDefinition(
        "broker_ack_roundtrip_seconds",
        "Time from the sending of a message by a database here to its acknowledgement, by next hop; of "
        "messages sent once.",
        _round_trips,
        ("peer",),
        is_histogram=True,
    ),
    MetricDefinition(
        "broker_retransmits_total",
        "Messages sent again because no acknowledgement arrived in time, or their path broke.",
        _by("traffic.resent"),
        ("peer",),
    ),
    MetricDefinition(
        "broker_duplicates_total",
        "Dialog frames that were stored before; they are acknowledged again, but not delivered again.",
        lambda scrape: [((), scrape.snapshot.traffic.duplicates)],
    ),
    MetricDefinition(
        ROUTE_UP,
        "0 if the address of a live route has failed and was not reached since, otherwise 1. Covers the "
        "first 10,000 routes of a table.",
        labels=("route", "address"),
    ),
    MetricDefinition(
        "broker_mirror_principal",
        "1 for the address of a mirrored route in use to which its messages are sent, otherwise 0.",
        _mirror_principals,
        ("route", "address"),
        merge=max,
    ),
    MetricDefinition(
        "broker_mirror_state",
        "Of a mirrored route in use: 1 operational, 2 principal only, 3 not operational, so messages wait.",
        lambda scrape: [((one.status.route,), one.state) for one in scrape.snapshot.mirrors],
        ("route",),
        merge=max,
    ),
    MetricDefinition(
        "broker_mirror_probes_total", "PROBE frames sent to partners of mirrored routes.", _one("traffic.mirror_probes")
    ),
    MetricDefinition(
        "broker_mirror_answers_total",
        "PROBE_REPLY frames of partners of mirrored routes, by role.",
        _by("traffic.mirror_answers"),
        ("role",),
    ),
    MetricDefinition(
        "broker_database_principal",
        "1 while this instance is the principal of its database, 0 while it is a mirror.",
        lambda scrape: [((name,), role.role is MirrorRole.PRINCIPAL) for name, role in scrape.snapshot.roles],
        ("database",),
        merge=max,
    ),
    MetricDefinition(
        "broker_database_epoch",
        "Number of failovers of the database, as far as this instance knows.",
        lambda scrape: [((name,), role.epoch) for name, role in scrape.snapshot.roles],
        ("database",),
        merge=max,
    ),
    MetricDefinition(
        "broker_store_commit_seconds",
        "Duration of transactions of the writer thread of a database, with the wait for applications and "
        "the commit to disk.",
        _commits,
        ("database",),
        is_histogram=True,
    ),
    MetricDefinition(
        "broker_store_write_lock_wait_seconds_total",
        "Time that the writer of a database has waited for write transactions of applications.",
        lambda scrape: [((name,), one.write_lock_s) for name, one in scrape.snapshot.databases],
        ("database",),
    ),
    MetricDefinition(
        "broker_database_replaced",
        "1 while a new, empty database replaces a lost one, until broker database keep accepts it.",
        lambda scrape: [((name,), bool(one.status.replaced)) for name, one in scrape.snapshot.databases],
        ("database",),
    ),
    MetricDefinition(
        "broker_transmission_queue_messages",
        "Messages sent by applications here that the far side has not acknowledged.",
        _backlog("messages"),
        ("database",),
    ),
    MetricDefinition(
        "broker_transmission_queue_oldest_seconds",
        "Age of the oldest of them, 0 if there is none.",
        _backlog("oldest_s"),
        ("database",),
        merge=max,
    ),
    MetricDefinition(
        "broker_ledger_messages",
        "Messages that applications here have sent, and their fate: acknowledged, held, or a reason of "
        "failure. These add up to the number sent.",
        _ledgers,
        ("database", "entry"),
    ),
    MetricDefinition(
        "broker_ledger_unaccounted_messages",
        "With a database, messages sent that are neither acknowledged, held nor failed. With an empty "
        "one, received dialog frames that are neither forwarded, delivered, dropped nor held. 0 unless the "
        "program has a fault.",
        _unaccounted,
        ("database",),
    ),
    MetricDefinition(
        "broker_dialogs",
        "Sides of conversations in the databases here, by service and state.",
        lambda scrape: state_samples(scrape.sides),
        ("service", "state"),
    ),
    MetricDefinition(
        "broker_dialog_oldest_age_seconds",
        "Age of the oldest of them in this state.",
        lambda scrape: age_samples(scrape.sides),
        ("state",),
        merge=max,
    ),
    MetricDefinition(
        "broker_quarantined_dialogs",
        "Dialogs in quarantine: their next message has failed too often, and an operator has to decide.",
        lambda scrape: [((service,), count) for one in scrape.sides.values() for service, count in one.quarantined],
        ("service",),
    ),
    MetricDefinition(
        "broker_queue_messages",
        "Messages that applications may receive, by queue; the 50 fullest queues of each database.",
        _queues("ready"),
        ("database", "queue"),
    ),
    MetricDefinition(
        "broker_queue_oldest_seconds",
        "Age of the oldest of them, 0 if there is none.",
        _queues("oldest_s"),
        ("database", "queue"),
    ),
    *(
        MetricDefinition(f"broker_{name}", text, partial(_journal, attribute))
        for attribute, name, text in (
            ("records", "journal_records_total", "Records in finished files of the journal."),
            ("pending", "journal_pending_records", "Records that are in no finished file yet."),
            (
                "shed",
                "journal_shed_total",
                "Records that are lost because the buffer was full or the disk failed.",
            ),
            ("files", "journal_files_total", "Finished files of the journal."),
            ("bytes", "journal_bytes_total", "Size of the finished files of the journal."),
            ("errors", "journal_errors_total", "Failures to write or remove a file of the journal."),
            (
                "removed_files",
                "journal_removed_files_total",
                "Files of the journal removed because of their age or total size.",
            ),
            ("spans", "tracing_spans_total", "Spans of traced messages that a collector has accepted."),
            ("spans_pending", "tracing_pending_spans", "Spans that wait for a collector."),
            (
                "spans_dropped",
                "tracing_dropped_spans_total",
                "Spans that are lost: a collector rejected them, or too many waited.",
            ),
        )
    ),
    MetricDefinition(
        "broker_tls_certificate_expiry_timestamp_seconds",
        "When a certificate expires, in seconds since 1970: its own (own, own_chain), trusted ones "
        "(trust), those of connected peers and their CAs (peer, peer_chain).",
        _expiries,
        ("role", "name"),
        merge=min,
    ),
    MetricDefinition(
        "broker_tls_reloads_total",
        "Reloads of changed certificate files that succeeded.",
        _one("transport.status.reloads"),
    ),
    MetricDefinition(
        "broker_tls_reload_failures_total",
        "Reloads of changed certificate files that failed; the previous files stay in use.",
        _one("transport.status.reload_failures"),
    ),
    MetricDefinition(
        "broker_tls_last_reload_successful",
        "1 while the current certificate files are in use, 0 while they cannot be used and the previous ones are.",
        lambda scrape: [((), not scrape.snapshot.transport.status.problem)],
    ),
    MetricDefinition(
        "broker_tls_handshakes", "TLS handshakes in progress with clients.", _one("transport.status.handshakes")
    ),
    MetricDefinition(
        "broker_connections_refused_total",
        "Connections refused or ended because of a limit.",
        _by("transport.status.refused", "connections", "connections_per_peer"),
        ("limit",),
    ),
    MetricDefinition(
        "broker_connection_pauses_total",
        "Pauses in reading a connection because its peer exceeded a limit.",
        _by("transport.pauses", "bytes_per_second", "messages_per_second"),
        ("limit",),
    ),
    MetricDefinition(
        "broker_forward_peer_share_exceeded_total",
        "Dialog frames dropped because their sender had used its share of the pool; also counted as pool "
        "limit exceeded.",
        _one("traffic.over_peer_share"),
    ),
    *(
        MetricDefinition(name, text, partial(_process, name), ("generation",) if name.startswith("python_") else ())
        for name, text in (
            ("process_cpu_seconds_total", "Processor time used, in user and system mode."),
            ("process_resident_memory_bytes", "Memory in use."),
            ("process_virtual_memory_bytes", "Address space in use."),
            ("process_start_time_seconds", "When the process was started, in seconds since 1970."),
            ("process_open_fds", "File descriptors that are open."),
            ("process_max_fds", "File descriptors that may be open."),
            ("process_threads", "Threads of the interpreter."),
            ("python_gc_collections_total", "Runs of the garbage collector."),
            ("python_gc_objects_collected_total", "Objects that the garbage collector has freed."),
        )
    ),
    MetricDefinition(OVERFLOW, 'Values exported as "other" because the label had 500 values.'),
)


# --- the text ---


class Exposition:
    """The text of the metrics of one instance, for one thread."""

    def __init__(self) -> None:
        self._cap = LabelCap()
        self._route_up = RouteUp(self._cap)
        self._sides = SideCounter()

    def render(self, snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
        """
        Return the text of a scrape, and its content type. Blocking.

        Args:
            snapshot: Has the sections of `SECTIONS`, as of a moment ago.
            accept: The header field of the request; decides between Prometheus text and OpenMetrics.
        """
        paths = snapshot.paths
        stats = {name: one for name, one in read_quick_stats(paths).items() if one is not None}
        scrape = Scrape(snapshot, stats, self._sides.count(paths), process_samples())
        samples = {
            one.name: self._cap.merge(one.name, one.read(scrape), _add_up if one.is_histogram else one.merge)
            for one in METRICS
        }
        samples[ROUTE_UP] = self._route_up.samples(snapshot.routes, now=datetime.now(UTC))
        samples[OVERFLOW] = {(): float(self._cap.overflows)}
        encode, content_type = choose_encoder(accept)
        return encode(_Once([_family(metric, samples[metric.name]) for metric in METRICS])), content_type


class _Once(Collector):
    """Families that are ready, in the form that the library accepts."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _family(metric: MetricDefinition, samples: Mapping[Labels, Any]) -> Metric:
    if metric.is_histogram:
        return histogram_family(metric, samples)
    make = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family


def histogram_family(metric: MetricDefinition, samples: Mapping[Labels, Any]) -> HistogramMetricFamily:
    """Return the histogram in the form that the library renders."""
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, (*counts, total) in samples.items():
        family.add_metric(labels, [*zip(BUCKETS, accumulate(counts), strict=True)], total)
    return family


# --- bounds on labels ---


class LabelCap:
    """Remembers the values exported so far; used by one thread. `overflows` is how often one became "other"."""

    def __init__(self, values_max: int = VALUES_MAX) -> None:
        self.overflows = 0
        self._values_max = values_max
        self._values: dict[tuple[str, int], set[str]] = {}

    def merge(self, metric: str, samples: Samples, merge: Merge) -> dict[Labels, Any]:
        """
        Return the samples of a metric with labels within the bound.

        Args:
            metric: Its name.
            samples: Labels and value; labels may repeat.
            merge: Combines two values with the same labels: their sum, or the lesser.
        """
        merged: dict[Labels, Any] = {}
        for labels, value in samples:
            capped = self.cap(metric, labels)
            merged[capped] = merge(merged[capped], value) if capped in merged else value
        return merged

    def cap(self, metric: str, labels: Labels) -> Labels:
        """Return the labels, within the bound."""
        return tuple([self._cap(metric, position, label) for position, label in enumerate(labels)])

    def _cap(self, metric: str, position: int, label: str) -> str:
        known = self._values.setdefault((metric, position), set())
        if label in known:
            return label
        if len(known) < self._values_max:
            known.add(label)
            return label
        self.overflows += 1
        return OTHER


class RouteUp:
    """
    Which routes can be used, for `broker_route_up`. Used by one thread, the one that has the cap.

    States belong to addresses, so a table is walked only when it changes; what is left by the bounds on routes and
    labels is kept, and a scrape reads that alone. Of a larger table the other routes are in the views only.
    """

    def __init__(self, cap: LabelCap) -> None:
        self._cap = cap
        self._tables: tuple[RouteTable, ...] = ()
        self._expiry: datetime | None = None
        self._addresses: dict[Labels, set[NetworkAddress]] = {}

    def samples(self, routes: RoutesSnapshot, *, now: datetime) -> dict[Labels, float]:
        """
        Return name and address of every live route with 1, or with 0 when its address is down; labels within the bound.

        Args:
            routes: Of all databases, with the addresses that are down.
            now: UTC.

        Cost: O(values of the labels); after a change of routes the walk.
        """
        tables = routes.tables
        if [*map(id, tables)] != [*map(id, self._tables)] or (self._expiry is not None and now >= self._expiry):
            self._walk(tables, now)
        return {labels: float(addresses.isdisjoint(routes.down)) for labels, addresses in self._addresses.items()}

    def _walk(self, tables: tuple[RouteTable, ...], now: datetime) -> None:
        self._tables, self._expiry, self._addresses = tables, None, {}
        live = (route for table in tables for route in islice(table, ROUTES_MAX) if is_live(route.lifetime, now))
        for number, route in enumerate(live, 1):
            if number % SLICE_ROUTES == 0:
                time.sleep(PAUSE_SECONDS)
            if route.lifetime is not None:
                self._expiry = min(self._expiry or route.lifetime, route.lifetime)
            for address in route.addresses:
                labels = self._cap.cap(ROUTE_UP, (route.name, str(address)))
                self._addresses.setdefault(labels, set()).add(address)


# --- the process: cheap, and for any thread; what a system does not report is left out ---

_COLLECTORS: tuple[Collector, ...] = (ProcessCollector(registry=None), GCCollector(CollectorRegistry()))


def process_samples() -> Mapping[str, list[tuple[Labels, float]]]:
    """Return samples of the process by metric, as of now. Cost: some 100 us, and 0.3 us for each descriptor."""
    found: dict[str, list[tuple[Labels, float]]] = {"process_threads": [((), float(threading.active_count()))]}
    for one in (one for collector in _COLLECTORS for family in collector.collect() for one in family.samples):
        found.setdefault(one.name, []).append((tuple(one.labels.values()), one.value))
    return found
