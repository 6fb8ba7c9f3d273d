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
import contextlib
import gc
import os
import platform
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from broker.dialog.send_queue import MICROSECONDS
from broker.flow import Disposition
from broker.forwarding.outbox import Destination
from broker.net.peer_table import DialHistory
from broker.net.peers import Peers
from broker.observe.database_stats import SIDE_METRICS, Sides, read_backlog, read_ledger
from broker.observe.instance import Running
from broker.observe.logs import dropped_lines
from broker.observe.samples import (
    OTHER,
    LabelCap,
    Labels,
    MetricDefinition,
    Reader,
    Samples,
    histogram_family,
    histogram_samples,
    single,
)
from broker.observe.snapshot import (
    CONNECTION_METRICS,
    MIRROR_METRICS,
    connection_samples,
    dropped_by_reason,
    flow_samples,
    forwarded_samples,
    mirror_readers,
)
from broker.observe.status import TRANSPORT_METRICS, kind_name, loop_name, transport_readers
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from broker.routing.mirrored import MirrorRole
from broker.routing.table import RouteTable

# --- journal ---
# The metrics of the journal and of the spans made of it; all 0 where none is kept.


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


# --- lag ---
# How late the event loop runs what is due: the one figure that tells of a blocking call or a starved machine.
#
# A tick is asked for every 100 ms; by how much it comes late is how long everything else in the loop had to wait.


# --- process ---
# What the process takes of its machine, under the names that every exporter has for it.
#
# Cheap, and for any thread: files of /proc and counters of the interpreter, nothing that others have to wait for.
# What a
# system does not tell is left out.
#
# Source: Prometheus documentation, "Writing client libraries", "Process metrics"; Linux, proc(5).


PROCESS_METRICS = (
    MetricDefinition("process_cpu_seconds_total", "Processor time used, in user and system mode."),
    MetricDefinition("process_resident_memory_bytes", "Memory in use."),
    MetricDefinition("process_virtual_memory_bytes", "Address space in use."),
    MetricDefinition("process_start_time_seconds", "When the process was started, in seconds since 1970."),
    MetricDefinition("process_open_fds", "File descriptors that are open."),
    MetricDefinition("process_max_fds", "File descriptors that may be open."),
    MetricDefinition("process_threads", "Threads of the interpreter."),
    MetricDefinition("python_gc_collections_total", "Runs of the garbage collector.", ("generation",)),
    MetricDefinition("python_gc_objects_collected_total", "Objects that it has found and freed.", ("generation",)),
)
_SELF = Path("/proc/self")
_START_FIELD = 19  # of stat, behind the name in brackets: ticks since the machine was started


def process_samples() -> Mapping[str, list[tuple[Labels, float]]]:
    """By metric, as of now. Cost: some 100 us, and 0.3 us for each descriptor."""
    return {name: [(labels, value)] for name, labels, value in _single()} | {
        name: [((str(generation),), float(stats[field])) for generation, stats in enumerate(gc.get_stats())]
        for name, field in (
            ("python_gc_collections_total", "collections"),
            ("python_gc_objects_collected_total", "collected"),
        )
    }


