"""What a gateway may take under overload, memory and time to recover; the overload itself is in tests/loopback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.bench.load.overload import ALLOWANCE_MIB, broken_bounds, memory_limit_mib
from broker.bench.result import Row, load

FIGURES = Path(__file__).parents[4] / "docs" / "performance" / "overload.json"

MIB = 1 << 20


def test_memory_is_what_it_was_and_all_that_messages_may_take() -> None:
    without = memory_limit_mib(70, links=0, pool_bytes=0, max_frame=MIB)
    with_links = memory_limit_mib(70, links=18, pool_bytes=64 * MIB, max_frame=MIB)

    assert 70 + 32 + 2.25 + ALLOWANCE_MIB == pytest.approx(without)
    assert 18 * (1 + 1 / 16) + 64 == pytest.approx(with_links - without)


def overloaded(*, peak_mib: float = 80.0, seconds: float = 1.8) -> list[Row]:
    def row(mode: str, subject: str, **values: float) -> Row:
        return Row("overload", "case", mode, subject, next(iter(values)), values)

    return [
        row("windows", "until 5.0 s", peak_mib=80.0, limit_mib=215.0),
        row("windows", "until 10.0 s", peak_mib=peak_mib, limit_mib=215.0),
        row("recovery", "light load in time", seconds=seconds),
        row("recovery", "allowed", seconds=10.0),
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (overloaded(peak_mib=215.0, seconds=10.0), []),
        (overloaded(peak_mib=216.0), ["overload: until 10.0 s: 216.0 MiB resident, above the limit of 215.0 MiB"]),
        (overloaded(seconds=11.9), ["overload: recovered after 11.9 s: 10 s are allowed"]),
        ([Row("codec", "case", "windows", "one", "peak_mib", {"peak_mib": 2.0, "limit_mib": 1.0})], []),
    ],
)
def test_bounds_that_were_broken_are_told(rows: list[Row], expected: list[str]) -> None:
    assert expected == broken_bounds(rows)


def test_a_run_that_broke_nothing_is_in_order_until_its_limits_are_lower() -> None:
    rows = load(FIGURES).rows
    lower = [replace(row, values=row.values | dict.fromkeys({"limit_mib"} & set(row.values), 1.0)) for row in rows]

    assert [] == broken_bounds(rows)
    assert len([row for row in rows if row.mode == "windows"]) == len(broken_bounds(lower)) > 0
