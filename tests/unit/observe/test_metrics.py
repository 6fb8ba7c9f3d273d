from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.flow import Disposition
from broker.forwarding.kernel_choice import choose_kernel
from broker.forwarding.ways import OTHER_KIND
from broker.net.dialer import Attempts
from broker.observe.lag import LoopLag
from broker.observe.metrics import METRICS, Exposition, read_metrics
from broker.routing.address import NetworkAddress
from broker.routing.table import RouteChange

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
CONTRACT = {
    "broker_build_info": (),
    "broker_workers": (),
    "broker_worker_restarts_total": (),
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

Samples = dict[tuple[str, ...], float]


class _Scraped:
    """An instance that is scraped, more than once."""

    def __init__(self, instance: Any, lag: LoopLag | None = None) -> None:
        self.exposition = Exposition()
        self._instance = instance
        self._lag = lag or LoopLag()

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        return await asyncio.to_thread(self.exposition.render, read_metrics(self._instance, self._lag), accept)


async def _scrape(metrics: _Scraped, accept: str = "") -> str:
    body, _ = await metrics.scrape(accept)
    return body.decode()


async def _samples(instance: Any, metrics: _Scraped | None = None) -> dict[str, Samples]:
    """A scrape: by metric, the values by label values in the order of the contract."""
    order = {metric.name: metric.labels for metric in METRICS}
    text = await _scrape(metrics or _Scraped(instance))
    found: dict[str, Samples] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[label] for label in order[sample.name])
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


# --- the contract ---


@pytest.mark.parametrize(("name", "labels"), CONTRACT.items())
def test_promised_metric_is_there_with_its_labels(name: str, labels: tuple[str, ...]) -> None:
    (metric,) = (metric for metric in METRICS if metric.name == name)

    assert name == "broker_build_info" or labels == metric.labels


