from __future__ import annotations

from typing import Any

import pytest

from broker.config.toml import KeyPath, KeyPositions, dotted, index_places
from broker.errors import Span

TEXT = '''# a comment
title = "x"

[a."b.c"]   # a table with a quoted name
one = [1, # first
  "two",
  [3, 4],
]
two.deep = { x = 1, 'y z' = "]" }
long = """
no = [key]
""""
time = 1979-05-27 07:32:00  # blanks inside
raw = \'\'\'it's\'\'\'

[[list]]
n = 1
[list.sub]
k = true
[[list]]
n = 'a#b'
'''


def _at(line: int, column: int, length: int) -> Span:
    return Span("f", line, column, length)


@pytest.mark.parametrize(
    ("path", "span"),
    [
        (("title",), _at(2, 1, 5)),
        (("a", "b.c"), _at(4, 1, 9)),
        (("a", "b.c", "one"), _at(5, 1, 3)),
        (("a", "b.c", "two"), _at(9, 1, 8)),
        (("a", "b.c", "two", "deep"), _at(9, 1, 8)),
        (("a", "b.c", "two", "deep", "y z"), _at(9, 21, 5)),
        (("list",), _at(16, 1, 8)),
        (("a",), _at(4, 1, 9)),
        (("list", 0), _at(16, 1, 8)),
        (("list", 0, "sub", "k"), _at(19, 1, 1)),
        (("list", 1, "n"), _at(21, 1, 1)),
    ],
)
def test_key_is_found(path: KeyPath, span: Span) -> None:
    assert span == index_places(TEXT, source="f").keys[path]


@pytest.mark.parametrize(
    ("path", "span"),
    [
        (("title",), _at(2, 9, 3)),
        (("a", "b.c", "one"), _at(5, 7, 11)),
        (("a", "b.c", "one", 0), _at(5, 8, 1)),
        (("a", "b.c", "one", 1), _at(6, 3, 5)),
        (("a", "b.c", "one", 2, 1), _at(7, 7, 1)),
        (("a", "b.c", "two", "deep"), _at(9, 12, 22)),
        (("a", "b.c", "two", "deep", "x"), _at(9, 18, 1)),
        (("a", "b.c", "two", "deep", "y z"), _at(9, 29, 3)),
        (("a", "b.c", "long"), _at(10, 8, 3)),
        (("a", "b.c", "time"), _at(13, 8, 19)),
        (("a", "b.c", "raw"), _at(14, 7, 10)),
        (("list", 1, "n"), _at(21, 5, 5)),
    ],
)
def test_value_is_found(path: KeyPath, span: Span) -> None:
    assert span == index_places(TEXT, source="f").values[path]


@pytest.mark.parametrize("text", ["", "\n", "# only a comment", "[empty]", "a = []", "a = {}"])
def test_little_text_is_no_trouble(text: str) -> None:
    assert isinstance(index_places(text, source="f"), KeyPositions)


def test_carriage_returns_do_not_count() -> None:
    assert _at(2, 5, 1) == index_places("a = 1\r\nb = 2\r\n", source="f").values["b",]


def test_what_has_no_place_has_the_place_of_what_is_around_it() -> None:
    places = index_places("[a]\nb = [1]\n", source="f")

    found = [places.span(path) for path in (("a", "c"), ("a", "b", 7), ("z",))]

    assert [_at(1, 1, 3), _at(2, 5, 3), None] == found


def test_key_or_value_is_pointed_at_as_asked() -> None:
    places = index_places("a = 1\n", source="f")

    assert [_at(1, 5, 1), _at(1, 1, 1)] == [places.span(("a",)), places.span(("a",), of_key=True)]


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        (("a", "b"), "VARIABLE"),
        (("a", "b", 0), "VARIABLE"),  # part of what the variable set
        (("made",), "flag"),  # there only because a key below was set
        (("a",), None),  # stands in the file
        (("other",), None),
    ],
)
def test_origin_of_what_did_not_come_from_the_file(path: KeyPath, origin: str | None) -> None:
    places = index_places("[a]\nb = [1]\n", source="f")
    places.elsewhere.update({("a", "b"): "VARIABLE", ("made", "by"): "flag"})

    assert origin == places.origin(path)


def test_what_came_from_elsewhere_has_no_place_in_the_file() -> None:
    places = index_places("a = 1\n", source="f")
    places.elsewhere["a",] = "VARIABLE"

    assert places.span(("a",)) is None


def test_places_are_shown_without_the_lines_of_a_file() -> None:
    assert "secret" not in repr(index_places("# a secret\na = 1", source="f"))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("a", "b"), "a.b"),
        (("a", 0, "b"), "a[0].b"),
        (("a", "b.c"), 'a."b.c"'),
        (("",), '""'),
        (("é",), '"é"'),
        (("a\n",), r'"a\n"'),
    ],
)
def test_dotted(path: Any, text: str) -> None:
    assert text == dotted(path)
