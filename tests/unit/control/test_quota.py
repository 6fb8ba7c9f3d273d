"""The first of each kind, and the count of the others."""

from __future__ import annotations

from broker.catalog.dry_run import Kind, first_of_each


def kind_of(one: tuple[str, str | None, int]) -> Kind:
    return one[0], one[1]


def test_the_first_of_each_kind_are_kept_in_their_order_and_the_others_counted() -> None:
    found = [("a", "x", 1), ("b", "x", 2), ("a", "y", 3), ("a", "x", 4), ("a", "x", 5), ("a", None, 6), ("a", "x", 7)]

    kept, more = first_of_each(found, kind_of, most=2)

    assert [1, 2, 3, 4, 6] == [number for _, _, number in kept]
    assert {("a", "x"): 2} == more


def test_nothing_found_is_nothing_kept() -> None:
    assert ([], {}) == first_of_each([], kind_of, most=2)
