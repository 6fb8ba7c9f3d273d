"""
What a dashboard is made of: rows, their panels, and the query of each line.

A panel says what it is in a sentence for the person on call, has a unit, and, where a value is good or bad in itself,
the values at which it turns. `SELECTED` stands in every query where the variables of the dashboard choose the
instances; `WINDOW` is Grafana's own word for a range that holds at least four scrapes.

Source: Grafana documentation, "Dashboard JSON model", "Standard options definitions"; the names are those of
docs/metrics.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SELECTED = 'job=~"$job",instance=~"$instance"'
WINDOW = "[$__rate_interval]"
DAY = 86_400.0
GREEN, ORANGE, RED = "green", "orange", "red"
Thresholds = tuple[tuple[float, str], ...]
"""Values from which a colour holds, ascending; what is below the first one has the colour before it in `base`."""


class Kind(StrEnum):
    """Types of panels, in Grafana's words."""

    LINES = "timeseries"
    NUMBER = "stat"
    STATES = "state-timeline"
    TABLE = "table"
    HEATMAP = "heatmap"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression, and the legend of its lines."""

    expression: str
    legend: str = "{{instance}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """
    One panel.

    Shape: `unit` an id of Grafana's units; `base` the colour below all `thresholds`; `names` what numbers mean, by
    number; `width` of 24.
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = Kind.LINES
    thresholds: Thresholds = ()
    base: str = GREEN
    names: tuple[tuple[int, str, str], ...] = ()
    width: int = 8


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and its panels."""

    title: str
    panels: tuple[Panel, ...]


FAULT: Thresholds = ((1, RED),)
WARNING: Thresholds = ((1, ORANGE),)


def rate(metric: str, by: str) -> str:
    """The rate of a counter, added up but for these labels."""
    return f"sum by ({by}) (rate({metric}{{{SELECTED}}}{WINDOW}))"


def gauge(metric: str) -> str:
    """A metric as it is."""
    return f"{metric}{{{SELECTED}}}"


def quantiles(metric: str, by: str, legend: str) -> tuple[Query, ...]:
    """The median and the 99th percentile of a histogram."""
    rates = f"sum by ({by}, le) (rate({metric}_bucket{{{SELECTED}}}{WINDOW}))"
    return tuple(
        Query(f"histogram_quantile({part}, {rates})", f"{legend} {name}")
        for part, name in ((0.5, "p50"), (0.99, "p99"))
    )


def number(
    title: str,
    description: str,
    expression: str,
    unit: str = "short",
    *,
    base: str = GREEN,
    thresholds: Thresholds = (),
) -> Panel:
    """A panel with one number."""
    query = Query(expression, "")
    return Panel(title, description, (query,), unit, Kind.NUMBER, thresholds, base, width=4)


def line(
    title: str,
    description: str,
    expression: str,
    legend: str,
    unit: str = "short",
    *,
    thresholds: Thresholds = (),
    width: int = 8,
) -> Panel:
    """A panel with the lines of one query."""
    return Panel(title, description, (Query(expression, legend),), unit, thresholds=thresholds, width=width)
