"""Metrics: what each is read from, the text of a scrape, the bound on labels, and what the process says of itself."""

import asyncio
import operator
import os
import re
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs
from prometheus_client.core import Sample

from broker.dialog.send_queue import MICROSECONDS
from broker.flow import Disposition
from broker.forwarding.fib import OTHER_KIND
from broker.forwarding.kernels import choose_kernel
from broker.observe import metrics as module
from broker.observe.database_stats import SideCounts
from broker.observe.instance import TICK_SECONDS, WINDOW_TICKS, LoopLag
from broker.observe.metrics import (
    BUCKETS,
    METRICS,
    OTHER,
    VALUES_MAX,
    LabelCap,
    Merge,
    MetricDefinition,
    RouteUp,
    Scrape,
    histogram_family,
    process_samples,
)
from broker.observe.snapshot import DatabaseSnapshot, MirrorSnapshot, RoutesSnapshot, RunSnapshot, read_snapshot
from broker.observe.status import DatabaseStatus, JournalStatus, MirrorStatus
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.mirrored import AddressState
from broker.routing.route import MirroredPair, Route
from broker.routing.table import RouteTable, build_table
from tests.support.loopback import until
from tests.support.scraped import Scraped, samples_of, text_of

DEAD_ROUTE = "CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://127.0.0.1:1'"
LOCAL_ROUTE = "CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'"


async def test_new_instance_has_every_metric_and_form_is_negotiated(start: Any) -> None:
    instance = await start("near")
    scraped = Scraped(instance)
    samples, text = await samples_of(instance), await text_of(scraped)
    forms = [(await scraped.scrape(accept))[1] for accept in ("", "text/html", "application/openmetrics-text")]

    assert [metric.name for metric in METRICS] == re.findall(r"^# HELP (\w+) .{10,}", text, re.MULTILINE)
    assert ["text/plain; version=0.0.4; charset=utf-8"] * 2 == forms[:2]
    assert forms[2].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    ((software, _, loop, kernel),) = samples["broker_build_info"]
    assert (instance.software, "asyncio", choose_kernel().name) == (software, loop, kernel)
    dropped = {(one.value,): 0.0 for one in set(Disposition) - {Disposition.FORWARDED, Disposition.DELIVERED}}
    assert {
        "broker_ready": {(): 1},
        "broker_forward_pool_limit_bytes": {(): 64 * 1024 * 1024},
        "broker_transmission_queue_messages": {("near",): 0},
        "broker_transmission_queue_oldest_seconds": {("near",): 0},
        "broker_metrics_label_overflow_total": {(): 0},
        "broker_duplicates_total": {(): 0},
        "broker_ledger_unaccounted_messages": {("",): 0, ("near",): 0},
        "broker_messages_dropped_total": dropped,
    }.items() <= samples.items()


@pytest.mark.promise("R6.5")
async def test_figures_of_a_snapshot_are_metrics(start: Any) -> None:
    """The journal's are all 0 without one; of a pair neither address is the principal while none is known."""
    snapshot = read_snapshot(await start("near"), ["run"])
    journal = JournalStatus("/flows", 1.0, 1, 2, 3, 4, 5, 6, 7, 0, "", 8, 9, 10)
    pair, seen = MirroredPair("//billing", UUID(int=1), A, B), (AddressState(), AddressState())
    known = MirrorSnapshot(MirrorStatus("R", principal=str(A)), pair, 2, *seen, None)
    unknown = MirrorSnapshot(MirrorStatus("R"), pair, 3, *seen, None)

    def read(prefixes: tuple[str, ...], **parts: Any) -> list[dict[Any, float]]:
        scrape = Scrape(structs.replace(snapshot, **parts))
        return [dict(one.read(scrape)) for one in METRICS if one.name.startswith(prefixes)]

    databases = (("near", DatabaseSnapshot(DatabaseStatus(replaced="x"), write_lock_s=2.5)),)
    assert [{("near",): 2.5}, {("near",): 1}] == read(
        ("broker_store_write_lock", "broker_database_replaced"), databases=databases
    )
    kept = read(("broker_journal_", "broker_tracing_"), run=RunSnapshot(journal=journal))
    assert [{(): number} for number in range(1, 11)] == kept
    assert [{(): 0}] * 10 == read(("broker_journal_", "broker_tracing_"))
    first, second = ("R", "tcp://a:4022"), ("R", "tcp://b:4022")
    names = ("broker_mirror_principal", "broker_mirror_state")
    assert [{first: 1, second: 0}, {("R",): 2}] == read(names, mirrors=(known,))
    assert [{first: 0, second: 0}, {("R",): 3}] == read(names, mirrors=(unknown,))


def test_sides_of_several_databases_add_up_and_the_oldest_counts() -> None:
    young, old = SideCounts(states=[("S", "CO", 2, 1e9)]), SideCounts(states=[("S", "CO", 3, 1000.0)])
    scrape: Any = SimpleNamespace(sides={"a": young, "b": old})

    sides, ages = (
        LabelCap().merge(one.name, one.read(scrape), one.merge)
        for one in METRICS
        if one.name in {"broker_dialogs", "broker_dialog_oldest_age_seconds"}
    )

    assert {("S", "CONVERSING"): 5} == sides
    assert ages["CONVERSING",] > 1.5e9


