"""
The alerts of deploy/prometheus where Kubernetes takes them: in an object of the Prometheus operator, and in the chart.

    python -m tools.manifests

Written by `make manifests`, checked by a test: one set of rules, three places.
"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import indent

from tools.lock import ROOT

RULES = ROOT / "deploy" / "prometheus" / "broker.rules.yml"
OBJECT = ROOT / "deploy" / "kubernetes" / "monitoring" / "rules.yaml"
CHART = ROOT / "deploy" / "helm" / "broker" / "files" / "broker.rules.yml"
_HEAD = """\
# The rules of deploy/prometheus/broker.rules.yml, written by make manifests.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: broker
spec:
"""


def written(rules: str) -> dict[Path, str]:
    """What each place has to hold; `rules` are groups as Prometheus reads them."""
    bare = "".join(f"{line}\n" for line in rules.splitlines() if not line.startswith("#"))
    return {OBJECT: _HEAD + indent(bare.lstrip("\n"), "  "), CHART: rules}


def main() -> int:
    """Write them."""
    for path, text in written(RULES.read_text(encoding="utf-8")).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
