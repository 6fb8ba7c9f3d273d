"""A changed copy says what a dictionary would say, and the one it was made from stays as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.routing.table import FOLD_MIN, Layered

keys = st.integers(0, 5)
changes = st.dictionaries(keys, st.none() | st.integers())


@given(st.dictionaries(keys, st.integers()), st.lists(changes, max_size=6))
def test_changed_copies_say_what_a_dictionary_would(base: dict[int, int], steps: list[dict[int, int | None]]) -> None:
    layered, expected = Layered(base), dict(base)
    for step in steps:
        before, said = layered, dict(layered)
        layered = layered.changed(step)
        assert dict(before) == said
        expected = {key: value for key, value in {**expected, **step}.items() if value is not None}

    assert expected == dict(layered)
    assert [expected.get(key) for key in range(6)] == [layered.get(key) for key in range(6)]


def test_many_changes_are_folded_in_and_few_share_the_whole() -> None:
    base = dict.fromkeys(range(100), "old")
    few = Layered(base).changed({1: "new"})
    many = few.changed(dict.fromkeys(range(FOLD_MIN + 1), None))

    assert few._base is base
    assert (many._changes, sorted(many._base)) == ({}, list(range(FOLD_MIN + 1, 100)))
