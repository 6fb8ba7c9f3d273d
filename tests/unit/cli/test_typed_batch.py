"""What ends a statement at the prompt, and what is not kept of it."""

from __future__ import annotations

import pytest

from broker.cli.sql import is_blank, is_go, is_open, is_secret, is_whole, used_database


@pytest.mark.parametrize("line", ["GO", "go", "  Go ; "])
def test_a_line_with_go_ends_what_was_typed(line: str) -> None:
    assert is_go(line)


@pytest.mark.parametrize("line", ["GOAL", "SELECT 1 GO", ""])
def test_other_lines_do_not(line: str) -> None:
    assert not is_go(line)


@pytest.mark.parametrize(
    "text",
    ["SELECT 1;", "SELECT 1 ; ", "SELECT ';';", "SELECT [a;b];", "SELECT 1; -- ; so", "SELECT 1 /* ; */;", "a\n;"],
)
def test_a_semicolon_at_the_end_makes_it_whole(text: str) -> None:
    assert is_whole(text)


@pytest.mark.parametrize(
    "text",
    ["SELECT 1", "SELECT ';", "SELECT 1; -- '\nFROM x", "SELECT [a;", "SELECT 1 /* ;", "SELECT 'it''s;", "-- a;"],
)
def test_a_semicolon_in_a_text_a_name_or_a_comment_does_not(text: str) -> None:
    assert not is_whole(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 'a", True),
        ("SELECT [a", True),
        ("/* a", True),
        ('SELECT "a', True),
        ("SELECT 'a''b'", False),
        ("-- it's", False),
    ],
)
def test_what_is_not_closed_goes_on_in_the_next_line(text: str, *, expected: bool) -> None:
    assert expected is is_open(text)


@pytest.mark.parametrize(("text", "expected"), [(" ;\n", True), ("-- a\n/* b\n */;", True), ("SELECT", False)])
def test_blanks_and_comments_are_no_statement(text: str, *, expected: bool) -> None:
    assert expected is is_blank(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CREATE LOGIN a WITH PASSWORD = 'x';", True),
        ("create certificate a with private key (file = 'x')", True),
        (" SELECT 1;", True),
        ("SELECT 'brk_token_1'", True),
        ("SELECT name FROM sys.routes;", False),
    ],
)
def test_what_may_hold_a_secret_is_known(text: str, *, expected: bool) -> None:
    assert expected is is_secret(text)


@pytest.mark.parametrize(
    ("text", "database"),
    [
        ("USE orders;", "orders"),
        ("use [my orders]", "my orders"),
        ("USE [a]]b];", "a]b"),
        ("USE a; SELECT 1", None),
        ("USED", None),
    ],
)
def test_a_use_alone_names_a_database(text: str, database: str | None) -> None:
    assert database == used_database(text)
