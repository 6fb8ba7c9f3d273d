"""The benchmarks of an installation by name, and one run of them: what `broker bench` and `make bench` share."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from broker.bench import codec, dialogs, forwarding, journal, mirrors, permissions
from broker.bench.hop import haproxy_version
from broker.bench.load import connections, day, open_dialogs, overload, saturation
from broker.bench.machine import load_averages, machine
from broker.bench.pipeline import measurement as pipeline
from broker.bench.result import Result, Row

Tell = Callable[[str], None]
Bench = Callable[..., list[Row]]
"""(whether everything is wanted, who hears what is measured now) -> rows; those of LASTING take minutes as well."""


def _codec(_is_full: bool, tell: Tell) -> list[Row]:  # noqa: FBT001 - a value of BENCHES
    tell("encode and decode")
    return codec.measure()


def _forwarding(is_full: bool, tell: Tell) -> list[Row]:  # noqa: FBT001 - likewise
    return forwarding.measure(forwarding.FULL if is_full else forwarding.QUICK, tell=tell)


def _permissions(_is_full: bool, tell: Tell) -> list[Row]:  # noqa: FBT001 - likewise
    tell("the pass with and without grants")
    return permissions.measure()


def _dialogs(is_full: bool, tell: Tell) -> list[Row]:  # noqa: FBT001 - likewise
    return dialogs.measure(is_full=is_full, tell=tell)


def _mirrors(is_full: bool, tell: Tell) -> list[Row]:  # noqa: FBT001 - likewise
    return mirrors.measure(is_full=is_full, tell=tell)


def _journal(is_full: bool, tell: Tell) -> list[Row]:  # noqa: FBT001 - likewise
    if is_full:
        return journal.measure(journal.FULL, repeats=journal.FULL_REPEATS, tell=tell)
    return journal.measure(journal.QUICK, tell=tell)


def _pipeline(is_full: bool, tell: Tell) -> list[Row]:  # noqa: FBT001 - likewise
    return pipeline.measure(pipeline.FULL if is_full else pipeline.QUICK, tell=tell)


def _saturation(is_full: bool, tell: Tell) -> list[Row]:  # noqa: FBT001 - likewise
    return saturation.measure(saturation.FULL if is_full else saturation.QUICK, tell=tell)


def _overload(is_full: bool, tell: Tell, minutes: float | None = None) -> list[Row]:  # noqa: FBT001 - likewise
    scale = saturation.FULL if is_full else saturation.QUICK
    usual = overload.FULL_SECONDS if is_full else overload.SECONDS
    return overload.measure(seconds=usual if minutes is None else 60 * minutes, scale=scale, tell=tell)


def _connections(is_full: bool, tell: Tell) -> list[Row]:  # noqa: FBT001 - likewise
    return connections.measure(connections.FULL if is_full else connections.QUICK, tell=tell)


def _open_dialogs(is_full: bool, tell: Tell) -> list[Row]:  # noqa: FBT001 - likewise
    return open_dialogs.measure(open_dialogs.FULL if is_full else open_dialogs.QUICK, tell=tell)


def _day(is_full: bool, tell: Tell, minutes: float | None = None) -> list[Row]:  # noqa: FBT001 - likewise
    usual = day.FULL_MINUTES if is_full else day.MINUTES
    return day.measure(minutes=usual if minutes is None else minutes, tell=tell)


BENCHES: dict[str, Bench] = {
    "codec": _codec,
    "forwarding": _forwarding,
    "permissions": _permissions,
    "dialogs": _dialogs,
    "mirrors": _mirrors,
    "journal": _journal,
    "pipeline": _pipeline,
    "saturation": _saturation,
    "overload": _overload,
    "connections": _connections,
    "open-dialogs": _open_dialogs,
    "day": _day,
}
LOAD = ("saturation", "overload", "connections", "open-dialogs", "day")  # what takes long, and is run when it is named
LASTING = ("overload", "day")  # of which it can be said how long they go on


def run(names: Sequence[str], *, is_full: bool, tell: Tell, minutes: float | None = None) -> Result:
    """
    Run the named ones, in that order; those of LASTING for so many minutes, None = as long as they usually do.

    Raises:
        BrokerError: a daemon did not start, a frame was lost, or the load generator failed; nothing is kept then.
    """
    begun_at, before = datetime.now(UTC), load_averages()
    rows: list[Row] = []
    with _ended_in_order():
        for name in names:
            lasting = {"minutes": minutes} if name in LASTING else {}
            rows += BENCHES[name](is_full, partial(_tell_of, name, tell), **lasting)
    return Result(
        machine=machine() | {"haproxy": haproxy_version() or "absent"},
        at=begun_at.isoformat(timespec="seconds"),
        load={"before": before, "after": load_averages()},
        rows=tuple(rows),
        notes=forwarding.notes() if "forwarding" in names else (),
    )


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does, so that it takes its files along; its children end with it anyway."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell_of(name: str, tell: Tell, what: str) -> None:
    tell(f"{name}: {what}")
