"""How text is cut: tokens with decoded values, statements with their ends."""

import codecs

import pytest

from broker.ddl.lexer import NAME, NUMBER, OTHER, TEXT, TOKENS_MAX, UnclosedError, decode_script, read_tokens
from broker.errors import DdlSyntaxError, Span

OPENERS = {"CREATE", "DROP"}


def cut(text: str) -> list[list[str]]:
    """The statements of a text, each as its tokens' values."""
    at, statements = 0, []
    while at < len(text):
        tokens, at = read_tokens(text, at, OPENERS)
        if tokens:
            statements.append([token.value for token in tokens])
    return statements


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("route", "ROUTE", "route"),
        ("ro\u017fute", NAME, "ro\u017fute"),
        ("c\u017f", NAME, "c\u017f"),
        ("Größe_1$#@", NAME, "Größe_1$#@"),
        ("#temporary", NAME, "#temporary"),
        ("@handle", OTHER, "@handle"),
        ("[a b]", NAME, "a b"),
        ("[]", NAME, ""),
        ("[a]]b]", NAME, "a]b"),
        ("[route]", NAME, "route"),
        ('"a""b ]"', NAME, 'a"b ]'),
        ("'it''s'", TEXT, "it's"),
        ("''", TEXT, ""),
        ("''''", TEXT, "'"),
        ("'a\nb'", TEXT, "a\nb"),
        ("N'ж'", TEXT, "ж"),
        ("n'x'", TEXT, "x"),
        ("'-- no /* comment'", TEXT, "-- no /* comment"),
        ("12", NUMBER, "12"),
        ("-12", NUMBER, "-12"),
        ("+12", NUMBER, "+12"),
        ("1.5", OTHER, "1.5"),
        ("12abc", OTHER, "12abc"),
        ("1" * 1001, OTHER, "1" * 1001),
        ("=", "=", "="),
        ("::", "::", "::"),
        ("%", OTHER, "%"),
        ("-", OTHER, "-"),
        ("go", "GO", "go"),
        ("N", "N", "N"),
    ],
)
def test_token_has_its_kind_its_decoded_value_and_its_place(text: str, kind: str, value: str) -> None:
    assert (kind, value, 2, 2 + len(text)) == read_tokens(f"x {text}", 0, OPENERS)[0][1]


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
        ("a\nGO 2 -- twice\nb", [["a"], ["b"]]),
        ("a\nGO x\nb", [["a", "GO", "x", "b"]]),
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

    assert (number, at, length) == (caught.value.number, caught.value.start, caught.value.end - caught.value.start)
    assert "is not closed" in caught.value.problem


def test_statement_that_does_not_end_is_told_at_its_beginning() -> None:
    """Its tokens would take hundreds of bytes each; one of as many tokens as there may be is read."""
    assert [["a"] * TOKENS_MAX, ["b"]] == cut("a " * TOKENS_MAX + "; b")

    with pytest.raises(UnclosedError) as caught:
        cut("b;\n" + "a " * (TOKENS_MAX + 1))

    assert (102, 3, 1) == (caught.value.number, caught.value.start, caught.value.end - caught.value.start)
    assert "does not end within 10000 words and marks" in caught.value.problem


TEXT = "DROP ROUTE [größer 😀];\r\nGO\n"


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        codecs.BOM_UTF8 + TEXT.encode(),
        codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
        codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
    ],
    ids=["UTF-8", "UTF-8 with a mark", "UTF-16", "UTF-16 the other way round"],
)
def test_script_is_read_as_it_was_saved(data: bytes) -> None:
    assert TEXT == decode_script(data)


@pytest.mark.parametrize(
    ("data", "line", "column", "problem"),
    [
        (b"\xff", 1, 1, "the byte 0xff is not UTF-8; save the script as UTF-8"),
        (b"DROP ROUTE a;\nDROP \xe4", 2, 6, "the byte 0xe4 is not UTF-8; save the script as UTF-8"),
        ("größer\n😀 ".encode() + b"\x80", 2, 3, "the byte 0x80 is not UTF-8; save the script as UTF-8"),
        (codecs.BOM_UTF8 + b"a\xc3", 1, 2, "the byte 0xc3 is not UTF-8; save the script as UTF-8"),
        (b"a\xed\xa0\x80", 1, 2, "the byte 0xed is not UTF-8; save the script as UTF-8"),  # half a character
        (codecs.BOM_UTF16_LE + b"a\0\n\0\0\xdc", 2, 1, "the byte 0x00 is not UTF-16; save the script as UTF-8"),
    ],
)
def test_what_is_no_text_is_told_at_its_first_byte(data: bytes, line: int, column: int, problem: str) -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        decode_script(data, source="a.sql")

    assert (102, problem) == (caught.value.number, caught.value.problem)
    assert Span("a.sql", line, column) == caught.value.span


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("-----BEGIN PRIVATE KEY-----\nMIGHAgEA\n-----END PRIVATE KEY-----\n", 1),
        ("-----BEGIN KEY-----\nMIGHAgEA\n", 1),
        ("Bag Attributes\r\n-----BEGIN EC PARAMETERS-----\r\nBggq\r\n", 2),
        ("subject=a\n\n-----BEGIN CERTIFICATE-----\nMIIB\n", 3),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n", 1),
    ],
    ids=["PKCS 8", "no kind", "openssl", "certificate", "OpenSSH"],
)
def test_no_line_of_a_key_is_in_what_is_said_of_it(text: str, line: int) -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        decode_script(text.encode(), source="a.key")

    problem = "this is a key or a certificate in PEM form; name a script of statements"
    assert (102, problem, Span("a.key", line, 1)) == (caught.value.number, caught.value.problem, caught.value.span)
    assert caught.value.text_line is None


@pytest.mark.parametrize("line", ["-----BEGIN routes", "----------------", "-----BEGIN ROUTES-----"])
def test_a_comment_that_begins_like_a_key_is_none(line: str) -> None:
    assert line == decode_script(line.encode())
