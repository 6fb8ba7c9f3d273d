"""What a failover cost, from instants; the failovers themselves are in tests/loopback."""

from __future__ import annotations

from uuid import UUID

import pytest

from broker.bench.mirrors import EVERY, FIRST, WHOLE, YARDSTICK, Delivery, Gap, gap_of, rows_of

ONE, OTHER = UUID(int=1), UUID(int=2)
BEGUN, CLAIMED = 100.0, 103.0


def test_a_gap_ends_with_what_was_sent_after_the_begin_and_received_after_the_claim() -> None:
    deliveries: list[Delivery] = [
        (99.0, ONE, 98.0),
        (99.5, OTHER, 99.0),
        (101.0, ONE, 100.5),  # by the old one, before it was left
        (104.0, ONE, 99.9),  # by the old one, and late to be received
        (105.0, ONE, 102.0),
        (106.0, ONE, 103.5),
        (107.0, OTHER, 102.0),
    ]

    gap = gap_of(deliveries, BEGUN, CLAIMED)

    assert Gap(first=2.0, every=4.0, whole=5.0, usual=[1.0, 0.5]) == gap


def test_rows_have_median_and_worst_beside_the_usual_way() -> None:
    gaps = [Gap(first, first + 1, first + 2, [0.5]) for first in (0.1, 0.3, 0.2)]

    rows = rows_of("kill -9", gaps)

    assert [YARDSTICK, FIRST, EVERY, WHOLE] == [row.subject for row in rows]
    assert [True, False, False, False] == [row.is_yardstick for row in rows]
    assert [pytest.approx({"p50_ms": 200.0, "max_ms": 300.0})] == [rows[1].values]
    assert all(row.is_less_better for row in rows)
