"""The benchmarks of `broker bench`, and one run of several benchmarks."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from broker.bench import dialogs, forwarding
from broker.bench.figures import Result, Row, load_averages, machine

Tell = Callable[[str], None]
Bench = Callable[..., list[Row]]
"""(is_full, tell): whether everything is measured; and the function that is called with what is measured now."""


def _forwarding(*, is_full: bool, tell: Tell) -> list[Row]:
    return forwarding.measure(forwarding.FULL if is_full else forwarding.QUICK, tell=tell)


def _dialogs(*, is_full: bool, tell: Tell) -> list[Row]:
    return dialogs.measure(is_full=is_full, tell=tell)


BENCHES: dict[str, Bench] = {"forwarding": _forwarding, "dialogs": _dialogs}


def run(benches: Mapping[str, Bench], *, is_full: bool, tell: Tell) -> Result:
    """
    Run these benchmarks in their order.

    Raises:
        BrokerError: an instance did not start, a frame was lost, or the load generator failed; nothing is kept then.
    """
    begun_at, before = datetime.now(UTC), load_averages()
    rows: list[Row] = []
    with _ended_in_order():
        for name, bench in benches.items():
            rows += bench(is_full=is_full, tell=partial(_tell_of, name, tell))
    return Result(
        machine=machine(),
        at=begun_at.isoformat(timespec="seconds"),
        load={"before": before, "after": load_averages()},
        rows=tuple(rows),
        notes=forwarding.notes() if "forwarding" in benches else (),
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
