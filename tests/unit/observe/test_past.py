from __future__ import annotations

import pytest

from broker.observe.stream import COLUMNS, ROWS_MAX, Counts, StatsHistory


def ring(rows: int) -> StatsHistory:
    past = StatsHistory()
    for second in range(rows):
        past.note(
            Counts(received=10 * second, held=second), {"loop_lag_s": 0.25}, at=1000.0 + second, now=float(second)
        )
    return past


def test_a_row_has_every_column() -> None:
    told = ring(2).since()

    row = dict(zip(told["columns"], told["rows"][1], strict=True))
    assert (COLUMNS, 2) == (told["columns"], len(told["rows"]))
    assert (1001.0, 10.0, 1, 0.25, None) == tuple(
        row[name] for name in ("at", "received", "held", "loop_lag_s", "hop_p99_s")
    )


def test_the_first_row_knows_no_rate() -> None:
    told = ring(1).since()

    assert told["rows"][0][COLUMNS.index("received")] is None


def test_the_oldest_rows_give_way() -> None:
    told = ring(ROWS_MAX + 5).since()

    assert (ROWS_MAX, 1005.0) == (len(told["rows"]), told["rows"][0][0])


@pytest.mark.parametrize(("known", "rows"), [(0, 7), (3, 4), (7, 0), (9, 0), (-5, 7)])
def test_only_what_is_new_is_told_to_whoever_knows_the_rest(known: int, rows: int) -> None:
    assert rows == len(ring(7).since(known)["rows"])


def test_of_what_is_gone_only_the_rest_is_told() -> None:
    assert ROWS_MAX == len(ring(ROWS_MAX + 100).since(20)["rows"])
