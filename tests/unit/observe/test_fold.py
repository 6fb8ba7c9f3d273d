from __future__ import annotations

from typing import Any

import pytest

from broker.observe.health import NAME_MAX, cut, fold, shorten


def rows(*sizes: float | None) -> list[dict[str, Any]]:
    return [{"name": f"row {at}", "size": size} for at, size in enumerate(sizes)]


def test_the_heaviest_rows_stay_and_the_rest_is_added_up() -> None:
    folded = fold(rows(1, 5, 2, 4), 2, weight=lambda one: one["size"], sums=("size",))

    assert {
        "count": 4,
        "rows": [{"name": "row 1", "size": 5}, {"name": "row 3", "size": 4}],
        "folded": {"count": 2, "size": 3},
    } == folded


def test_nothing_is_folded_where_there_is_room() -> None:
    folded = fold(rows(1, 2), 2, weight=lambda one: one["size"], sums=("size",))

    assert ([2, 1], {"count": 0, "size": 0}) == ([one["size"] for one in folded["rows"]], folded["folded"])


def test_what_nobody_knows_adds_nothing() -> None:
    folded = fold(rows(None, None, None), 1, weight=lambda one: one["size"] or 0, sums=("size",))

    assert {"count": 2, "size": 0} == folded["folded"]


@pytest.mark.parametrize("length", [0, 1, NAME_MAX - 1, NAME_MAX])
def test_a_text_that_fits_stays_as_it_is(length: int) -> None:
    assert "x" * length == shorten("x" * length)


@pytest.mark.parametrize("length", [NAME_MAX + 1, 10_000, 1_000_000])
def test_a_text_that_is_too_long_says_how_long_it_was(length: int) -> None:
    short = shorten("x" * length)

    assert NAME_MAX == len(short)
    assert short.endswith(f"… ({length:,} characters)")


def test_texts_of_a_row_are_cut_and_other_values_are_not() -> None:
    assert {"name": shorten("x" * 999), "size": 10**300, "none": None} == cut(
        {"name": "x" * 999, "size": 10**300, "none": None}
    )
