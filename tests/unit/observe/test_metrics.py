from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from broker.flow import Disposition
from broker.forwarding.kernels import choose_kernel
from broker.net.peer_table import DialHistory
from broker.observe import metrics as metrics_module
from broker.observe import metrics as process_module
from broker.observe.metrics import FORWARDED, METRICS, PART_SAMPLES, READ_ON_THE_LOOP, read_metrics
from broker.routing.address import NetworkAddress
from broker.routing.table import RouteChange
from tests.support.scraped import Scraped, samples_of, text_of

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
        instance.peers.attempts[NetworkAddress("127.0.0.1", 1)] = attempts

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
    ways = instance.forwarder._ways
    outbox = ways.outbox(NetworkAddress("far"))

    def carry(route: str) -> None:
        ways.to(outbox, Disposition.FORWARDED, route, 0x10).frames = 1

    for number in range(10_000):
        carry(f"r{number}")
    monkeypatch.setattr(metrics_module, "TURN_SECONDS", 0.0)

    async with others(lambda turn: carry(f"later{turn}")) as turns:
        reading = await read_metrics(instance)

    forwarded = dict(reading.samples[FORWARDED])
    assert turns() >= len(READ_ON_THE_LOOP) + 10_000 // PART_SAMPLES
    assert {(f"r{number}", "tcp://far:4022") for number in range(10_000)} <= forwarded.keys()
