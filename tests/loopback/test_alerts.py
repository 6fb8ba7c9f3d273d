"""
Alerts by real trouble: the daemon is in it, and its own `/metrics` has the value that the rule looks at.

`tests/prometheus` has a real Prometheus judge the rules; here are those of which a healthy network shows nothing.
"""

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from operator import gt

import pytest
from prometheus_client.parser import text_string_to_metric_families

from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.loopback import ORDERS, route, send, service
from tests.support.prometheus import fetch
from tests.support.shipped import ALERTS

SECONDS = 30.0
FAR = ("//far/1", "//far/2")
BODY, MESSAGES = bytes(32 * 1024), 30  # for each next hop: more than its half of the pool
SMALL = {"message_forward_size": "1MiB", "max_frame": "256KiB", "backpressure": "0s", "handshake_timeout": "5m"}


@dataclass(frozen=True)
class Place:
    """A gateway whose next hops take nothing, and who sends to them."""

    gateway: Daemon
    orders: Daemon


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ExitStack() as stack:
        net = stack.enter_context(Topology(tmp_path_factory.mktemp("trouble")))
        gateway = net.add("gateway", forwarding=True, settings={"endpoint": SMALL})
        orders = net.add("orders", databases=["orders"])
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in FAR]
        ports = [one.getsockname()[1] for one in silent]
        routes = [route(to, to, f"tcp://127.0.0.1:{port}") for to, port in zip(FAR, ports, strict=True)]
        net.script("gateway", "msdb", "".join(routes))
        net.script("orders", "orders", service(ORDERS) + "".join(route(to, to, gateway.address) for to in FAR))
        net.start()
        yield Place(gateway, orders)


@pytest.fixture(scope="module")
def pressed(place: Place) -> Place:
    """More than the gateway may hold has been sent."""
    for to in FAR:
        for _ in range(MESSAGES):
            send(place.orders, BODY, to=to)
    return place


def scraped(daemon: Daemon) -> dict[str, dict[str, float]]:
    """The samples of a scrape: by metric, the values by what the labels say."""
    text, _ = fetch(f"http://127.0.0.1:{daemon.observe_port}/metrics")
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[",".join(sample.labels.values())] = sample.value
    return found


def threshold(alert: str, compared: str) -> float:
    """What the shipped rule compares an expression with."""
    (expression,) = [" ".join(rule["expr"].split()) for rule in ALERTS if rule["alert"] == alert]
    found = re.match(rf"{re.escape(compared)} (?:>|!=|==) ([\d.]+)", expression)
    assert found, expression
    return float(found[1])


def comes_true(daemon: Daemon, holds: Callable[[Mapping[str, Mapping[str, float]]], bool], what: str) -> None:
    wait_for(lambda: holds(scraped(daemon)), seconds=SECONDS, what=what)


def test_pool_is_nearly_full_and_its_shares_are_when_next_hops_take_nothing(pressed: Place) -> None:
    used, limit, shares = (
        f"broker_forward_{one}" for one in ("pool_bytes", "pool_limit_bytes", "share_exceeded_total")
    )
    most = threshold("BrokerPoolNearlyFull", f"{used} / {limit}")
    any_growth = threshold("BrokerForwardShareExceeded", f"increase({shares}[5m])")

    comes_true(pressed.gateway, lambda now: gt(now[used][""] / now[limit][""], most), "a pool that is nearly full")
    comes_true(pressed.gateway, lambda now: gt(now[shares][""], any_growth), "a share that is exceeded")


def test_loop_lags_when_the_machine_stands_still(place: Place) -> None:
    metric = "broker_event_loop_lag_seconds"
    most = threshold("BrokerEventLoopLag", metric)

    place.gateway.freeze()
    time.sleep(4 * most)  # the trouble itself: for so long nothing runs
    place.gateway.thaw()

    comes_true(place.gateway, lambda now: gt(now[metric][""], most), "a loop that lags")


def test_values_of_a_label_are_folded_when_there_are_too_many_routes(place: Place) -> None:
    metric = "broker_metrics_label_overflow_total"
    before = scraped(place.gateway)[metric][""]
    many = "".join(route(f"r{number}", f"//many/{number}", "tcp://127.0.0.1:1") for number in range(520))

    place.gateway.admin.sql(many, "msdb")

    grown = threshold("BrokerMetricsLabelOverflow", f"increase({metric}[1h])")
    comes_true(place.gateway, lambda now: gt(now[metric][""] - before, grown), "values that are folded")