def test_page_and_code_tell_the_same() -> None:
    """Each row of the page: the name with its labels, the type, the help."""
    rows = re.findall(r"^\| `(\w+)(?:\{([\w,]+)\})?` \| (\w+) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)

    told = [(name, tuple(labels.split(",")) if labels else (), kind, text) for name, labels, kind, text in rows]

    assert told == [
        (metric.name, metric.labels, "counter" if metric.is_counter else "gauge", metric.help) for metric in METRICS
    ]


async def test_every_metric_has_its_help_before_anything_happened(start: Any) -> None:
    instance = await start("near")

    text = await _scrape(_Scraped(instance))

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
    metrics = _Scraped(await start("near"))

    _, answered = await metrics.scrape(accept)

    assert answered.startswith(content_type)


# --- what the values are ---


async def test_new_instance(start: Any) -> None:
    instance = await start("near")

    samples = await _samples(instance)

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


async def test_every_reason_for_a_drop_is_there_from_the_start(start: Any) -> None:
    samples = await _samples(await start("near"))

    expected = {(one.value,) for one in Disposition} - {("forwarded",), ("delivered",)}
    assert expected == samples["broker_messages_dropped_total"].keys()


async def test_lag_is_the_clock_s(start: Any) -> None:
    lag = LoopLag()
    lag.note(0.25)

    samples = await _samples(None, _Scraped(await start("near"), lag))

    assert samples["broker_event_loop_lag_seconds"] == {(): 0.25}


async def test_messages_are_counted_on_their_way_through_a_gateway(start: Any, send: Any, until: Any) -> None:
    target = await start("target", msdb="CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'")
    address = f"tcp://127.0.0.1:{target.listeners[0].port}"
    gateway = await start("gateway", msdb=f"CREATE ROUTE next WITH SERVICE_NAME = '//target', ADDRESS = '{address}'")
    first = f"tcp://127.0.0.1:{gateway.listeners[0].port}"
    near = await start("near", f"CREATE ROUTE r WITH SERVICE_NAME = '//target', ADDRESS = '{first}'")
    send(near, "//target", messages=3)
    await until(lambda: target.endpoints["target"].delivered["//target"] == 3)

    at_near, at_gateway, at_target = await _samples(near), await _samples(gateway), await _samples(target)

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
    samples = await _samples(target)

    assert samples["broker_messages_received_total"]["near", "message"] >= 1


async def test_drops_are_counted_by_reason(start: Any, take: Any) -> None:
    gateway = await start("gateway")
    take(gateway)
    gateway.endpoints["gateway"].dropped[Disposition.DUPLICATE] += 2

    samples = await _samples(gateway)

    assert samples["broker_messages_dropped_total"]["no route",] == 1
    assert samples["broker_messages_dropped_total"]["duplicate",] == 2
    assert samples["broker_duplicates_total"] == {(): 2}


async def test_held_frames_fill_the_pool(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb=DEAD_ROUTE)
    take(gateway)

    samples = await _samples(gateway)

    assert samples["broker_forward_pool_messages"] == {(): 1}
    assert samples["broker_forward_pool_bytes"][()] > 114


async def test_retransmits_are_counted(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].transmitter.resent_to["tcp://gateway:4022"] += 4

    assert (await _samples(instance))["broker_retransmits_total"] == {("tcp://gateway:4022",): 4}


async def test_peer_that_breaks_a_rule_is_counted(start: Any, until: Any) -> None:
    instance = await start("near")
    reader, writer = await asyncio.open_connection("127.0.0.1", instance.listeners[0].port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await until(lambda: instance.peers.faults)
    writer.close()
    del reader

    samples = await _samples(instance)

    assert sum(samples["broker_peer_faults_total"].values()) == 1


async def test_kinds_of_later_versions_have_one_word(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].transmitter.received[OTHER_KIND] += 1

    assert (await _samples(instance))["broker_messages_received_total"] == {("", "other"): 1}


async def test_frames_of_forgotten_addresses_stay_counted(start: Any) -> None:
    gateway = await start("gateway")
    gateway.forwarder.retired_frames = 7

    assert (await _samples(gateway))["broker_messages_forwarded_total"] == {("other", "other"): 7}


@pytest.mark.parametrize(
    ("attempts", "up"),
    [
        (None, 1),
        (Attempts(), 1),
        (Attempts(failures=1, problem="refused"), 0),
        (Attempts(failures=1, suppressed_until=float("inf")), 0),
    ],
)
async def test_route_is_up_until_its_address_fails(start: Any, attempts: Attempts | None, up: int) -> None:
    instance = await start("near", DEAD_ROUTE)
    if attempts is not None:
        instance.peers.attempts[NetworkAddress("127.0.0.1", 1)] = attempts

    assert (await _samples(instance))["broker_route_up"] == {("far", "tcp://127.0.0.1:1"): up}


async def test_both_addresses_of_a_mirrored_route_are_told(start: Any) -> None:
    script = (
        "CREATE ROUTE m WITH SERVICE_NAME = '//far', BROKER_INSTANCE = '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11',"
        " ADDRESS = 'tcp://a.example:1', MIRROR_ADDRESS = 'tcp://b.example:1'"
    )
    instance = await start("near", script)

    assert {("m", "tcp://a.example:1"), ("m", "tcp://b.example:1")} == (await _samples(instance))[
        "broker_route_up"
    ].keys()


async def test_expired_route_is_not_told(start: Any) -> None:
    instance = await start("near", f"{DEAD_ROUTE.replace('ADDRESS', 'LIFETIME = 1000, ADDRESS')}")
    database = instance.catalog.databases["near"]
    (route,) = database.table.all_routes("//far")
    expired = replace(route, lifetime=datetime.now(UTC) - timedelta(seconds=1))

    database.table = database.table.changed([RouteChange(route, expired)])

    assert "broker_route_up" not in await _samples(instance)


async def test_file_that_cannot_be_read_is_left_out(start: Any) -> None:
    instance = await start("near")
    endpoint = instance.endpoints["near"]
    endpoint.path = endpoint.path.with_name("absent.db")

    samples = await _samples(instance)

    assert not {"broker_transmission_queue_messages", "broker_ledger_messages"} & samples.keys()


async def test_more_values_than_a_label_may_have_are_one(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].delivered.update({f"//s{number}": 1 for number in range(503)})
    metrics = _Scraped(instance)

    first = await _samples(instance, metrics)
    second = await _samples(instance, metrics)

    delivered = second["broker_messages_delivered_total"]
    assert (501, 3) == (len(delivered), delivered["other",])
    assert first["broker_metrics_label_overflow_total"] == {(): 3}
    assert second["broker_metrics_label_overflow_total"] == {(): 6}


async def test_name_of_a_peer_can_break_no_line(start: Any) -> None:
    instance = await start("near")
    instance.endpoints["near"].delivered['a"b\\c\nd'] += 1

    assert (await _samples(instance))["broker_messages_delivered_total"] == {('a"b\\c\nd',): 1}
