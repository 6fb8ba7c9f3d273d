from __future__ import annotations

import operator

import pytest

from broker.observe.samples import OTHER, VALUES_MAX, Fold, LabelCap


def test_values_within_the_bound_are_told() -> None:
    folded = LabelCap(2).fold("m", [(("a",), 1), (("b",), 2)], operator.add)

    assert folded == {("a",): 1, ("b",): 2}


def test_samples_with_equal_labels_are_one() -> None:
    folded = LabelCap(2).fold("m", [(("a",), 1), (("a",), 2)], operator.add)

    assert folded == {("a",): 3}


@pytest.mark.parametrize(("fold", "expected"), [(operator.add, 7), (min, 3), (max, 4)])
def test_values_past_the_bound_are_one(fold: Fold, expected: float) -> None:
    cap = LabelCap(1)

    folded = cap.fold("m", [(("a",), 1), (("b",), 3), (("c",), 4)], fold)

    assert folded == {("a",): 1, (OTHER,): expected}
    assert cap.overflows == 2


def test_first_values_stay_the_first() -> None:
    """A counter never moves from its series to another, whatever order it comes in."""
    cap = LabelCap(1)
    cap.fold("m", [(("a",), 1)], operator.add)

    folded = cap.fold("m", [(("b",), 3), (("a",), 2)], operator.add)

    assert folded == {(OTHER,): 3, ("a",): 2}


def test_every_label_of_every_metric_has_a_bound_of_its_own() -> None:
    cap = LabelCap(1)

    cap.fold("m", [(("a", "b"), 1)], operator.add)
    folded = cap.fold("n", [(("c", "d"), 1)], operator.add)

    assert folded == {("c", "d"): 1}


def test_labels_without_values_are_let_through() -> None:
    assert LabelCap().fold("m", [((), 1)], operator.add) == {(): 1}


def test_bound_is_what_the_page_says() -> None:
    assert VALUES_MAX == 500
