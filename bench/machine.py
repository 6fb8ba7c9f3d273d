"""What a figure was measured on: printed above every table, kept in every result."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def machine() -> dict[str, str]:
    """Processor, cores, memory, system and versions."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    try:
        uvloop = version("uvloop")
    except PackageNotFoundError:
        uvloop = "absent"
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "uvloop": uvloop,
        "sqlite": sqlite3.sqlite_version,
        "broker": version("broker"),
    }
