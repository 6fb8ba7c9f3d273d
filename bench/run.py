"""
Benchmarks on loopback: each starts what it measures, and ends it.

    python -m bench.run [NAME]... [--full] [--minutes M] [--compare FILE]

Without names: forwarding, dialogs, codec, permissions, mirrors, journal and memory, in four minutes; with --full
decisions, kernel, peers and routes too, in half an hour. Those of load need a machine without other work, and
run when they are named: durable, saturation, overload, connections, open-dialogs, day.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench import (
    change,
    codec,
    decisions,
    dialogs,
    durable,
    forwarding,
    haproxy,
    journal,
    kernel,
    memory,
    mirrors,
    peers,
    permissions,
    report,
    routes,
)
from bench import figures as result
from bench.figures import Result, Row, load_averages, machine
from bench.scenarios import connections, day, open_dialogs, overload, saturation

RESULTS = Path(__file__).with_name("results")

Tell = Callable[[str], None]
Bench = Callable[..., list[Row]]
"""(is_full, tell): whether everything is measured; and the function that gets the name of each step."""


def _forwarding(*, is_full: bool, tell: Tell) -> list[Row]:
    rivals = [haproxy.haproxy] if haproxy.program() else []
    return forwarding.measure(forwarding.FULL if is_full else forwarding.QUICK, rivals=rivals, tell=tell)


def _journal(*, is_full: bool, tell: Tell) -> list[Row]:
    if is_full:
        return journal.measure(journal.FULL, repeats=journal.FULL_REPEATS, tell=tell)
    return journal.measure(journal.QUICK, tell=tell)


def _saturation(*, is_full: bool, tell: Tell) -> list[Row]:
    return saturation.measure(saturation.FULL if is_full else saturation.QUICK, tell=tell)


def _connections(*, is_full: bool, tell: Tell) -> list[Row]:
    return connections.measure(connections.FULL if is_full else connections.QUICK, tell=tell)


def _open_dialogs(*, is_full: bool, tell: Tell) -> list[Row]:
    return open_dialogs.measure(open_dialogs.FULL if is_full else open_dialogs.QUICK, tell=tell)


def _overload(*, is_full: bool, tell: Tell, minutes: float | None) -> list[Row]:
    scale = saturation.FULL if is_full else saturation.QUICK
    usual = overload.FULL_SECONDS if is_full else overload.SECONDS
    return overload.measure(seconds=usual if minutes is None else 60 * minutes, scale=scale, tell=tell)


def _day(*, is_full: bool, tell: Tell, minutes: float | None) -> list[Row]:
    usual = day.FULL_MINUTES if is_full else day.MINUTES
    return day.measure(minutes=usual if minutes is None else minutes, tell=tell)


def _without_size(measure: Callable[[], list[Row]], *, is_full: bool, tell: Tell) -> list[Row]:
    del is_full
    tell("measuring")
    return measure()


def _figures(name: str, title: str, measure: Callable[[], dict[str, float]], *, is_full: bool, tell: Tell) -> list[Row]:
    """Rows of figures by name; the first one is the yardstick of the others."""
    del is_full
    tell(title)
    figures = measure()
    if not figures:
        tell("cannot be measured on this machine")
    first = next(iter(figures), "")
    return [
        Row(name, "", title, what, "value", {"value": value}, is_yardstick=what == first)
        for what, value in figures.items()
    ]


USUAL: dict[str, Bench] = {
    "forwarding": _forwarding,
    "dialogs": dialogs.measure,
    "codec": partial(_without_size, codec.measure),
    "permissions": partial(_without_size, permissions.measure),
    "mirrors": mirrors.measure,
    "journal": _journal,
    "memory": partial(
        _figures,
        "memory",
        f"MiB of a gateway whose next hop never reads, pool limit {memory.POOL_MIB} MiB",
        memory.run,
    ),
}
FULL: dict[str, Bench] = {
    name: partial(_figures, name, title, measure)
    for name, title, measure in (
        ("kernel", "CPU microseconds of the walk for each frame of 256 bytes payload, without the sockets", kernel.run),
        ("decisions", "CPU microseconds of one routing decision", decisions.run),
        ("routes", "a million routes: seconds, milliseconds, bytes", routes.run),
    )
} | {"peers": peers.measure_peers}
LOAD: dict[str, Bench] = {
    "change": change.measure,
    "durable": durable.measure,
    "saturation": _saturation,
    "overload": _overload,
    "connections": _connections,
    "open-dialogs": _open_dialogs,
    "day": _day,
}
LASTING = ("overload", "day")  # those that --minutes is for
ALL = USUAL | FULL | LOAD


def run(benches: Mapping[str, Bench], *, is_full: bool) -> Result:
    """Run these benchmarks in their order; SIGTERM ends them as Ctrl-C does, so that no files are left."""
    begun_at, before = datetime.now(UTC), load_averages()
    rows: list[Row] = []
    handler = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        for name, bench in benches.items():
            rows += bench(is_full=is_full, tell=lambda what, name=name: print(f"{name}: {what}", flush=True))
    finally:
        signal.signal(signal.SIGTERM, handler)
    return Result(
        machine=machine() | {"haproxy": haproxy.version()},
        at=begun_at.isoformat(timespec="seconds"),
        load={"before": before, "after": load_averages()},
        rows=tuple(rows),
        notes=forwarding.notes() if "forwarding" in benches else (),
    )


def main() -> None:
    """Run what is named, and keep the result in bench/results. An overload out of bounds exits with 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ALL))
    parser.add_argument("--full", action="store_true", help="every size, rate, number of destinations and connections")
    parser.add_argument("--minutes", type=float, help="how long overload (10 with --full) and day (60) go on")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="a stored result to compare with")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in ALL]
    if unknown:
        parser.error(f"{unknown[0]!r} is not measured here: there are {', '.join(ALL)}")
    names = options.names or (USUAL | FULL if options.full else USUAL)
    benches = {name: partial(ALL[name], minutes=options.minutes) if name in LASTING else ALL[name] for name in names}
    earlier = result.load(options.compare) if options.compare else None
    told = run(benches, is_full=options.full)
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