# --- what passes ---


async def test_messages_are_counted_and_timed_through_a_gateway(start: Any, send: Any) -> None:
    target = await start("target", msdb=LOCAL_ROUTE)
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
    assert at_gateway["broker_hop_duration_seconds_count"] == {(): sent}
    assert at_gateway["broker_hop_duration_seconds_sum"][()] < 20
    assert at_target["broker_messages_delivered_total"] == {("//target",): 3}
    assert at_target["broker_store_commit_seconds_count"]["target",] >= 1
    assert 0 < at_target["broker_store_commit_seconds_sum"]["target",] < 20
    next(link for link in gateway.peers.links.values() if link.is_accept).close("for the test")
    assert (await samples_of(gateway))["broker_messages_received_total"]["near", "message"] >= sent


async def test_drops_are_counted_by_reason_and_held_frames_fill_the_pool(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)
    take(gateway, to_service="//absent")
    gateway.endpoints["gateway"].dropped[Disposition.DUPLICATE] += 2

    samples = await samples_of(gateway)

    assert samples["broker_messages_dropped_total"]["no route",] == 1
    assert samples["broker_messages_dropped_total"]["duplicate",] == 2
    assert samples["broker_duplicates_total"] == {(): 2}
    assert samples["broker_forward_pool_messages"] == {(): 1}
    assert samples["broker_forward_pool_bytes"][()] > 114


async def test_counters_of_an_instance(start: Any) -> None:
    """Kinds of later versions have one word; frames of forgotten addresses stay counted."""
    instance = await start("near")
    transmitter = instance.endpoints["near"].transmitter
    instance.lag.record(0.25)
    transmitter.resent_to["tcp://gateway:4022"] += 4
    transmitter.received[OTHER_KIND] += 1
    transmitter.round_trips[NetworkAddress("far", 1), 3] += 2
    transmitter.round_trips[NetworkAddress("far", 1), MICROSECONDS] += 500
    instance.forwarder.retired_frames = 7

    samples = await samples_of(instance)

    assert samples["broker_event_loop_lag_seconds"] == {(): 0.25}
    assert samples["broker_retransmits_total"] == {("tcp://gateway:4022",): 4}
    assert samples["broker_messages_received_total"] == {("", "other"): 1}
    assert samples["broker_ack_roundtrip_seconds_count"] == {("tcp://far:1",): 2}
    assert samples["broker_ack_roundtrip_seconds_sum"] == {("tcp://far:1",): 0.0005}
    assert samples["broker_messages_forwarded_total"] == {("other", "other"): 7}


# --- the lag of the loop ---


def test_lag_is_the_worst_of_the_last_ticks() -> None:
    lag, found = LoopLag(), []
    for ticks in ([], [-0.01], [0.001, 0.2, 0.003], [0.0] * WINDOW_TICKS):
        for late in ticks:
            lag.record(late)
        found.append(lag.seconds)

    assert [0.0, 0.0, 0.2, 0.0] == found


async def test_blocked_loop_is_noticed() -> None:
    lag = LoopLag()
    task = asyncio.create_task(lag.run())
    await asyncio.sleep(0)  # the first tick is asked for

    time.sleep(2 * TICK_SECONDS)  # noqa: ASYNC251 - blocking the loop is what this is about
    await until(lambda: lag.seconds)
    task.cancel()

    assert lag.seconds >= TICK_SECONDS / 2


# --- histograms and the bound on labels ---


def test_text_has_every_bucket_with_all_that_is_below_it() -> None:
    metric = MetricDefinition("a_seconds", "help", labels=("peer",), is_histogram=True)

    rendered = histogram_family(metric, {("near",): (2, 3, *[0] * (len(BUCKETS) - 3), 1, 7.5)}).samples

    below = [2, *[5] * (len(BUCKETS) - 2), 6]
    buckets = [({"peer": "near", "le": le}, count) for le, count in zip(BUCKETS, below, strict=True)]
    assert rendered == [
        *(Sample("a_seconds_bucket", *bucket) for bucket in buckets),
        Sample("a_seconds_count", {"peer": "near"}, 6),
        Sample("a_seconds_sum", {"peer": "near"}, 7.5),
    ]
    assert histogram_family(metric, {}).samples == []


@pytest.mark.parametrize(("merge", "expected"), [(operator.add, 7), (min, 3), (max, 4)])
def test_values_past_the_bound_are_one(merge: Merge, expected: float) -> None:
    cap = LabelCap(1)

    merged = cap.merge("m", [(("a",), 1), (("b",), 3), (("c",), 4)], merge)

    assert merged == {("a",): 1, (OTHER,): expected}
    assert cap.overflows == 2


