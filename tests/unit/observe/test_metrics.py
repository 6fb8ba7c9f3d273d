"""Metrics: what each is read from, the text of a scrape, the bound on labels, and what the process says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import os
import re
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs
from prometheus_client.core import Sample

from broker.dialog.send_queue import MICROSECONDS
from broker.flow import Disposition
from broker.forwarding.fib import OTHER_KIND
from broker.forwarding.kernels import choose_kernel
from broker.forwarding.latency import BOUNDS
from broker.net.peer_table import DialHistory
from broker.observe import metrics as module
from broker.observe.instance import TICK_SECONDS, WINDOW_TICKS, LoopLag
from broker.observe.metrics import (
    BUCKETS,
    METRICS,
    OTHER,
    SUM,
    VALUES_MAX,
    LabelCap,
    Merge,
    MetricDefinition,
    RouteUp,
    Samples,
    Scrape,
    histogram_family,
    histogram_samples,
    process_samples,
)
from broker.observe.snapshot import MirrorSnapshot, RoutesSnapshot, RunSnapshot, read_snapshot
from broker.observe.status import JournalStatus
from broker.routing.address import LOCAL, TRANSPORT, Keyword, NetworkAddress
from broker.routing.mirrored import AddressState
from broker.routing.route import MirroredPair, Route
from broker.routing.table import RouteTable, build_table
from tests.support.scraped import Scraped, samples_of, text_of

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
DEAD_ROUTE = "CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://127.0.0.1:1'"


def test_page_and_code_tell_the_same() -> None:
    """Each row of the page: the name with its labels, the type, the help."""
    rows = re.findall(r"^\| `(\w+)(?:\{([\w,]+)\})?` \| (\w+) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)

    told = [(name, tuple(labels.split(",")) if labels else (), kind, text) for name, labels, kind, text in rows]

    assert told == [(metric.name, metric.labels, metric.kind, metric.help) for metric in METRICS]


async def test_every_metric_has_its_help_before_anything_happened(start: Any) -> None:
    instance = await start("near")

    text = await text_of(Scraped(instance))

    assert [metric.name for metric in METRICS] == re.findall(r"^# HELP (\w+) .{10,}", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    ],
)
async def test_form_is_negotiated(start: Any, accept: str, content_type: str) -> None:
    metrics = Scraped(await start("near"))

    _, answered = await metrics.scrape(accept)

    assert answered.startswith(content_type)


# --- what the values are ---


async def test_new_instance(start: Any) -> None:
    instance = await start("near")

    samples = await samples_of(instance)

    assert samples["broker_build_info"] == {
        (instance.software, next(iter(samples["broker_build_info"]))[1], "asyncio", choose_kernel().name): 1
    }
    assert samples["broker_ready"] == {(): 1}
    assert samples["broker_forward_pool_limit_bytes"] == {(): 64 * 1024 * 1024}
    assert samples["broker_transmission_queue_messages"] == {("near",): 0}
    assert samples["broker_transmission_queue_oldest_seconds"] == {("near",): 0}
    assert samples["broker_metrics_label_overflow_total"] == {(): 0}
    assert samples["broker_duplicates_total"] == {(): 0}
    assert samples["broker_ledger_unaccounted_messages"] == {("",): 0, ("near",): 0}


@pytest.mark.parametrize(
    ("attempts", "up"),
    [
        (None, 1),
        (DialHistory(), 1),
        (DialHistory(failures=1, problem="refused"), 0),
        (DialHistory(failures=1, suppressed_until=float("inf")), 0),
    ],
)
async def test_route_is_up_until_its_address_fails(start: Any, attempts: DialHistory | None, up: int) -> None:
    instance = await start("near", DEAD_ROUTE)
    if attempts is not None:
        instance.peers.table.histories[NetworkAddress("127.0.0.1", 1)] = attempts

    assert (await samples_of(instance))["broker_route_up"] == {("far", "tcp://127.0.0.1:1"): up}


async def test_more_values_than_a_label_may_have_are_one(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].delivered.update({f"//s{number}": 1 for number in range(503)})
    metrics = Scraped(instance)

    first = await samples_of(instance, metrics)
    second = await samples_of(instance, metrics)

    delivered = second["broker_messages_delivered_total"]
    assert (501, 3) == (len(delivered), delivered["other",])
    assert first["broker_metrics_label_overflow_total"] == {(): 3}
    assert second["broker_metrics_label_overflow_total"] == {(): 6}


async def test_name_of_a_peer_can_break_no_line(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].delivered['a"b\\c\nd'] += 1

    assert (await samples_of(instance))["broker_messages_delivered_total"] == {('a"b\\c\nd',): 1}


# --- the run ---


async def test_every_figure_of_a_journal_is_a_metric_and_all_are_0_without_one(start: Any) -> None:
    snapshot = read_snapshot(await start("near"), ["run"])
    journal = JournalStatus("/flows", 1.0, 1, 2, 3, 4, 5, 6, 7, 0, "", 8, 9, 10)
    kept = structs.replace(snapshot, run=RunSnapshot(journal=journal))
    metrics = [one for one in METRICS if one.name.startswith(("broker_journal_", "broker_tracing_"))]

    assert list(range(1, 11)) == [value for one in metrics for _, value in one.read(Scrape(kept))]
    assert [0] * 10 == [value for one in metrics for _, value in one.read(Scrape(snapshot))]


async def test_lag_is_the_clock_s(start: Any) -> None:
    instance = await start("near")
    instance.lag.record(0.25)

    samples = await samples_of(instance)

    assert samples["broker_event_loop_lag_seconds"] == {(): 0.25}


async def test_task_that_dies_is_counted(start: Any, until: Any) -> None:
    instance = await start("near")
    before = await samples_of(instance)
    next(task for task in asyncio.all_tasks() if task.get_name() == "near poll").cancel()
    await until(lambda: instance.supervision.failures["near poll"])

    samples = await samples_of(instance)

    assert before["broker_task_failures_total"]["near poll",] == 0
    assert samples["broker_task_failures_total"]["near poll",] == 1
    assert samples["broker_task_failures_total"]["peers tick",] == 0


async def test_file_that_cannot_be_read_is_left_out(start: Any) -> None:
    instance = await start("near")
    endpoint = instance.endpoints["near"]
    endpoint.path = endpoint.path.with_name("absent.db")

    samples = await samples_of(instance)

    assert not {"broker_transmission_queue_messages", "broker_ledger_messages"} & samples.keys()


async def test_transactions_are_timed(start: Any, send: Any, until: Any) -> None:
    target = await start("target", msdb="CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'")
    route = f"CREATE ROUTE r WITH SERVICE_NAME = '//target', ADDRESS = 'tcp://127.0.0.1:{target.listeners[0].port}'"
    near = await start("near", route)
    send(near, "//target")
    await until(lambda: target.endpoints["target"].delivered["//target"])

    samples = await samples_of(target)

    assert samples["broker_store_commit_seconds_count"]["target",] >= 1
    assert 0 < samples["broker_store_commit_seconds_sum"]["target",] < 20


# --- what passes ---


async def test_every_reason_for_a_drop_is_there_from_the_start(start: Any) -> None:
    samples = await samples_of(await start("near"))

    expected = {(one.value,) for one in Disposition} - {("forwarded",), ("delivered",)}
    assert expected == samples["broker_messages_dropped_total"].keys()


async def test_messages_are_counted_on_their_way_through_a_gateway(start: Any, send: Any, until: Any) -> None:
    target = await start("target", msdb="CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'")
    address = f"tcp://127.0.0.1:{target.listeners[0].port}"
    gateway = await start("gateway", msdb=f"CREATE ROUTE next WITH SERVICE_NAME = '//target', ADDRESS = '{address}'")
    first = f"tcp://127.0.0.1:{gateway.listeners[0].port}"
    near = await start("near", f"CREATE ROUTE r WITH SERVICE_NAME = '//target', ADDRESS = '{first}'")
    send(near, "//target", messages=3)
    await until(lambda: target.endpoints["target"].delivered["//target"] == 3)

    at_near, at_gateway, at_target = await samples_of(near), await samples_of(gateway), await samples_of(target)

    assert at_near["broker_messages_received_total"]["", "message"] >= 3
    assert at_near["broker_transmission_queue_messages"] == {("near",): 3}  # no answer finds its way back
    assert at_near["broker_transmission_queue_oldest_seconds"]["near",] > 0
    assert at_near["broker_ledger_messages"] == {("near", "sent"): 3, ("near", "acknowledged"): 0, ("near", "held"): 3}
    assert at_near["broker_ledger_unaccounted_messages"] == {("",): 0, ("near",): 0}
    sent = at_gateway["broker_messages_received_total"]["near", "message"]
    assert sent >= 3
    assert at_gateway["broker_messages_forwarded_total"] == {("next", address): sent}
    assert at_gateway["broker_connections"] == {("near", "in", "LOGGED_IN"): 1, ("target", "out", "LOGGED_IN"): 1}
    assert at_gateway["broker_route_up"] == {("next", address): 1}
    assert at_target["broker_messages_delivered_total"] == {("//target",): 3}


async def test_what_a_closed_link_brought_stays_counted(start: Any, send: Any, until: Any) -> None:
    target = await start("target")
    route = f"CREATE ROUTE r WITH SERVICE_NAME = '//target', ADDRESS = 'tcp://127.0.0.1:{target.listeners[0].port}'"
    near = await start("near", route)
    send(near, "//target")
    await until(lambda: target.forwarder.received)
    (link,) = list(target.peers.links.values())

    link.close("for the test")
    samples = await samples_of(target)

    assert samples["broker_messages_received_total"]["near", "message"] >= 1


async def test_drops_are_counted_by_reason(start: Any, take: Any) -> None:
    gateway = await start("gateway")
    take(gateway)
    gateway.endpoints["gateway"].dropped[Disposition.DUPLICATE] += 2

    samples = await samples_of(gateway)

    assert samples["broker_messages_dropped_total"]["no route",] == 1
    assert samples["broker_messages_dropped_total"]["duplicate",] == 2
    assert samples["broker_duplicates_total"] == {(): 2}


async def test_held_frames_fill_the_pool(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)

    samples = await samples_of(gateway)

    assert samples["broker_forward_pool_messages"] == {(): 1}
    assert samples["broker_forward_pool_bytes"][()] > 114


async def test_retransmits_are_counted(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].transmitter.resent_to["tcp://gateway:4022"] += 4

    assert (await samples_of(instance))["broker_retransmits_total"] == {("tcp://gateway:4022",): 4}


async def test_peer_that_breaks_a_rule_is_counted(start: Any, until: Any) -> None:
    instance = await start("near")
    reader, writer = await asyncio.open_connection("127.0.0.1", instance.listeners[0].port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await until(lambda: instance.peers.protocol_errors)
    writer.close()
    del reader

    samples = await samples_of(instance)

    assert sum(samples["broker_peer_faults_total"].values()) == 1


async def test_kinds_of_later_versions_have_one_word(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].transmitter.received[OTHER_KIND] += 1

    assert (await samples_of(instance))["broker_messages_received_total"] == {("", "other"): 1}


async def test_metrics_say_which_address_is_the_principal(start: Any) -> None:
    """Neither, while none is known."""
    snapshot = read_snapshot(await start("near"), ())
    pair, seen = MirroredPair("//billing", UUID(int=1), A, B), (AddressState(), AddressState())
    known = MirrorSnapshot("R", pair, 2, "PRINCIPAL_ONLY", A, 3, seen, None, "", 0, 0)
    unknown = structs.replace(known, state=3, principal=None)
    found = []
    for mirror in (unknown, known):
        scrape = Scrape(structs.replace(snapshot, mirrors=(mirror,)))
        samples = {one.name: dict(one.read(scrape)) for one in METRICS if one.name.startswith("broker_mirror_")}
        found.append((samples["broker_mirror_principal"], samples["broker_mirror_state"]))

    first, second = ("R", "tcp://a:4022"), ("R", "tcp://b:4022")
    assert [({first: 0, second: 0}, {("R",): 3}), ({first: 1, second: 0}, {("R",): 2})] == found


async def test_frames_of_forgotten_addresses_stay_counted(start: Any) -> None:
    gateway = await start("gateway")
    gateway.forwarder.retired_frames = 7

    assert (await samples_of(gateway))["broker_messages_forwarded_total"] == {("other", "other"): 7}


async def test_time_at_a_gateway_and_round_trips_are_told(start: Any, send: Any, until: Any) -> None:
    target = await start("target", msdb="CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'")
    address = f"tcp://127.0.0.1:{target.listeners[0].port}"
    near = await start("near", f"CREATE ROUTE r WITH SERVICE_NAME = '//target', ADDRESS = '{address}'")
    send(near, "//target", messages=3)
    await until(lambda: target.endpoints["target"].delivered["//target"] == 3)

    at_near, at_target = await samples_of(near), await samples_of(target)

    received = sum(at_target["broker_messages_received_total"].values())
    assert at_target["broker_hop_duration_seconds_count"] == {(): received}
    assert at_near["broker_hop_duration_seconds_sum"][()] < 20
    near.endpoints["near"].transmitter.round_trips[NetworkAddress("far", 1), 3] += 2
    near.endpoints["near"].transmitter.round_trips[NetworkAddress("far", 1), MICROSECONDS] += 500
    trips = await samples_of(near)
    assert trips["broker_ack_roundtrip_seconds_count"]["tcp://far:1",] == 2
    assert trips["broker_ack_roundtrip_seconds_sum"]["tcp://far:1",] == 0.0005


# --- the lag of the loop ---


def test_loop_that_was_never_looked_at_has_no_lag() -> None:
    assert LoopLag().seconds == 0.0


def test_worst_tick_is_told() -> None:
    lag = LoopLag()
    for late in (0.001, 0.2, 0.003):
        lag.record(late)

    assert lag.seconds == 0.2


def test_early_tick_counts_as_punctual() -> None:
    lag = LoopLag()
    lag.record(-0.01)

    assert lag.seconds == 0.0


def test_old_ticks_are_forgotten() -> None:
    lag = LoopLag()
    lag.record(5.0)
    for _ in range(WINDOW_TICKS):
        lag.record(0.0)

    assert lag.seconds == 0.0


async def test_time_is_kept_until_the_stack_ends_it() -> None:
    lag = LoopLag()

    async with AsyncExitStack() as stack:
        lag.start(stack)
        keeping = [task for task in asyncio.all_tasks() if task.get_name() == "loop lag"]
        await asyncio.sleep(0)

    assert [True] == [task.cancelled() for task in keeping]


async def test_blocked_loop_is_noticed() -> None:
    lag = LoopLag()
    task = asyncio.create_task(lag.run())
    await asyncio.sleep(0)  # the first tick is asked for

    time.sleep(2 * TICK_SECONDS)  # noqa: ASYNC251 - blocking the loop is what this is about
    async with asyncio.timeout(10):
        while not lag.seconds:  # noqa: ASYNC110 - it sets no event
            await asyncio.sleep(0.001)

    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert lag.seconds >= TICK_SECONDS / 2


# --- kinds, histograms and the bound on labels ---


def _nothing(_: Scrape) -> Samples:
    return ()


PARTS = ("_bucket", "_sum", "_count")


@pytest.mark.parametrize(
    ("metric", "kind", "only_grows", "scraped"),
    [
        (MetricDefinition("a_total", "help", _nothing), "counter", True, ("a_total",)),
        (MetricDefinition("a_bytes", "help", _nothing), "gauge", False, ("a_bytes",)),
        (
            MetricDefinition("a_seconds", "help", _nothing, is_histogram=True),
            "histogram",
            True,
            tuple("a_seconds" + one for one in PARTS),
        ),
    ],
)
def test_kind(metric: MetricDefinition, kind: str, only_grows: bool, scraped: tuple[str, ...]) -> None:  # noqa: FBT001 - a case
    assert (metric.kind, metric.is_counter, metric.sample_names) == (kind, only_grows, scraped)


METRIC = MetricDefinition("a_seconds", "help", _nothing, ("peer",), is_histogram=True)


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

    merged = LabelCap(values_max=0).merge("other", parts, operator.add)
    kept = LabelCap().merge("a_seconds", [*parts, *parts], operator.add)

    assert set(merged.values()) == {sum(value for _, value in parts)}
    assert (kept["a", BUCKETS[0]], kept["b", BUCKETS[0]], kept["b", SUM]) == (2, 4, 3.0)


def test_metric_without_samples_has_none() -> None:
    assert histogram_family(METRIC, {}).samples == []


def test_values_within_the_bound_are_told() -> None:
    merged = LabelCap(2).merge("m", [(("a",), 1), (("b",), 2)], operator.add)

    assert merged == {("a",): 1, ("b",): 2}


def test_samples_with_equal_labels_are_one() -> None:
    merged = LabelCap(2).merge("m", [(("a",), 1), (("a",), 2)], operator.add)

    assert merged == {("a",): 3}


@pytest.mark.parametrize(("merge", "expected"), [(operator.add, 7), (min, 3), (max, 4)])
def test_values_past_the_bound_are_one(merge: Merge, expected: float) -> None:
    cap = LabelCap(1)

    merged = cap.merge("m", [(("a",), 1), (("b",), 3), (("c",), 4)], merge)

    assert merged == {("a",): 1, (OTHER,): expected}
    assert cap.overflows == 2


def test_first_values_stay_the_first() -> None:
    """A counter never moves from its series to another, whatever order it comes in."""
    cap = LabelCap(1)
    cap.merge("m", [(("a",), 1)], operator.add)

    merged = cap.merge("m", [(("b",), 3), (("a",), 2)], operator.add)

    assert merged == {(OTHER,): 3, ("a",): 2}


def test_every_label_of_every_metric_has_a_bound_of_its_own() -> None:
    cap = LabelCap(1)

    cap.merge("m", [(("a", "b"), 1)], operator.add)
    merged = cap.merge("n", [(("c", "d"), 1)], operator.add)

    assert merged == {("c", "d"): 1}


def test_labels_without_values_are_let_through() -> None:
    assert LabelCap().merge("m", [((), 1)], operator.add) == {(): 1}


MANY = 10_000
BYTES_MAX = 4 * 1024 * 1024  # of the text, with every label full


async def test_ten_thousand_of_everything_are_five_hundred_and_the_rest(start: Any) -> None:
    routes = "".join(
        f"CREATE ROUTE r{n} WITH SERVICE_NAME = '//far/{n}', ADDRESS = 'tcp://10.{n // 250}.0.{n % 250 + 1}:4022';"
        for n in range(MANY)
    )
    instance = await start("near", msdb=routes)
    endpoint = instance.endpoints["near"]
    endpoint.delivered.update({f"//s{n}": 1 for n in range(MANY)})
    endpoint.transmitter.resent_to.update({f"tcp://p{n}:1": 1 for n in range(MANY)})
    for n in range(MANY):
        endpoint.transmitter.round_trips[NetworkAddress(f"p{n}", 1), 5] = 1
    instance.peers.frame_counts._closed.update({f"peer {n}": Counter({0x10: 1}) for n in range(MANY)})
    scraped = Scraped(instance)

    samples = await samples_of(instance, scraped)
    again = await text_of(scraped)

    for metric, parts in {
        "broker_messages_delivered_total": 1,
        "broker_retransmits_total": 1,
        "broker_ack_roundtrip_seconds_count": 1,
    }.items():
        assert len(samples[metric]) == (VALUES_MAX + 1) * parts
        assert samples[metric][OTHER,] == MANY - VALUES_MAX
    assert len(samples["broker_route_up"]) <= 2 * VALUES_MAX + 1
    assert sum(samples["broker_messages_received_total"].values()) >= MANY
    assert len({peer for peer, _ in samples["broker_messages_received_total"]}) <= VALUES_MAX + 2
    assert samples["broker_metrics_label_overflow_total"][()] > 3 * (MANY - VALUES_MAX)
    assert len(again) < BYTES_MAX


# --- the process ---


PROCESS = [metric.name for metric in METRICS if metric.name.startswith(("process_", "python_"))]


def value(name: str) -> float:
    ((_, found),) = process_samples()[name]
    return found


def test_every_metric_has_its_value() -> None:
    samples = process_samples()

    assert set(samples) == set(PROCESS)
    assert all(found > 0 for name, some in samples.items() for _, found in some if name.startswith("process_"))


def test_descriptor_that_is_opened_is_counted() -> None:
    before = value("process_open_fds")

    with Path(os.devnull).open():
        assert value("process_open_fds") == before + 1


def test_work_is_counted() -> None:
    before = value("process_cpu_seconds_total")
    began = time.process_time()
    while time.process_time() - began < 0.02:
        pass

    assert value("process_cpu_seconds_total") >= before + 0.02


def test_process_was_started_before_now_and_after_its_machine() -> None:
    boot = time.time() - float(Path("/proc/uptime").read_text().split()[0])

    assert boot - 2 <= value("process_start_time_seconds") <= time.time() + 1


def test_what_a_system_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_SELF", tmp_path)

    missing = set(PROCESS) - process_samples().keys()

    assert missing == {
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
    }


# --- which routes can be used ---


NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B = NetworkAddress("a"), NetworkAddress("b")


def _route(
    name: str,
    address: NetworkAddress | Keyword,
    *,
    mirror: NetworkAddress | None = None,
    lifetime: datetime | None = None,
) -> Route:
    return Route(name=name, address=address, mirror_address=mirror, lifetime=lifetime)


def _table(*routes: Route) -> RouteTable:
    return build_table(routes, now=NOW)


def test_route_is_up_until_its_address_is_down() -> None:
    metric = RouteUp(LabelCap())
    tables = (_table(_route("r", A), _route("s", B)),)

    before = metric.samples(RoutesSnapshot(tables), now=NOW)
    after = metric.samples(RoutesSnapshot(tables, frozenset({A})), now=NOW)

    assert before == {("r", "tcp://a:4022"): 1, ("s", "tcp://b:4022"): 1}
    assert after == {("r", "tcp://a:4022"): 0, ("s", "tcp://b:4022"): 1}


def test_both_addresses_of_a_mirrored_route_are_told_of_route_up() -> None:
    samples = RouteUp(LabelCap()).samples(RoutesSnapshot((_table(_route("m", A, mirror=B)),), frozenset({B})), now=NOW)

    assert samples == {("m", "tcp://a:4022"): 1, ("m", "tcp://b:4022"): 0}


@pytest.mark.parametrize("keyword", [LOCAL, TRANSPORT])
def test_route_without_an_address_is_not_told(keyword: Keyword) -> None:
    assert RouteUp(LabelCap()).samples(RoutesSnapshot((_table(_route("r", keyword)),)), now=NOW) == {}


def test_route_is_told_until_it_expires() -> None:
    metric = RouteUp(LabelCap())
    soon, later = NOW + timedelta(seconds=1), NOW + timedelta(seconds=9)
    tables = (_table(_route("later", B, lifetime=later), _route("soon", A, lifetime=soon), _route("r", A)),)

    names = [
        sorted(name for name, _ in metric.samples(RoutesSnapshot(tables), now=now))
        for now in (NOW, soon, later - timedelta.resolution, later)
    ]

    assert names == [["later", "r", "soon"], ["later", "r"], ["later", "r"], ["r"]]


def test_change_of_routes_is_seen() -> None:
    metric = RouteUp(LabelCap())
    kept = _table(_route("r", A))
    metric.samples(RoutesSnapshot((kept, _table(_route("old", A)))), now=NOW)

    samples = metric.samples(RoutesSnapshot((kept, _table(_route("new", B)))), now=NOW)

    assert samples.keys() == {("r", "tcp://a:4022"), ("new", "tcp://b:4022")}


def test_routes_are_walked_once_for_each_change() -> None:
    """A million routes must not be walked by every scrape."""
    cap = LabelCap(1)
    metric = RouteUp(cap)
    tables = (_table(_route("r", A), _route("s", A)),)

    for _ in range(3):
        metric.samples(RoutesSnapshot(tables), now=NOW)

    assert cap.overflows == 1


def test_no_more_routes_of_a_table_are_walked_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUTES_MAX", 2)
    tables = (_table(*(_route(name, A) for name in "abc")), _table(_route("d", A)))

    samples = RouteUp(LabelCap()).samples(RoutesSnapshot(tables), now=NOW)

    assert {name for name, _ in samples} == {"a", "b", "d"}


def test_routes_past_the_bound_are_one_that_is_down_when_any_is() -> None:
    metric = RouteUp(LabelCap(1))
    tables = (_table(_route("r", A), _route("s", A), _route("t", B)),)

    up = metric.samples(RoutesSnapshot(tables), now=NOW)
    down = metric.samples(RoutesSnapshot(tables, frozenset({B})), now=NOW)

    assert up == {("r", "tcp://a:4022"): 1, ("other", "tcp://a:4022"): 1, ("other", "other"): 1}
    assert down == {("r", "tcp://a:4022"): 1, ("other", "tcp://a:4022"): 1, ("other", "other"): 0}


def test_others_have_their_turn_while_a_large_table_is_walked() -> None:
    """Nobody is made to give up the interpreter's lock here, so whoever gets it meanwhile was given it."""
    tables = (_table(*(_route(f"r{number}", A) for number in range(10 * module.SLICE_ROUTES))),)
    turns, interval = 0, sys.getswitchinterval()
    walk = Thread(target=RouteUp(LabelCap()).samples, args=(RoutesSnapshot(tables),), kwargs={"now": NOW})
    sys.setswitchinterval(60.0)
    try:
        walk.start()
        while walk.is_alive():
            turns += 1
            time.sleep(0)
    finally:
        sys.setswitchinterval(interval)

    assert turns >= 10
