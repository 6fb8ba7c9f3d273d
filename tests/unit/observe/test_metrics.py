""""""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from broker.dialog.send_queue import MICROSECONDS
from broker.flow import Disposition
from broker.forwarding.fib import OTHER_KIND
from broker.forwarding.kernels import choose_kernel
from broker.net.peer_table import DialHistory
from broker.observe import metrics as metrics_module
from broker.observe import metrics as process
from broker.observe import metrics as process_module
from broker.observe import metrics as route_up
from broker.observe.loop_lag import TICK_SECONDS, WINDOW_TICKS, LoopLag
from broker.observe.metrics import (
    FORWARDED,
    JOURNAL_METRICS,
    METRICS,
    PART_SAMPLES,
    PROCESS_METRICS,
    READ_ON_THE_LOOP,
    RouteUp,
    journal_readers,
    process_samples,
    read_metrics,
    run_readers,
)
from broker.observe.samples import LabelCap
from broker.routing.address import LOCAL, TRANSPORT, Keyword, NetworkAddress
from broker.routing.route import Route
from broker.routing.table import RouteChange, RouteTable, build_table
from tests.support.scraped import Scraped, samples_of, text_of

# --- test_journal ---
# Every number of a journal's status is a metric, and all are 0 where none is kept.


STATUS = {
    "records": 1, "pending": 2, "shed": 3, "files": 4, "bytes": 5, "errors": 6, "removed_files": 7,
    "spans": 8, "spans_pending": 9, "spans_dropped": 10, "directory": "/flows", "sample": 1.0, "problem": "",
}  # fmt: skip


def told(journal: Any) -> list[float]:
    instance: Any = SimpleNamespace(journal=journal)
    readers = journal_readers()
    return [value for metric in JOURNAL_METRICS for _, value in readers[metric.name](instance)]


def test_metrics_are_what_the_status_says() -> None:
    assert list(range(1, 11)) == told(SimpleNamespace(status=lambda: STATUS))


def test_without_a_journal_they_are_all_nothing() -> None:
    assert [0.0] * 10 == told(None)


def test_loop_that_was_never_looked_at_has_no_lag() -> None:
    assert LoopLag().seconds == 0.0


def test_worst_tick_is_told() -> None:
    lag = LoopLag()
    for late in (0.001, 0.2, 0.003):
        lag.note(late)

    assert lag.seconds == 0.2


def test_early_tick_counts_as_punctual() -> None:
    lag = LoopLag()
    lag.note(-0.01)

    assert lag.seconds == 0.0


def test_old_ticks_are_forgotten() -> None:
    lag = LoopLag()
    lag.note(5.0)
    for _ in range(WINDOW_TICKS):
        lag.note(0.0)

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


PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
CONTRACT = {
    "broker_build_info": (),
    "broker_connections": ("peer", "direction", "state"),
    "broker_messages_received_total": ("peer", "kind"),
    "broker_messages_forwarded_total": ("route", "peer"),
    "broker_messages_delivered_total": ("service",),
    "broker_messages_dropped_total": ("reason",),
    "broker_forward_pool_bytes": (),
    "broker_forward_pool_limit_bytes": (),
    "broker_forward_share_exceeded_total": (),
    "broker_forward_pool_messages": (),
    "broker_route_up": ("route", "address"),
    "broker_retransmits_total": ("peer",),
    "broker_duplicates_total": (),
    "broker_transmission_queue_messages": ("database",),
    "broker_transmission_queue_oldest_seconds": ("database",),
    "broker_ledger_messages": ("database", "entry"),
    "broker_ledger_unaccounted_messages": ("database",),
    "broker_event_loop_lag_seconds": (),
    "broker_metrics_label_overflow_total": (),
}
DEAD_ROUTE = "CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://127.0.0.1:1'"

# --- the contract ---


@pytest.mark.parametrize(("name", "labels"), CONTRACT.items())
def test_promised_metric_is_there_with_its_labels(name: str, labels: tuple[str, ...]) -> None:
    (metric,) = (metric for metric in METRICS if metric.name == name)

    assert name == "broker_build_info" or labels == metric.labels


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