def test_first_values_stay_the_first_and_each_label_of_each_metric_has_its_bound() -> None:
    """A counter never moves from its series to another, whatever order it comes in."""
    cap = LabelCap(1)
    cap.merge("m", [(("a", "b"), 1)], operator.add)

    assert {(OTHER, OTHER): 3, ("a", "b"): 2} == cap.merge("m", [(("c", "d"), 3), (("a", "b"), 2)], operator.add)
    assert {("c", "d"): 1} == cap.merge("n", [(("c", "d"), 1)], operator.add)
    assert {(): 1} == cap.merge("o", [((), 1)], operator.add)


MANY = VALUES_MAX + 100
BYTES_MAX = 4 * 1024 * 1024  # of the text, with every label full


@pytest.mark.promise("A metric has the label value other")
async def test_many_of_everything_are_five_hundred_and_the_rest(start: Any) -> None:
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
    again = await samples_of(instance, scraped)

    for metric in ("broker_messages_delivered_total", "broker_retransmits_total", "broker_ack_roundtrip_seconds_count"):
        assert (VALUES_MAX + 1, MANY - VALUES_MAX) == (len(samples[metric]), samples[metric][OTHER,])
    assert len(samples["broker_route_up"]) <= 2 * VALUES_MAX + 1
    assert sum(samples["broker_messages_received_total"].values()) >= MANY
    assert len({peer for peer, _ in samples["broker_messages_received_total"]}) <= VALUES_MAX + 2
    overflows = [one["broker_metrics_label_overflow_total"][()] for one in (samples, again)]
    assert overflows[1] - 3 * (MANY - VALUES_MAX) > overflows[0] > 3 * (MANY - VALUES_MAX)
    assert len(await text_of(scraped)) < BYTES_MAX


# --- the process ---


def test_process_has_every_value() -> None:
    before, began = process_samples(), time.process_time()
    while time.process_time() - began < 0.05:
        pass
    with Path(os.devnull).open():
        after = process_samples()
    names = {metric.name for metric in METRICS if metric.name.startswith(("process_", "python_"))}

    assert names <= before.keys()
    assert all(found > 0 for name, some in before.items() for _, found in some if name.startswith("process_"))
    grown = {name: after[name][0][1] - before[name][0][1] for name in names}
    assert 1 == grown["process_open_fds"]
    assert 0.03 <= grown["process_cpu_seconds_total"]
    assert 0 < time.time() - before["process_start_time_seconds"][0][1] < 86400 * 365


# --- which routes can be used ---


NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B = NetworkAddress("a"), NetworkAddress("b")


def _table(*routes: Route) -> RouteTable:
    return build_table(routes, now=NOW)


def up(metric: RouteUp, *tables: RouteTable, down: tuple[NetworkAddress, ...] = (), now: datetime = NOW) -> Any:
    return metric.samples(RoutesSnapshot(tables, frozenset(down)), now=now)


@pytest.mark.promise("R6.5")
def test_route_is_up_until_its_address_is_down() -> None:
    """Both addresses of a mirrored route count; a route without an address has no sample."""
    metric = RouteUp(LabelCap())
    table = _table(Route("r", A), Route("m", A, mirror_address=B), Route("l", LOCAL), Route("t", TRANSPORT))

    before, after = up(metric, table), up(metric, table, down=(A,))

    r, first, second = ("r", "tcp://a:4022"), ("m", "tcp://a:4022"), ("m", "tcp://b:4022")
    assert before == {r: 1, first: 1, second: 1}
    assert after == {r: 0, first: 0, second: 1}


def test_route_is_exported_until_it_expires() -> None:
    metric = RouteUp(LabelCap())
    soon, later = NOW + timedelta(seconds=1), NOW + timedelta(seconds=9)
    table = _table(Route("later", B, lifetime=later), Route("soon", A, lifetime=soon), Route("r", A))

    names = [
        sorted(name for name, _ in up(metric, table, now=now))
        for now in (NOW, soon, later - timedelta.resolution, later)
    ]

    assert names == [["later", "r", "soon"], ["later", "r"], ["later", "r"], ["r"]]


def test_change_of_routes_is_seen() -> None:
    metric, kept = RouteUp(LabelCap()), _table(Route("r", A))
    up(metric, kept, _table(Route("old", A)))

    samples = up(metric, kept, _table(Route("new", B)))

    assert samples.keys() == {("r", "tcp://a:4022"), ("new", "tcp://b:4022")}


def test_routes_past_the_bound_are_one_that_is_down_when_any_is() -> None:
    cap = LabelCap(1)
    metric, table = RouteUp(cap), _table(Route("r", A), Route("s", A), Route("t", B))

    before, after = up(metric, table), up(metric, table, down=(B,))

    assert cap.overflows == 3  # the table is walked once for each change
    assert before == {("r", "tcp://a:4022"): 1, ("other", "tcp://a:4022"): 1, ("other", "other"): 1}
    assert after == {("r", "tcp://a:4022"): 1, ("other", "tcp://a:4022"): 1, ("other", "other"): 0}


@pytest.mark.promise("A metric has the label value other")
def test_others_have_their_turn_while_a_large_table_is_walked() -> None:
    """No thread is made to give up the interpreter's lock here."""
    tables = (_table(*(Route(f"r{number}", A) for number in range(10 * module.SLICE_ROUTES))),)
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
