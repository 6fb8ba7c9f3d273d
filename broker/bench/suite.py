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
from broker.bench.machine import load_averages, machine
from broker.bench.pipeline import measurement as pipeline
from broker.bench.result import Result, Row

Tell = Callable[[str], None]
Bench = Callable[[bool, Tell], list[Row]]
"""(whether everything is wanted, who hears what is measured now) -> rows."""


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
    return journal.measure(journal.FULL if is_full else journal.QUICK, tell=tell)


def _pipeline(is_full: bool, tell: Tell) -> list[Row]:  # noqa: FBT001 - likewise
    return pipeline.measure(pipeline.FULL if is_full else pipeline.QUICK, tell=tell)


BENCHES: dict[str, Bench] = {
    "codec": _codec,
    "forwarding": _forwarding,
    "permissions": _permissions,
    "dialogs": _dialogs,
    "mirrors": _mirrors,
    "journal": _journal,
    "pipeline": _pipeline,
}


def run(names: Sequence[str], *, is_full: bool, tell: Tell) -> Result:
    """
    Run the named ones, in that order.

    Raises:
        BrokerError: a daemon did not start, a frame was lost, or the load generator failed; nothing is kept then.
    """
    begun_at, before = datetime.now(UTC), load_averages()
    rows: list[Row] = []
    with _ended_in_order():
        for name in names:
            rows += BENCHES[name](is_full, partial(_tell_of, name, tell))
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
