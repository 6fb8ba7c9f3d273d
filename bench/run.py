"""All benchmarks: a table with machine and versions. `run.py [forwarding|dialogs|memory ...]`."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import decisions
import dialogs
import forwarding
import memory
import routes
from machine import machine

BENCHES = {
    "forwarding": (forwarding.run, "CPU microseconds of the gateway for each message of 256 bytes, one worker"),
    "dialogs": (dialogs.run, "messages a second, 1 KiB, durable at both ends, 100 in a transaction"),
    "decisions": (decisions.run, "CPU microseconds of one routing decision"),
    "memory": (memory.run, f"MiB of a gateway whose next hop never reads, pool limit {memory.POOL_MIB} MiB"),
    "routes": (routes.run, "a million routes: seconds, milliseconds, bytes"),
}


def main() -> None:
    """Run what is named, or everything; keep the result in bench/results."""
    names = sys.argv[1:] or list(BENCHES)
    about = machine()
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    results: dict[str, dict[str, float]] = {}
    for name in names:
        bench, title = BENCHES[name]
        print(f"\n{name}: {title}")
        results[name] = bench()
        first = next(iter(results[name].values()))
        for what, value in results[name].items():
            print(f"  {what:42} {value:12,.3f}   x{value / first:.2f}")
    directory = Path(__file__).with_name("results")
    directory.mkdir(exist_ok=True)
    path = directory / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps({"machine": about, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
