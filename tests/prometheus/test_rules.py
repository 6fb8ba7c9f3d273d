"""The alerts that are shipped: promtool takes them, each is tried both ways, and each leads to what to do."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it tells no types

from broker.flow import Disposition
from tests.support.prometheus import promtool
from tests.support.shipped import (
    ALERTS,
    GROUPS,
    PROMETHEUS,
    RECORDED,
    ROOT,
    RULES,
    SAMPLE_NAMES,
    metrics_in,
    recorded_in,
)

TESTS = PROMETHEUS / "broker.rules.test.yml"
TRIED: list[dict[str, Any]] = yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]
OWN = {"ALERTS", "up"}  # of Prometheus itself


def named(rule: dict[str, Any]) -> str:
    return str(rule["alert"])


def anchors(page: Path) -> set[str]:
    """The sections of a page, as its addresses name them."""
    text = page.read_text(encoding="utf-8")
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize(
    ("kind", "file", "words"),
    [
        ("rules", RULES, f"{len(ALERTS) + len(RECORDED)} rules found"),
        ("config", PROMETHEUS / "prometheus.yml", "1 rule files found"),
    ],
)
def test_promtool_takes_the_files(kind: str, file: Path, words: str) -> None:
    done = promtool("check", kind, str(file))

    assert 0 == done.returncode, done.stdout
    assert words in done.stdout


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    done = promtool("test", "rules", str(TESTS))

    assert 0 == done.returncode, done.stdout
    assert "SUCCESS" in done.stdout


@pytest.mark.parametrize("rule", ALERTS, ids=named)
def test_each_alert_is_tried_both_ways(rule: dict[str, Any]) -> None:
    """Once it fires, after it did not; and once it never does."""
    tried = [
        [bool(check["exp_alerts"]) for check in one["alert_rule_test"] if check["alertname"] == rule["alert"]]
        for one in TRIED
    ]

    assert [[False, True], [False]] == [checks for checks in tried if checks]


@pytest.mark.parametrize("rule", ALERTS, ids=named)
def test_each_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    annotations = rule["annotations"]

    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert {"summary", "description", "runbook"} == set(annotations)
    assert len(annotations["description"].split()) > 15
    page, _, section = annotations["runbook"].partition("#")
    assert section in anchors(ROOT / page)


@pytest.mark.parametrize(
    "rule", [rule for group in GROUPS for rule in group["rules"]], ids=lambda rule: rule.get("alert") or rule["record"]
)
def test_each_rule_asks_for_metrics_that_there_are(rule: dict[str, Any]) -> None:
    asked, recorded = metrics_in(rule["expr"]), recorded_in(rule["expr"])

    assert set() == asked - SAMPLE_NAMES
    assert recorded <= RECORDED
    assert asked or recorded or OWN & set(re.findall(r"\w+", rule["expr"]))


def test_reasons_of_drops_are_those_that_there_are() -> None:
    text = RULES.read_text(encoding="utf-8")
    reasons = {
        one for found in re.findall(r'reason[!=~]+"([^"]+)"', " ".join(text.split())) for one in found.split("|")
    }

    assert reasons
    assert reasons <= {str(one) for one in Disposition}


def test_no_alert_names_one_machine() -> None:
    """Labels of the alert, not a fixed one, tell which instance it is about."""
    about = [rule for rule in ALERTS if "{{ $labels.instance }}" not in " ".join(rule["annotations"].values())]

    assert ["BrokerTargetMissing"] == [rule["alert"] for rule in about]
