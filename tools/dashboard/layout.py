"""
The Grafana dashboard as Grafana imports it: `python -m tools.dashboard FILE` writes it.

It is what the rows say, laid out: rows of panels 24 columns wide, numbered in their order. A
panel names its source of data by a variable, so the file fits every Grafana that has a Prometheus.

Source: Grafana documentation, "Dashboard JSON model" (schema version 41, Grafana 12; later ones bring it up by
themselves).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tools.dashboard.panel import Kind, Panel, Query, Row
from tools.dashboard.state import CERTIFICATES, DATABASES, JOURNAL, MIRRORS, PROCESS
from tools.dashboard.traffic import GLANCE, LATENCY, POOL, TRAFFIC

ROWS = (GLANCE, TRAFFIC, LATENCY, POOL, MIRRORS, DATABASES, JOURNAL, CERTIFICATES, PROCESS)
COLUMNS = 24
HEIGHTS = {Kind.NUMBER: 4}
HEIGHT = 8
SCHEMA = 41
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True}
_TOOLTIP = {"mode": "multi", "sort": "desc"}
_NUMBERS = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[Kind, dict[str, Any]] = {
    Kind.LINES: {"legend": _LEGEND, "tooltip": _TOOLTIP},
    Kind.NUMBER: {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": _NUMBERS,
        "textMode": "auto",
    },
    Kind.STATES: {"legend": _LEGEND, "mergeValues": True, "rowHeight": 0.8, "showValue": "auto", "tooltip": _TOOLTIP},
    Kind.TABLE: {"cellHeight": "sm", "footer": {"show": False}, "showHeader": True},
    Kind.HEATMAP: {"calculate": False, "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64}, "yAxis": {}},
}
_CUSTOM: dict[Kind, dict[str, Any]] = {
    Kind.LINES: {"drawStyle": "line", "fillOpacity": 8, "lineWidth": 1, "showPoints": "never", "spanNulls": False},
    Kind.STATES: {"fillOpacity": 70, "lineWidth": 0},
}
_HIDDEN = {"Time": True, "job": True, "__name__": True}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": "broker",
        "title": "broker",
        "description": "Instances of broker: traffic, latency, next hops, mirrors, databases, ledger, certificates.",
        "tags": ["broker"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": [_alerts()]},
        "links": [],
        "panels": list(_panels(ROWS)),
    }


def render() -> str:
    """Its text."""
    return json.dumps(dashboard(), indent=2) + "\n"


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}
    return [
        source | {"hide": 0, "includeAll": False, "multi": False, "options": [], "current": {}, "regex": ""},
        _values("job", "Job", "label_values(broker_build_info, job)"),
        _values("instance", "Instance", 'label_values(broker_build_info{job=~"$job"}, instance)'),
    ]


def _values(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # whenever the range of time changes
        "sort": 1,
        "includeAll": True,
        "multi": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"]},
        "hide": 0,
        "options": [],
        "regex": "",
    }


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "expr": 'ALERTS{alertstate="firing",job=~"$job",instance=~"$instance"}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{instance}}",
        "step": "60s",
    }


def _panels(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        left = height = 0
        for panel in row.panels:
            number += 1
            if left + panel.width > COLUMNS:
                left, top, height = 0, top + height, 0
            height = max(height, HEIGHTS.get(panel.kind, HEIGHT))
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": HEIGHTS.get(panel.kind, HEIGHT)})
            left += panel.width
        top += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": str(panel.kind),
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [_target(query, panel.kind, chr(ord("A") + i)) for i, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
        "transformations": _transformations(panel),
    }


def _target(query: Query, kind: Kind, name: str) -> dict[str, Any]:
    is_table = kind is Kind.TABLE
    target = {
        "refId": name,
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "legendFormat": query.legend,
        "range": not is_table,
        "instant": is_table,
    }
    formats = {Kind.TABLE: "table", Kind.HEATMAP: "heatmap"}
    return target | ({"format": formats[kind]} if kind in formats else {})


def _defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": panel.base, "value": None}]
    steps += [{"color": colour, "value": value} for value, colour in panel.thresholds]
    custom = dict(_CUSTOM.get(panel.kind, {}))
    if panel.kind is Kind.LINES and panel.thresholds:
        custom["thresholdsStyle"] = {"mode": "dashed"}
    if panel.kind is Kind.TABLE and panel.thresholds:
        custom["cellOptions"] = {"type": "color-text"}
    coloured = panel.kind in {Kind.NUMBER, Kind.TABLE, Kind.STATES}
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "thresholds" if coloured else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": [_mapping(panel)] if panel.names else [],
        "custom": custom,
    }
    if panel.unit == "percentunit":
        defaults |= {"min": 0, "max": 1}
    elif panel.kind is Kind.LINES:
        defaults["min"] = 0
    return defaults


def _mapping(panel: Panel) -> dict[str, Any]:
    options = {
        str(value): {"text": text, "color": colour, "index": place}
        for place, (value, text, colour) in enumerate(panel.names)
    }
    return {"type": "value", "options": options}


def _transformations(panel: Panel) -> list[dict[str, Any]]:
    if panel.kind is not Kind.TABLE:
        return []
    return [{"id": "organize", "options": {"excludeByName": _HIDDEN, "indexByName": {}, "renameByName": {}}}]
