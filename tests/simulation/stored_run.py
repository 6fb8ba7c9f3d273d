"""
Two thousand instances with databases, and everything that can happen to them: `python -m tests.simulation.stored_run`
prints how far it is and writes `docs/performance/stored-fleet.json`. It takes the time that is told there of one core.

Exit codes: 0 everything promised came true; 1 it did not, and what was wrong is told.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sqlite3
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from tests.simulation.fleet import DIRECTORY
from tests.simulation.stored_fleet import Outcome, play
from tests.simulation.stored_plan import Size, draw

FILE = DIRECTORY / "stored-fleet.json"
HASHES = "PYTHONHASHSEED"


def figures(seed: int, size: Size, outcome: Outcome, cpu_seconds: float) -> dict[str, Any]:
    """What is kept of a run; whoever was wrong is in `noted`, for all else ends the run."""
    there, back = outcome.messages
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs",
        "versions": {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version},
        "seed": seed,
        "size": asdict(size),
        "instances": size.instances,
        "databases": size.regions * (size.shops + size.banks + size.pairs),
        "mirrored pairs": size.regions * size.pairs,
        "dialogs": outcome.dialogs,
        "messages to banks": there,
        "messages to shops": back,
        "lost, doubled, out of order, or invented": 0,
        "noted while it lasted": outcome.noted,
        "blows": dict(sorted(outcome.happened.items())),
        "frames of the bad spell": dict(sorted(outcome.harm.items())),
        "takeovers": outcome.said["database taken over"],
        "turns of stores that failed": outcome.said["store failed"],
        "frames refused by mirrors": outcome.refused_by_mirrors,
        "frames sent by instances with databases": outcome.frames,
        "fragments needed at least": outcome.needed,
        "virtual seconds": round(outcome.seconds, 1),
        "CPU seconds": round(cpu_seconds),
        "peak of resident memory, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "files at the end, MiB": outcome.file_bytes >> 20,
        "digest": outcome.digest,
    }


def main() -> int:
    """Play, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--regions", type=int, default=Size.regions, help="of 21 instances; less is not written")
    chosen = parser.parse_args()
    if os.environ.get(HASHES) != "0":
        itself = [sys.executable, "-m", "tests.simulation.stored_run", *sys.argv[1:]]
        os.execve(sys.executable, itself, os.environ | {HASHES: "0"})
    size = Size(regions=chosen.regions)

    def tell(text: str) -> None:
        sys.stdout.write(f"{time.process_time():7.1f} s of CPU, {text}\n")
        sys.stdout.flush()

    outcome = play(draw(chosen.seed, size), tell)
    found = figures(chosen.seed, size, outcome, time.process_time())
    text = json.dumps(found, indent=1) + "\n"
    sys.stdout.write(text)
    if size == Size() and not outcome.noted:
        FILE.write_text(text, encoding="utf-8")
    return 1 if outcome.noted else 0


if __name__ == "__main__":
    sys.exit(main())
