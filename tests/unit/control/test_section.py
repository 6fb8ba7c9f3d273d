"""A section by itself: what it reads, every fault in one run, and a value that stays as it is."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Annotated, Any

import pytest

from broker.config import values as value
from broker.config.values import Reload, Section, SectionError, ValueFault, Wrong, keys_of, section, sections, setting

HOPS = value.integer(1, 9, unit="hops")


class Leaf(Section):
    hops: Annotated[int, HOPS] = setting(3, "How far.", reason="Far enough.", reload=Reload.LIVE)
    pause: Annotated[float, value.duration("1s", "1h")] = setting("2s", "How long.", reason="", reload=Reload.LIVE)
    names: Annotated[tuple[int, ...], value.list_of(HOPS)] = setting(
        None, "Who.", reason="", reload=Reload.RESTART, said="one", factory=lambda: [1]
    )


class Entry(Section):
    hops: Annotated[int, HOPS] = setting(..., "How far.", reason="", reload=Reload.LIVE)


class Root(Section):
    leaf: Leaf = section(Leaf)
    entries: Mapping[str, Entry] = sections()


def test_a_table_is_read_with_its_defaults() -> None:
    root = Root.read({"leaf": {"hops": 5}, "entries": {"one": {"hops": 7}}})

    assert (5, 2.0, (1,), 7) == (root.leaf.hops, root.leaf.pause, root.leaf.names, root.entries["one"].hops)


def test_it_may_be_made_by_name_and_of_sections_that_are_there() -> None:
    assert Root.read({"leaf": {"hops": 5}}) == Root(leaf=Leaf(hops=5))


def test_what_was_given_is_known() -> None:
    root = Root.read({"leaf": {"hops": 3}})

    assert [{"leaf"}, {"hops"}, frozenset()] == [root.given, root.leaf.given, Root().leaf.given]


@pytest.mark.parametrize(
    ("table", "faults"),
    [
        (
            {"leaf": {"hops": 0, "hop": 1, "names": [1, "x", 2, 77]}, "entries": {"a": {}, "b": 2}, "self": 1},
            [
                (("leaf", "hops"), Wrong.REFUSED, 0),
                (("leaf", "names", 1), Wrong.REFUSED, "x"),
                (("leaf", "names", 3), Wrong.REFUSED, 77),
                (("leaf", "hop"), Wrong.UNKNOWN, 1),
                (("entries", "a", "hops"), Wrong.MISSING, None),
                (("entries", "b"), Wrong.NO_SECTION, 2),
                (("self",), Wrong.UNKNOWN, 1),
            ],
        ),
        (
            {"leaf": [1], "entries": 5},
            [(("leaf",), Wrong.NO_SECTION, [1]), (("entries",), Wrong.NO_SECTION, 5)],
        ),
    ],
)
def test_every_fault_is_found_in_one_run(table: dict[str, Any], faults: list[Any]) -> None:
    with pytest.raises(SectionError) as caught:
        Root.read(table)

    assert faults == [(one.path, one.wrong, one.value) for one in caught.value.faults]


def test_a_fault_says_what_is_wrong_with_which_key() -> None:
    with pytest.raises(SectionError) as caught:
        Leaf(hops=0, hop=1)  # type: ignore[call-arg]

    assert "hops: 0 is out of range; allowed is 1 to 9\nhop: unknown" == str(caught.value)


def test_nothing_of_it_can_be_changed() -> None:
    leaf = Leaf()

    with pytest.raises(AttributeError, match=r"Leaf\.hops cannot be changed"):
        leaf.hops = 4  # type: ignore[misc]
    with pytest.raises(AttributeError, match=r"Leaf\.hops cannot be changed"):
        del leaf.hops

    assert 3 == leaf.hops


def test_another_one_takes_values_as_they_are_and_leaves_the_first() -> None:
    leaf = Leaf()

    other = leaf.with_values({"pause": 0.01})

    assert (0.01, 3, 2.0) == (other.pause, other.hops, leaf.pause)


def test_two_are_equal_by_their_values_alone() -> None:
    assert Leaf() == Leaf(hops=3)
    assert Leaf() != Leaf(hops=4)
    assert Leaf() != Entry(hops=3)
    assert Leaf() != 3


def test_it_is_shown_with_its_values() -> None:
    assert "Root(leaf=Leaf(hops=3, pause=2.0, names=(1,)), entries={})" == repr(Root())


def test_it_goes_to_another_process_and_stays_the_same() -> None:
    root = Root.read({"entries": {"one": {"hops": 7}}})

    assert root == pickle.loads(pickle.dumps(root))


def test_a_key_without_a_default_is_required() -> None:
    assert [True, False, False] == [
        key.is_required for key in (keys_of(Entry)["hops"], keys_of(Leaf)["hops"], keys_of(Leaf)["names"])
    ]


def test_a_field_that_is_neither_a_setting_nor_a_section_is_a_fault_of_the_program() -> None:
    class Odd(Section):
        hops: int = setting(3, "How far.", reason="", reload=Reload.LIVE)

    with pytest.raises(AssertionError, match="neither a kind nor a section"):
        Odd()


def test_a_fault_without_words_names_its_kind() -> None:
    assert "a.b: no section" == str(ValueFault(("a", "b"), Wrong.NO_SECTION))
