"""How text is cut: tokens with decoded values, statements with their ends."""

from __future__ import annotations

import pytest

from broker.ddl.lexer import TOKENS_MAX, UnclosedError, next_draft, place_of

KEYWORDS = {"CREATE": "CREATE", "DROP": "DROP", "ROUTE": "ROUTE", "(": "LPAR", ")": "RPAR", "=": "EQUAL", ".": "DOT"}
OPENERS = {"CREATE", "DROP"}


def cut(text: str) -> list[list[str]]:
    """The statements of a text, each as its tokens' values."""
    at, drafts = 0, []
    while at < len(text):
        draft = next_draft(text, at, KEYWORDS, OPENERS)
        at = draft.next
        if draft.tokens:
            drafts.append([str(token) for token in draft.tokens])
    return drafts


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("route", "ROUTE", "route"),
        ("ro\u017fute", "NAME", "ro\u017fute"),
        ("c\u017f", "NAME", "c\u017f"),
        ("Größe_1$#@", "NAME", "Größe_1$#@"),
        ("#temporary", "NAME", "#temporary"),
        ("@handle", "VARIABLE", "@handle"),
        ("[a b]", "NAME", "a b"),
        ("[]", "NAME", ""),
        ("[a]]b]", "NAME", "a]b"),
        ("[route]", "NAME", "route"),
        ('"a""b ]"', "NAME", 'a"b ]'),
        ("'it''s'", "STRING", "it's"),
        ("''", "STRING", ""),
        ("''''", "STRING", "'"),
        ("'a\nb'", "STRING", "a\nb"),
        ("N'ж'", "STRING", "ж"),
        ("n'x'", "STRING", "x"),
        ("'-- no /* comment'", "STRING", "-- no /* comment"),
        ("12", "INTEGER", "12"),
        ("-12", "INTEGER", "-12"),
        ("+12", "INTEGER", "+12"),
        ("1.5", "OTHER", "1.5"),
        ("12abc", "OTHER", "12abc"),
        ("1" * 1001, "OTHER", "1" * 1001),
        ("=", "EQUAL", "="),
        ("::", "OTHER", "::"),
        ("%", "OTHER", "%"),
        ("-", "OTHER", "-"),
        ("go", "GO", "go"),
    ],
)
def test_token_has_its_kind_and_its_decoded_value(text: str, kind: str, value: str) -> None:
    """GO ends a draft, so it is looked at behind a word on its line."""
    draft = next_draft(f"x {text}" if kind != "GO" else "x\ngo", 0, KEYWORDS, OPENERS)

    if kind == "GO":
        assert (["x"], len("x\ngo")) == ([str(token) for token in draft.tokens], draft.next)
    else:
        token = draft.tokens[1]
        assert (kind, value) == (token.type, str(token))
        assert place_of(token) == (2, 2 + len(text))


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        (" \n\t\ufeff", []),
        (";;", []),
        ("-- only a comment", []),
        ("/* only a comment */", []),
        ("a b; c", [["a", "b"], ["c"]]),
        ("a;", [["a"]]),
        ("\ufeffa", [["a"]]),
        ("a --b; c\nd", [["a", "d"]]),
        ("a/*b*/c", [["a", "c"]]),
        ("a /* b /* c; */ d; */ e", [["a", "e"]]),
        ("a /* -- */ b", [["a", "b"]]),
        ("a -- /* \nb", [["a", "b"]]),
        ("create a create b drop c", [["create", "a"], ["create", "b"], ["drop", "c"]]),
        ("a (drop b) drop c", [["a", "(", "drop", "b", ")"], ["drop", "c"]]),
        ("a ) drop c", [["a", ")"], ["drop", "c"]]),
        ("a ( ; drop c", [["a", "("], ["drop", "c"]]),
        ("a [create] 'drop'", [["a", "create", "drop"]]),
        ("a\nGO\nb", [["a"], ["b"]]),
        ("a\r\nGO\r\nb", [["a"], ["b"]]),
        ("GO\na", [["a"]]),
        ("a;\n  go -- now\nb", [["a"], ["b"]]),
        ("a\nGO", [["a"]]),
        ("a GO\nb", [["a", "GO", "b"]]),
        ("a\nGO 2\nb", [["a", "GO", "2", "b"]]),
        ("a\n[GO]\nb", [["a", "GO", "b"]]),
        ("a '\nGO\n' b", [["a", "\nGO\n", "b"]]),
        ("a /*\nGO\n*/ b", [["a", "b"]]),
    ],
)
def test_statements_end_where_t_sql_ends_them(text: str, statements: list[list[str]]) -> None:
    assert statements == cut(text)


@pytest.mark.parametrize(
    ("text", "number", "at", "length"),
    [
        ("a 'b", 105, 2, 1),
        ("a 'b''", 105, 2, 1),
        ("a N'b", 105, 3, 1),
        ('a "b', 105, 2, 1),
        ("a [b]]", 105, 2, 1),
        ("a /* b", 113, 2, 2),
        ("a /* /* */", 113, 2, 2),
    ],
)
def test_unclosed_quote_or_comment_is_told_at_its_beginning(text: str, number: int, at: int, length: int) -> None:
    with pytest.raises(UnclosedError) as caught:
        cut(text)

    assert (number, at, length) == (caught.value.number, caught.value.at, caught.value.length)
    assert "is not closed" in caught.value.problem


def test_statement_of_as_many_tokens_as_there_may_be_is_read() -> None:
    assert [["a"] * TOKENS_MAX, ["b"]] == cut("a " * TOKENS_MAX + "; b")


def test_statement_that_does_not_end_is_told_at_its_beginning() -> None:
    """Its tokens would take hundreds of bytes each."""
    with pytest.raises(UnclosedError) as caught:
        cut("b;\n" + "a " * (TOKENS_MAX + 1))

    assert (102, 3, 1) == (caught.value.number, caught.value.at, caught.value.length)
    assert "does not end within 10000 words and marks" in caught.value.problem