async def test_both_addresses_of_a_mirrored_route_are_told(start: Any) -> None:
    script = (
        "CREATE ROUTE m WITH SERVICE_NAME = '//far', BROKER_INSTANCE = '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11',"
        " ADDRESS = 'tcp://a.example:1', MIRROR_ADDRESS = 'tcp://b.example:1'"
    )
    instance = await start("near", script)

    assert {("m", "tcp://a.example:1"), ("m", "tcp://b.example:1")} == (await samples_of(instance))[
        "broker_route_up"
    ].keys()


async def test_expired_route_is_not_told(start: Any) -> None:
    instance = await start("near", f"{DEAD_ROUTE.replace('ADDRESS', 'LIFETIME = 1000, ADDRESS')}")
    database = instance.catalog.databases["near"]
    (route,) = database.table.all_routes("//far")
    expired = replace(route, lifetime=datetime.now(UTC) - timedelta(seconds=1))

    database.table = database.table.changed([RouteChange(route, expired)])

    assert "broker_route_up" not in await samples_of(instance)


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


async def test_what_the_process_cannot_read_of_itself_is_left_out_of_a_scrape(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without descriptors there is no file of /proc to be read."""
    instance = await start("near")
    monkeypatch.setattr(process_module, "_SELF", Path("/nowhere"))

    samples = await samples_of(instance)

    assert not samples.get("process_resident_memory_bytes")
    assert samples["process_threads"]
    assert samples["broker_ready"] == {(): 1}


async def test_name_of_a_peer_can_break_no_line(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].delivered['a"b\\c\nd'] += 1

    assert (await samples_of(instance))["broker_messages_delivered_total"] == {('a"b\\c\nd',): 1}


@asynccontextmanager
async def others(each: Callable[[int], None] = lambda _: None) -> AsyncIterator[Callable[[], int]]:
    """Others who want the loop at every turn, and do something `each` time: gives how many turns they have had."""
    turns = 0

    async def go_on() -> None:
        nonlocal turns
        while True:
            turns += 1
            each(turns)
            await asyncio.sleep(0)

    task = asyncio.create_task(go_on())
    yield lambda: turns
    task.cancel()


async def test_reading_lets_others_have_their_turn(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = await start("near")
    monkeypatch.setattr(metrics_module, "TURN_SECONDS", 0.0)

    async with others() as turns:
        reading = await read_metrics(instance)

    assert turns() >= len(READ_ON_THE_LOOP)
    assert reading.samples.keys() == READ_ON_THE_LOOP


async def test_ten_thousand_routes_that_carry_are_read_in_many_turns_as_of_one_moment(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await start("near")
    table = instance.forwarder.table
    outbox = table.outbox(NetworkAddress("far"))

    def carry(route: str) -> None:
        table.entry_to(outbox, Disposition.FORWARDED, route, 0x10).frames = 1

    for number in range(10_000):
        carry(f"r{number}")
    monkeypatch.setattr(metrics_module, "TURN_SECONDS", 0.0)

    async with others(lambda turn: carry(f"later{turn}")) as turns:
        reading = await read_metrics(instance)

    forwarded = dict(reading.samples[FORWARDED])
    assert turns() >= len(READ_ON_THE_LOOP) + 10_000 // PART_SAMPLES
    assert {(f"r{number}", "tcp://far:4022") for number in range(10_000)} <= forwarded.keys()


# --- test_process ---
# What the process takes of its machine, as the machine tells it.


def value(name: str) -> float:
    ((_, found),) = process_samples()[name]
    return found


def test_every_metric_has_its_value() -> None:
    samples = process_samples()

    assert set(samples) == {metric.name for metric in PROCESS_METRICS}
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
    monkeypatch.setattr(process, "_SELF", tmp_path)

    missing = {metric.name for metric in PROCESS_METRICS} - process_samples().keys()

    assert missing == {
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
    }


NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B = NetworkAddress("a"), NetworkAddress("b")
NONE: frozenset[NetworkAddress] = frozenset()


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

    before = metric.samples(tables, NONE, now=NOW)
    after = metric.samples(tables, {A}, now=NOW)

    assert before == {("r", "tcp://a:4022"): 1, ("s", "tcp://b:4022"): 1}
    assert after == {("r", "tcp://a:4022"): 0, ("s", "tcp://b:4022"): 1}


def test_both_addresses_of_a_mirrored_route_are_told_of_route_up() -> None:
    samples = RouteUp(LabelCap()).samples((_table(_route("m", A, mirror=B)),), {B}, now=NOW)

    assert samples == {("m", "tcp://a:4022"): 1, ("m", "tcp://b:4022"): 0}


@pytest.mark.parametrize("keyword", [LOCAL, TRANSPORT])
def test_route_without_an_address_is_not_told(keyword: Keyword) -> None:
    assert RouteUp(LabelCap()).samples((_table(_route("r", keyword)),), NONE, now=NOW) == {}


def test_route_is_told_until_it_expires() -> None:
    metric = RouteUp(LabelCap())
    soon, later = NOW + timedelta(seconds=1), NOW + timedelta(seconds=9)
    tables = (_table(_route("later", B, lifetime=later), _route("soon", A, lifetime=soon), _route("r", A)),)

    names = [
        sorted(name for name, _ in metric.samples(tables, NONE, now=now))
        for now in (NOW, soon, later - timedelta.resolution, later)
    ]

    assert names == [["later", "r", "soon"], ["later", "r"], ["later", "r"], ["r"]]


def test_change_of_routes_is_seen() -> None:
    metric = RouteUp(LabelCap())
    kept = _table(_route("r", A))
    metric.samples((kept, _table(_route("old", A))), NONE, now=NOW)

    samples = metric.samples((kept, _table(_route("new", B))), NONE, now=NOW)

    assert samples.keys() == {("r", "tcp://a:4022"), ("new", "tcp://b:4022")}


def test_routes_are_walked_once_for_each_change() -> None:
    """A million routes must not be walked by every scrape."""
    cap = LabelCap(1)
    metric = RouteUp(cap)
    tables = (_table(_route("r", A), _route("s", A)),)

    for _ in range(3):
        metric.samples(tables, NONE, now=NOW)

    assert cap.overflows == 1


def test_no_more_routes_of_a_table_are_walked_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_up, "ROUTES_MAX", 2)
    tables = (_table(*(_route(name, A) for name in "abc")), _table(_route("d", A)))

    samples = RouteUp(LabelCap()).samples(tables, NONE, now=NOW)

    assert {name for name, _ in samples} == {"a", "b", "d"}


def test_routes_past_the_bound_are_one_that_is_down_when_any_is() -> None:
    metric = RouteUp(LabelCap(1))
    tables = (_table(_route("r", A), _route("s", A), _route("t", B)),)

    up = metric.samples(tables, NONE, now=NOW)
    down = metric.samples(tables, {B}, now=NOW)

    assert up == {("r", "tcp://a:4022"): 1, ("other", "tcp://a:4022"): 1, ("other", "other"): 1}
    assert down == {("r", "tcp://a:4022"): 1, ("other", "tcp://a:4022"): 1, ("other", "other"): 0}


def test_others_have_their_turn_while_a_large_table_is_walked() -> None:
    """Nobody is made to give up the interpreter's lock here, so whoever gets it meanwhile was given it."""
    tables = (_table(*(_route(f"r{number}", A) for number in range(10 * route_up.SLICE_ROUTES))),)
    turns, interval = 0, sys.getswitchinterval()
    walk = Thread(target=RouteUp(LabelCap()).samples, args=(tables, NONE), kwargs={"now": NOW})
    sys.setswitchinterval(60.0)
    try:
        walk.start()
        while walk.is_alive():
            turns += 1
            time.sleep(0)
    finally:
        sys.setswitchinterval(interval)

    assert turns >= 10


# --- test_run ---
# What runs, and whether its loop keeps time.


async def test_lag_is_the_clock_s(start: Any) -> None:
    instance = await start("near")
    instance.lag.note(0.25)

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


async def test_no_line_of_the_log_is_lost_at_first(start: Any) -> None:
    assert (await samples_of(await start("near")))["broker_log_lines_dropped_total"] == {(): 0}


async def test_journal_whose_writer_has_died_is_counted(start: Any) -> None:
    instance = await start("near")
    instance.journal = SimpleNamespace(status=lambda: {"failures": 1})

    told = dict(run_readers()["broker_task_failures_total"](instance))

    instance.journal = None
    assert told["journal",] == 1


# --- test_stored ---
# What waits in the files of databases, as far as they can be read.


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


# --- test_traffic ---
# What passes is told as it was counted.


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
