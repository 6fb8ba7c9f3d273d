"""The automaton by itself: what it makes of tokens, and what it says could have stood where one could not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker.ddl.lexer import Token
from broker.ddl.parser import Automaton, Builder, UnexpectedTokenError


class _Trees:
    """Shows each rule that is reduced, with its parts."""

    def __getattr__(self, name: str) -> Any:
        return lambda parts: (name, *parts)


def tokens(text: str) -> list[Token]:
    """Shape: words by blanks, each its kind; `kind=text` where they differ."""
    found, at = [], 0
    for word in text.split():
        kind, _, value = word.partition("=")
        found.append(Token(kind, value or kind, at, at + len(word)))
        at += len(word) + 1
    return found


AUTOMATON = Automaton(_Trees())
READ = Automaton(Builder())


def name(text: str) -> tuple[Any, ...]:
    return ("name", ("word", text))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("USE NAME=a", ("use_database", name("a"))),
        ("DROP QUEUE NAME=q", ("drop_queue", ("queue", name("q"), None))),
        ("DROP QUEUE NAME=s DOT NAME=q", ("drop_queue", ("queue", name("s"), name("q")))),
        (
            "CREATE ROUTE NAME=r WITH ADDRESS EQUAL STRING=x COMMA WEIGHT EQUAL INTEGER=2",
            (
                "create_route",
                name("r"),
                None,
                ("route_properties", ("route_property", "ADDRESS", "x"), ("route_property", "WEIGHT", "2")),
            ),
        ),
        (
            "REVOKE SEND ON SERVICE __ANON_0 NAME=s FROM NAME=p CASCADE",
            (
                "change_permission",
                "REVOKE",
                "SEND",
                ("securable", ("word", "s")),
                ("principals", ("principal", ("word", "p"))),
            ),
        ),
        ("END CONVERSATION STRING=h WITH CLEANUP", ("end_conversation", "h", ("cleanup",))),
    ],
)
def test_each_rule_gets_the_parts_that_count(text: str, tree: Sequence[Any]) -> None:
    assert tree == AUTOMATON.parse(tokens(text))


@pytest.mark.parametrize(
    ("text", "accepts"),
    [
        ("OTHER", AUTOMATON.openers),
        ("END NAME", {"CONVERSATION"}),
        ("DROP REMOTE SERVICE OTHER", {"BINDING"}),
        ("CREATE QUEUE NAME=q DOT NAME=r DOT", {"$END", "WITH"}),
        ("DROP ROUTE NAME=r NAME=s", {"$END"}),
    ],
)
def test_a_token_that_cannot_stand_there_tells_what_could(text: str, accepts: set[str]) -> None:
    given = tokens(text)

    with pytest.raises(UnexpectedTokenError) as caught:
        READ.parse(given)

    assert given[-1] is caught.value.token
    assert accepts == caught.value.accepts


def test_an_end_that_comes_too_early_stands_behind_the_last_token() -> None:
    with pytest.raises(UnexpectedTokenError) as caught:
        READ.parse(tokens("MOVE CONVERSATION"))

    assert ("$END", 17) == (caught.value.token.type, caught.value.token.start)
    assert {"STRING"} == caught.value.accepts


def test_nothing_is_no_statement() -> None:
    with pytest.raises(UnexpectedTokenError) as caught:
        READ.parse([])

    assert READ.openers == caught.value.accepts
