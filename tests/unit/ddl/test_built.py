"""What a name may be."""

from __future__ import annotations

import pytest

from broker.ddl.lexer import Token, is_text
from broker.ddl.parser import NAME_MAX_CHARACTERS, RefusedError, checked_name


@pytest.mark.parametrize("name", ["a", "x" * NAME_MAX_CHARACTERS, "ж"])
def test_name_of_a_sensible_length_is_one(name: str) -> None:
    assert name == checked_name(Token("NAME", name))


@pytest.mark.parametrize(("name", "number"), [("", 1038), ("x" * (NAME_MAX_CHARACTERS + 1), 103), ("\ud800", 102)])
def test_what_is_no_name_is_refused_by_its_number(name: str, number: int) -> None:
    with pytest.raises(RefusedError) as caught:
        checked_name(Token("NAME", name))

    assert number == caught.value.number


def test_bound_may_be_another_one() -> None:
    with pytest.raises(RefusedError, match="at most 3"):
        checked_name(Token("NAME", "long"), 3)


def test_half_a_character_is_no_text() -> None:
    assert (True, False) == (is_text("a"), is_text("\udfff"))
