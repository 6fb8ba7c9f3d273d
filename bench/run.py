"""
Everything that is measured: what `broker bench` measures, and what is of use to this repository alone.

    python bench/run.py [codec|forwarding|dialogs|mirrors|memory|kernel|decisions|routes|peers]...
        [--full] [--compare FILE]

Without names: the first five, in four minutes; with --full everything, and more of forwarding, in half an hour.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import decisions
import kernel
import memory
import peers
import routes

from broker.bench import report, result, suite
from broker.bench.load import overload
from broker.bench.result import Row

RESULTS = Path(__file__).with_name("results")
OWN = {
    "memory": (memory.run, f"MiB of a gateway whose next hop never reads, pool limit {memory.POOL_MIB} MiB"),
    "kernel": (kernel.run, "CPU microseconds of the walk for each frame of 256 bytes payload, without the sockets"),
    "decisions": (decisions.run, "CPU microseconds of one routing decision"),
    "peers": (peers.run, "CPU microseconds of other brokers that keep nothing, for each message in a flood"),
    "routes": (routes.run, "a million routes: seconds, milliseconds, bytes"),
}
USUAL = tuple(name for name in suite.BENCHES if name not in suite.LOAD)
QUICK = (*USUAL, "memory")


def own_rows(name: str) -> list[Row]:
    """Rows of one of ours: its first figure is the yardstick of the others."""
    bench, title = OWN[name]
    print(f"{name}: {title}")
    figures = bench()
    if not figures:
        print(f"{name}: cannot be measured on this machine")
    first = next(iter(figures), "")
    return [
        Row(name, "", title, what, "value", {"value": value}, is_yardstick=what == first)
        for what, value in figures.items()
    ]


def main() -> None:
    """Run what is named, or everything; keep the result in bench/results. An overload out of bounds exits with 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help="what to measure")
    parser.add_argument("--full", action="store_true", help="every size, rate, number of destinations and connections")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="a stored result to compare with")
    options = parser.parse_args()
    known = (*suite.BENCHES, *OWN)
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"{unknown[0]!r} is not measured here: there are {', '.join(known)}")
    names = options.names or ((*USUAL, *OWN) if options.full else QUICK)
    earlier = result.load(options.compare) if options.compare else None
    packaged = [name for name in names if name in suite.BENCHES]
    told = suite.run(packaged, is_full=options.full, tell=lambda what: print(what, flush=True))
    rows = [*told.rows, *(row for name in names if name in OWN for row in own_rows(name))]
    told = replace(told, rows=tuple(rows))
    report.show(told)
    if earlier is not None:
        report.show_changes(result.compare(told.rows, earlier.rows), earlier)
    path = RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    result.save(told, path)
    print(f"kept in {path}")
    if broken := overload.broken_bounds(told.rows):
        sys.exit("\n".join(broken))


if __name__ == "__main__":
    main()
