"""A real Prometheus scrapes real instances: what it says is what was sent, and no panel of the dashboard is empty."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from broker.observe.metrics import METRICS
from examples.demo.topology import wait_for
from tests.support.monitored import WAYS, Monitored, delivered, monitored
from tests.support.prometheus import fetch, promtool
from tests.support.shipped import ALERTS, EXPRESSIONS, RECORDED, RULES, Asked

pytestmark = pytest.mark.timeout(400)

SECONDS = 60.0
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
VARIABLES = {"$job": ".+", "$instance": ".+", "$__rate_interval": "1m"}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    with monitored(tmp_path_factory.mktemp("monitored") / "net", rules=RULES) as network:
        yield network


@pytest.mark.parametrize("database", WAYS)
def test_what_is_delivered_is_what_was_sent(network: Monitored, database: str) -> None:
    expected = {delivered(database): network.sent[database], delivered("orders"): sum(network.sent.values())}

    def totals() -> dict[str, float]:
        return {expression: network.server.total(expression) for expression in expected}

    wait_for(lambda: totals() == expected, seconds=SECONDS, what=f"{expected}")  # the answers, too


@pytest.mark.parametrize("database", WAYS)
def test_what_a_counter_grows_by_is_what_was_sent(network: Monitored, database: str) -> None:
    """Since its first scrape. Prometheus stretches that by half a scrape at either end, so of twenty by 5 %."""
    expression, sent = delivered(database), network.sent[database]
    wait_for(lambda: network.server.total(expression) == sent, seconds=SECONDS, what=expression)
    network.server.wait_for(f"count_over_time({expression}[10m]) >= 20")
    grown = sent - network.server.total(f"min_over_time({expression}[10m])")

    increase = network.server.total(f"increase({expression}[10m])")
    rate = network.server.total(f"rate({expression}[10m])")

    assert grown >= sent - network.before[database] > 0
    assert grown <= increase < 1.15 * grown
    assert pytest.approx(increase / 600, rel=0.1) == rate


@pytest.mark.parametrize(("gateway", "database"), [(gateway, database) for database, gateway in WAYS.items()])
def test_a_gateway_forwards_every_message_both_ways(network: Monitored, gateway: str, database: str) -> None:
    """And acknowledgements besides, so it is no less."""
    expression = f'sum(broker_messages_forwarded_total{{instance="{gateway}"}})'

    wait_for(
        lambda: network.server.total(expression) >= 2 * network.sent[database],
        seconds=SECONDS,
        what=f"twice {network.sent[database]} of {expression}",
    )


@pytest.mark.parametrize("name", ["gateway-a", "gateway-b", "orders", "shipping-2"])
def test_promtool_has_nothing_to_say_about_the_metrics(network: Monitored, name: str) -> None:
    text, _ = fetch(f"http://127.0.0.1:{network.net.daemons[name].observe_port}/metrics")

    done = promtool("check", "metrics", text=text.encode())

    assert (0, "") == (done.returncode, done.stdout)


@pytest.mark.parametrize("name", ["gateway-a", "gateway-b", "orders"])
def test_open_metrics_is_what_its_parser_reads(network: Monitored, name: str) -> None:
    text, content_type = fetch(f"http://127.0.0.1:{network.net.daemons[name].observe_port}/metrics", OPEN_METRICS)

    read = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]  # it tells no types
    families = {family.name: family for family in read}

    assert content_type.startswith("application/openmetrics-text")
    missing = {metric.name.removesuffix("_total") for metric in METRICS} - set(families)
    assert set() == missing
    assert all(family.documentation for family in families.values())


def test_the_rules_are_judged_without_an_error(network: Monitored) -> None:
    def judged() -> list[dict[str, Any]] | None:
        groups = network.server.ask("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else None

    rules: list[dict[str, Any]] = wait_for(judged, seconds=SECONDS, what="every rule judged")

    assert len(ALERTS) + len(RECORDED) == len(rules)
    assert [] == [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"]


def test_messages_without_a_route_are_told(network: Monitored) -> None:
    """`pending` first, for a minute."""
    [(labels, _)] = network.server.wait_for('ALERTS{alertname="BrokerNoRoute"}')

    assert ("gateway-a", "critical") == (labels["instance"], labels["severity"])


def test_nothing_is_told_that_is_well(network: Monitored) -> None:
    """There are messages without a route and a peer that broke the protocol; a machine full of tests may be late."""
    found = network.server.query('ALERTS{alertstate="firing"}')

    assert {labels["alertname"] for labels, _ in found} <= {"BrokerNoRoute", "BrokerPeerFaults", "BrokerEventLoopLag"}


@pytest.mark.parametrize("asked", EXPRESSIONS, ids=str)
def test_no_panel_is_empty(network: Monitored, asked: Asked) -> None:
    expression = asked.expression
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression

    found = network.server.wait_for(expression)

    assert found
    legend = set(re.findall(r"\{\{(\w+)\}\}", asked.legend))
    assert any(legend <= labels.keys() for labels, _ in found)  # a label without a value is none


def test_no_series_of_broker_is_left_out_of_the_range(network: Monitored) -> None:
    """A query over time, as a plot asks it, has the same series as one about this moment."""
    end = time.time()

    data = network.server.ask(
        "query_range", query="sum by (instance) (broker_ready)", start=str(end - 30), end=str(end), step="1"
    )

    assert set(network.net.daemons) == {one["metric"]["instance"] for one in data["result"]}
