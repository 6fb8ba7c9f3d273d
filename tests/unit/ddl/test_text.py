"""Scripts as editors save them become one text; what is none is told with its place."""

from __future__ import annotations

import codecs

import pytest

from broker.ddl.lexer import decode_script
from broker.errors import DdlSyntaxError, Span

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


def test_nothing_is_an_empty_script() -> None:
    assert "" == decode_script(b"")


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
