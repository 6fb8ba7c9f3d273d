"""The rules and the dashboard that come with broker, as tests look at them."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # it tells no types

from broker.observe.metrics import METRICS

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
RULES = PROMETHEUS / "broker.rules.yml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
ALERTS = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
RECORDED = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}
DASHBOARD_FILE = GRAFANA / "dashboards" / "broker.json"
DASHBOARD: dict[str, Any] = json.loads(DASHBOARD_FILE.read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SAMPLE_NAMES = {name for metric in METRICS for name in metric.sample_names}
_METRIC = re.compile(r"(?<![\w:])(?:broker_|process_|python_)\w+")
_RECORDED = re.compile(r"\binstance:\w+:\w+")


@dataclass(frozen=True)
class Asked:
    """One query of a panel."""

    panel: str
    expression: str
    legend: str

    def __str__(self) -> str:
        return f"{self.panel}: {self.legend}"


EXPRESSIONS = [
    Asked(panel["title"], target["expr"], target["legendFormat"]) for panel in PANELS for target in panel["targets"]
]


def metrics_in(expression: str) -> set[str]:
    """The metrics of an instance that an expression asks for."""
    return set(_METRIC.findall(re.sub(r'"[^"]*"', "", expression)))


def recorded_in(expression: str) -> set[str]:
    """The recorded series that it asks for."""
    return set(_RECORDED.findall(expression))
