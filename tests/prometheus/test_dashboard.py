"""The dashboard that is shipped: Grafana can take it, and nothing is left out of it."""

import json
import re
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it tells no types

from broker.observe.metrics import METRICS
from tests.support.shipped import (
    ALERTS,
    DASHBOARD,
    EXPRESSIONS,
    GRAFANA,
    PANELS,
    PROMETHEUS,
    RECORDED,
    SAMPLE_NAMES,
    Asked,
    metrics_in,
    recorded_in,
)

ALL: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES = {one["name"] for one in DASHBOARD["templating"]["list"]}
BUILT_IN = {"__rate_interval", "__all"}
COLUMNS = 24  # of the grid of Grafana
UNITS = {"short", "none", "s", "cps", "Bps", "bytes", "percentunit"}


def titled(panel: dict[str, Any]) -> str:
    return str(panel["title"])


def sources(part: Any) -> list[Any]:
    """Every data source that is named anywhere in a part."""
    if isinstance(part, dict):
        own = [part["datasource"]] if "datasource" in part else []
        return own + [one for value in part.values() for one in sources(value)]
    return [one for value in part for one in sources(value)] if isinstance(part, list) else []


def test_ids_and_titles_within_a_kind_of_panel_are_unique() -> None:
    keys = Counter(key for panel in ALL for key in (panel["id"], (panel["title"], panel["type"])))

    assert [] == [key for key, count in keys.items() if count > 1]


def test_the_source_of_data_is_a_variable() -> None:
    found = sources(DASHBOARD)

    assert len(found) > len(PANELS)
    assert [{"type": "prometheus", "uid": "${datasource}"}] * len(found) == found


def test_every_variable_is_there_and_used() -> None:
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))

    assert VARIABLES == used - BUILT_IN


@pytest.mark.parametrize("panel", PANELS, ids=titled)
def test_a_panel_says_what_it_is_and_in_what_unit(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    steps = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
    assert None is steps[0]
    assert sorted(steps[1:]) == steps[1:]
    names = [target["refId"] for target in panel["targets"]]
    assert sorted(set(names)) == names


@pytest.mark.parametrize("asked", EXPRESSIONS, ids=str)
def test_a_query_is_about_the_instances_that_are_chosen(asked: Asked) -> None:
    selectors = re.findall(r"\{([^}]*)\}", asked.expression)

    assert selectors
    assert all('job=~"$job",instance=~"$instance"' in one for one in selectors)


def test_panels_lie_beside_each_other() -> None:
    def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
        return (
            one["x"] < other["x"] + other["w"]
            and other["x"] < one["x"] + one["w"]
            and one["y"] < other["y"] + other["h"]
            and other["y"] < one["y"] + one["h"]
        )

    places = [panel["gridPos"] for panel in ALL]

    assert [] == [pair for pair in combinations(places, 2) if overlap(*pair)]
    assert all(0 <= place["x"] and place["x"] + place["w"] <= COLUMNS for place in places)


def test_only_metrics_that_there_are_are_asked_for() -> None:
    asked = {name for one in EXPRESSIONS for name in metrics_in(one.expression)}
    recorded = {name for one in EXPRESSIONS for name in recorded_in(one.expression)}

    assert set() == asked - SAMPLE_NAMES
    assert recorded <= RECORDED


@pytest.mark.promise("A metric has the label value other")
def test_every_metric_is_in_a_panel_or_an_alert() -> None:
    expressions = [*(one.expression for one in EXPRESSIONS), *(rule["expr"] for rule in ALERTS)]
    asked = {name for expression in expressions for name in metrics_in(expression)}

    left_out = {metric.name for metric in METRICS if asked.isdisjoint(metric.sample_names)}

    assert set() == left_out


def test_provisioning_brings_the_dashboard_and_its_source() -> None:
    [source] = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    [provider] = yaml.safe_load((GRAFANA / "provisioning/dashboards/broker.yml").read_text())["providers"]
    interval = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["global"]["scrape_interval"]

    assert ("prometheus", True, interval) == (source["type"], source["isDefault"], source["jsonData"]["timeInterval"])
    assert ("file", "/var/lib/grafana/dashboards") == (provider["type"], provider["options"]["path"])
