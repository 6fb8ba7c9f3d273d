"""Rows of the codec; what they say is not for a test."""

from __future__ import annotations

from broker.bench.codec import YARDSTICK, measure

MODES = ("encode", "decode", "seal", "open")


def test_every_size_and_direction_has_its_yardstick_and_costs_something() -> None:
    rows = measure((64, 1024), round_seconds=1e-5)

    assert {(case, mode) for case in ("64 B payload", "1,024 B payload") for mode in MODES} == {
        (row.case, row.mode) for row in rows if row.subject == YARDSTICK and row.is_yardstick
    }
    assert ["header and body", "header and body", "split only", "header and box", "box"] == [
        row.subject for row in rows if not row.is_yardstick and row.case == "64 B payload"
    ]
    assert all(row.figure > 0 for row in rows)