def _single() -> Iterator[tuple[str, Labels, float]]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield "process_cpu_seconds_total", (), used.ru_utime + used.ru_stime
    yield "process_max_fds", (), float(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield "process_threads", (), float(threading.active_count())
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = (_SELF / "statm").read_text().split()
        page = resource.getpagesize()
        yield "process_virtual_memory_bytes", (), float(int(pages[0]) * page)
        yield "process_resident_memory_bytes", (), float(int(pages[1]) * page)
    with contextlib.suppress(OSError):
        yield "process_open_fds", (), float(len(os.listdir(_SELF / "fd")) - 1)  # noqa: PTH208 - names only, no paths
    with contextlib.suppress(OSError, ValueError, IndexError):
        yield "process_start_time_seconds", (), _started_at()


def _started_at() -> float:
    """UTC seconds since 1970."""
    ticks = int((_SELF / "stat").read_text().rpartition(")")[2].split()[_START_FIELD])
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


# --- route_up ---
# Which routes can be used, for the metric `broker_route_up`.
#
# There may be a million routes, while states belong to addresses and a label takes 500 values. So of every table the
# first `ROUTES_MAX` routes are walked, once for every change of the table; what is left of them by the bound on
# labels is
# kept, and a scrape looks at that alone. Of a larger table the other routes are in the views, not in this metric.


ROUTE_UP = "broker_route_up"
ROUTES_MAX = 10_000  # of a table; walking them takes some 0.2 s of a core, and a million would take 20 s
SLICE_ROUTES = 50  # 1 ms: for as long as that the loop may have to wait for the interpreter's lock ...
PAUSE_SECONDS = 0.001  # ... which it has to itself in between


class RouteUp:
    """What is remembered of the tables; changed by one thread, the one that has the cap."""

    def __init__(self, cap: LabelCap) -> None:
        self._cap = cap
        self._tables: tuple[RouteTable, ...] = ()
        self._expiry: datetime | None = None
        self._addresses: dict[Labels, set[NetworkAddress]] = {}

    def samples(
        self, tables: tuple[RouteTable, ...], down: AbstractSet[NetworkAddress], *, now: datetime
    ) -> dict[Labels, float]:
        """
        Name and address of every live route with 1, or with 0 when its address is down; labels within their bound.

        Args:
            tables: Of all databases.
            down: The addresses that are not reached.
            now: UTC.

        Cost: O(values of the labels); after a change of routes the walk.
        """
        is_old = len(tables) != len(self._tables) or any(
            new is not old for new, old in zip(tables, self._tables, strict=True)
        )
        if is_old or (self._expiry is not None and now >= self._expiry):
            self._walk(tables, now)
        return {labels: float(addresses.isdisjoint(down)) for labels, addresses in self._addresses.items()}

    def _walk(self, tables: tuple[RouteTable, ...], now: datetime) -> None:
        self._tables, self._expiry, self._addresses = tables, None, {}
        live = (route for table in tables for route in islice(table, ROUTES_MAX) if route.is_live(now))
        for number, route in enumerate(live, 1):
            if number % SLICE_ROUTES == 0:
                time.sleep(PAUSE_SECONDS)
            if route.lifetime is not None:
                self._expiry = min(self._expiry or route.lifetime, route.lifetime)
            for address in (route.address, route.mirror_address):
                if isinstance(address, NetworkAddress):
                    labels = self._cap.cap(ROUTE_UP, (route.name, str(address)))
                    self._addresses.setdefault(labels, set()).add(address)


# --- run ---
# The metrics of a run: what runs, since when, whether it serves, and whether its loop keeps time.


LAG = "broker_event_loop_lag_seconds"

RUN_METRICS = (
    MetricDefinition(
        "broker_build_info",
        "Always 1; the labels tell what runs.",
        ("software", "python", "loop", "kernel"),
    ),
    MetricDefinition("broker_uptime_seconds", "Time since the instance was started."),
    MetricDefinition("broker_ready", "1 while the instance serves, 0 while it starts or stops."),
    MetricDefinition(
        "broker_task_failures_total",
        "How often a task that lasts as long as the instance has died and was begun anew.",
        ("task",),
    ),
    MetricDefinition(
        "broker_config_last_reload_successful",
        "1 while the last reload of the configuration was successful, or there was none; 0 when it failed.",
    ),
    MetricDefinition(
        "broker_config_last_reload_success_timestamp_seconds",
        "When the configuration in force was taken over, at the start or by a reload, as seconds since 1970.",
    ),
    MetricDefinition(
        "broker_config_reloads_total", "Reloads of the configuration, by what became of them.", ("result",)
    ),
    MetricDefinition("broker_config_keys_waiting", "Settings whose new values wait for a restart."),
    MetricDefinition(
        "broker_log_lines_dropped_total", "Lines of the log that were lost because nobody took them in time."
    ),
    MetricDefinition(LAG, "By how much the event loop was late at worst in the last 15 s."),
)


def run_readers() -> Mapping[str, Reader]:
    """What reads each of them on the loop."""
    return {
        "broker_build_info": _build,
        "broker_uptime_seconds": single(lambda instance: time.time() - instance.started_at),
        "broker_ready": single(lambda instance: instance.is_ready),
        "broker_task_failures_total": _failures,
        "broker_config_last_reload_successful": single(lambda instance: instance.reloads.is_successful),
        "broker_config_last_reload_success_timestamp_seconds": single(
            lambda instance: instance.reloads.last_success_at
        ),
        "broker_config_reloads_total": _reloads,
        "broker_config_keys_waiting": single(lambda instance: len(instance.reloads.waiting)),
        "broker_log_lines_dropped_total": single(lambda _: dropped_lines()),
        LAG: single(lambda instance: instance.lag.seconds),
    }


def _reloads(instance: Running) -> Samples:
    yield ("succeeded",), instance.reloads.succeeded
    yield ("failed",), instance.reloads.failed


def _failures(instance: Running) -> Samples:
    yield from (((task,), count) for task, count in instance.supervision.failures.items())
    if instance.journal is not None:
        yield ("journal",), instance.journal.status()["failures"]


def _build(instance: Running) -> Samples:
    yield (instance.software, platform.python_version(), loop_name(), instance.forwarder.kernel_name), 1


# --- stored ---
# The metrics of databases: which is principal, what waits in their files, and whether their ledgers add up.
#
# `stored_readers` reads what is in memory, on the loop. `stored_samples` asks the files and blocks, so it is for a
# thread; a database whose file cannot be read now is left out of that scrape.


UNACCOUNTED = "broker_ledger_unaccounted_messages"

STORED_METRICS = (
    MetricDefinition(
        "broker_database_principal",
        "1 while this instance is the principal of its database, 0 while it is a mirror.",
        ("database",),
        fold=max,
    ),
    MetricDefinition(
        "broker_database_epoch",
        "How often somebody has taken the database over, as far as this instance knows.",
        ("database",),
        fold=max,
    ),
    MetricDefinition(
        "broker_store_commit_seconds",
        "How long transactions of the writer thread of a database took, the wait for applications and the commit to the"
        " disk included.",
        ("database",),
        is_histogram=True,
    ),
    MetricDefinition(
        "broker_transmission_queue_messages",
        "Messages of applications here that the far side has not acknowledged.",
        ("database",),
    ),
    MetricDefinition(
        "broker_transmission_queue_oldest_seconds",
        "Age of the first of them, 0 when there is none.",
        ("database",),
        fold=max,
    ),
    MetricDefinition(
        "broker_ledger_messages",
        "Messages that applications here have sent, and what became of them: acknowledged, held, or why they"
        " failed; these add up to those sent.",
        ("database", "entry"),
    ),
    MetricDefinition(
        UNACCOUNTED,
        "With a database, its messages sent that are neither acknowledged nor held nor failed for a reason. With an"
        " empty one, dialog frames that came in and are neither forwarded nor delivered nor dropped nor held. 0 unless"
        " there is a fault of the program.",
        ("database",),
    ),
)


def stored_readers() -> Mapping[str, Reader]:
    """What reads some of them on the loop; of `UNACCOUNTED` the frames that pass through."""
    return {
        "broker_database_principal": _principal,
        "broker_database_epoch": _epoch,
        "broker_store_commit_seconds": _commits,
        UNACCOUNTED: lambda instance: [(("",), instance.forwarder.unaccounted)],
    }


def stored_samples(paths: Mapping[str, Path]) -> dict[str, list[tuple[Labels, float]]]:
    """What the files tell, by metric. Blocking."""
    return {name: list(some) for name, some in (_transmission_queues(paths) | _ledgers(paths)).items()}


def _principal(instance: Running) -> Samples:
    for name, standing in instance.standings().items():
        yield (name,), standing.role is MirrorRole.PRINCIPAL


def _epoch(instance: Running) -> Samples:
    for name, standing in instance.standings().items():
        yield (name,), standing.epoch


def _commits(instance: Running) -> Samples:
    for name, endpoint in instance.endpoints.items():
        times = endpoint.commits
        yield from histogram_samples((name,), dict(enumerate(times.counts)), times.seconds)


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


# --- traffic ---
# The metrics of what passes: frames that come, leave, wait and end here, and the connections that bring them.
#
# Read on the loop from plain integers that the pass, the links and the databases count on.


FORWARDED = "broker_messages_forwarded_total"

TRAFFIC_METRICS = (
    *CONNECTION_METRICS,
    MetricDefinition(
        "broker_messages_received_total",
        "Dialog frames that came in: from an adjacent instance, or, with an empty peer, from a database here.",
        ("peer", "kind"),
    ),
    MetricDefinition(
        FORWARDED,
        "Dialog frames handed to the connection to a next hop.",
        ("route", "peer"),
    ),
    MetricDefinition(
        "broker_messages_delivered_total",
        "Whole messages put into the queue of a service here.",
        ("service",),
    ),
    MetricDefinition(
        "broker_messages_dropped_total",
        "Dialog frames that ended here without arriving; their senders still have each message.",
        ("reason",),
    ),
    MetricDefinition(
        "broker_peer_faults_total",
        "Connections that ended because the peer broke a rule of the protocol.",
        ("error",),
    ),
    MetricDefinition("broker_forward_pool_bytes", "Memory taken by frames that wait for their next hop."),
    MetricDefinition("broker_forward_pool_limit_bytes", "What broker_forward_pool_bytes never exceeds."),
    MetricDefinition("broker_forward_pool_messages", "Dialog frames that wait for their next hop."),
    MetricDefinition(
        "broker_forward_share_exceeded_total",
        "Dialog frames dropped because their next hop had its share of the pool; also counted as pool limit exceeded.",
    ),
    MetricDefinition(
        "broker_hop_duration_seconds",
        "How long dialog frames of adjacent instances were here: from the read that brought a frame until it was handed"
        " to the connection to its next hop, or to a database here. One that had to wait counts with that time.",
        is_histogram=True,
    ),
    MetricDefinition(
        "broker_ack_roundtrip_seconds",
        "From the sending of a message by a database here to the acknowledgement of the far side, by next hop; of"
        " messages that were sent once.",
        ("peer",),
        is_histogram=True,
    ),
    MetricDefinition(
        "broker_retransmits_total",
        "Messages sent again because no acknowledgement came in time, or their path broke.",
        ("peer",),
    ),
    MetricDefinition(
        "broker_duplicates_total", "Dialog frames that had been stored before: acknowledged again, not delivered again."
    ),
)


def traffic_readers() -> Mapping[str, Reader]:
    """What reads each of them on the loop."""
    return {
        "broker_connections": lambda instance: connection_samples(instance.peers.links.values()),
        "broker_connection_flows": lambda instance: flow_samples(
            instance.peers.links.values(), asyncio.get_running_loop().time()
        ),
        "broker_messages_received_total": _received,
        FORWARDED: _forwarded,
        "broker_messages_delivered_total": _delivered,
        "broker_messages_dropped_total": _dropped,
        "broker_peer_faults_total": _faults,
        "broker_forward_pool_bytes": single(lambda instance: instance.forwarder.pool.used_bytes),
        "broker_forward_pool_limit_bytes": single(lambda instance: instance.forwarder.pool.limit_bytes),
        "broker_forward_pool_messages": single(lambda instance: instance.forwarder.pool.frames),
        "broker_forward_share_exceeded_total": single(lambda instance: instance.forwarder.pool.over_share),
        "broker_hop_duration_seconds": _hops,
        "broker_ack_roundtrip_seconds": _round_trips,
        "broker_retransmits_total": _retransmits,
        "broker_duplicates_total": _duplicates,
    }


def _received(instance: Running) -> Samples:
    for peer, counts in instance.peers.received().items():
        yield from (((peer, kind_name(kind)), count) for kind, count in counts.items())
    received = instance.past.received.copy()
    for endpoint in instance.endpoints.values():
        received.update(endpoint.transmitter.received)
    yield from ((("", kind_name(kind)), count) for kind, count in received.items())


def _forwarded(instance: Running) -> Samples:
    retired = instance.forwarder.retired_frames  # of the moment that `forwarded_samples` is as of
    yield from forwarded_samples(instance.forwarder)
    if retired:
        yield (OTHER, OTHER), retired


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


def _hops(instance: Running) -> Samples:
    times = instance.forwarder.hop
    times.count_pending()
    return histogram_samples((), dict(enumerate(times.counts)), times.seconds)


def _round_trips(instance: Running) -> Samples:
    trips = instance.past.round_trips.copy()
    for endpoint in instance.endpoints.values():
        trips.update(endpoint.transmitter.round_trips)
    by_hop: dict[Destination | None, dict[int, int]] = {}
    for (next_hop, place), count in trips.items():
        by_hop.setdefault(next_hop, {})[place] = count
    for next_hop, counts in by_hop.items():
        peer = "" if next_hop is None else str(next_hop)
        yield from histogram_samples((peer,), counts, counts.get(MICROSECONDS, 0) / 1e6)


def _retransmits(instance: Running) -> Samples:
    resent = instance.past.resent_to.copy()
    for endpoint in instance.endpoints.values():
        resent.update(endpoint.transmitter.resent_to)
    return [((peer,), count) for peer, count in resent.items() if count]


def _duplicates(instance: Running) -> Samples:
    here = sum(endpoint.dropped[Disposition.DUPLICATE] for endpoint in instance.endpoints.values())
    yield (), here + instance.past.dropped[Disposition.DUPLICATE]


def _faults(instance: Running) -> Samples:
    return [((error,), count) for error, count in instance.peers.protocol_errors.items()]


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
        down=frozenset(address for address, tried in peers.table.histories.items() if _is_down(peers, address, tried)),
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
    return attempts.failures > 0 and peers.table.health_of(address) is not AddressHealth.CONNECTED
