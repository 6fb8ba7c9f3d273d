"""Write the Grafana dashboard: `python -m tools.dashboard deploy/grafana/dashboards/broker.json`."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.dashboard.layout import render

Path(sys.argv[1]).write_text(render(), encoding="utf-8")
