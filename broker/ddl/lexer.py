"""
Lexer: from the bytes of a script to its text, and from the text to one list of tokens for each statement.

Everything about T-SQL's surface is here: blanks, `--` and nested `/* */` comments, `[names]` and "names" with their
doubled closing mark, 'texts' and N'texts', signed whole numbers, `;`, and `GO`, with or without a count, alone on its
line.

A statement ends at `;`, at `GO`, at the end of the text, and before a word that opens a statement (outside
parentheses), because T-SQL does not ask for the `;`. So memory is bounded by the longest statement, whose length is
limited, and a mistake spoils one statement only. Time is linear: the pattern uses possessive repeats, which never go
back.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection
from itertools import islice
from typing import NamedTuple

from broker.errors import DdlSyntaxError, Span

TOKENS_MAX = 10_000  # of one statement; none needs a hundredth of it but a service with thousands of contracts

# Kinds of tokens, as errors name them. The kind of an unquoted word is the word in capitals, that of a mark the mark.
NAME = "a name"  # in brackets or double quotes, or a word that cannot be a keyword
TEXT = "a text in quotes"
NUMBER = "a whole number"
END = "the end of the statement"
OTHER = "anything else"


class Token(NamedTuple):
    """A word, mark or value: its kind, its value without quotes, and its offsets in the script."""

    kind: str
    value: str
    start: int
    end: int


class UnclosedError(Exception):
    """A quote, comment or statement without its end; `start` is the offset of its beginning."""

    def __init__(self, mark: str, start: int) -> None:
        super().__init__(mark, start)
        self.number, self.problem = _UNCLOSED[mark]
        self.start = start
        self.end = start + (2 if mark == "/" else 1)


_UNCLOSED = {
    "'": (105, "this text is not closed: its ' is missing"),
    '"': (105, 'this name is not closed: its " is missing'),
    "[": (105, "this name is not closed: its ] is missing"),
    "/": (113, "this comment is not closed: its */ is missing"),
    ";": (102, f"this statement does not end within {TOKENS_MAX} words and marks; is this a script of statements?"),
}
_TOKENS = re.compile(
    r"""
    (?: [\s\ufeff]++ | --[^\n]*+ )*+
    (?: (?P<WORD> (?! [Nn]' ) [A-Za-z] [A-Za-z0-9_$#@]*+ (?! \w ) )
      | (?P<MARK> :: | [(),.=*] )
      | (?P<TEXT> [Nn]?+ '(?: [^']++ | '' )*+' )
      | (?P<QUOTED> "(?: [^"]++ | "" )*+" | \[(?: [^\]]++ | \]\] )*+\] )
      | (?P<NUMBER> [+-]?+ [0-9]{1,1000}+ (?![\w.]) )
      | (?P<SEPARATOR> ; | \Z )
      | (?P<COMMENT> /\* )
      | (?P<OPEN> ['"\[] )
      | (?P<NAME> (?: [^\W\d] | [#] ) [\w$#@]*+ )
      | (?P<OTHER> @ [\w$#@]*+ | [0-9] [\w.]*+ | . )
    )
    """,
    re.VERBOSE,
).finditer
_new = tuple.__new__  # makes a named tuple in half the time; there are 17 in a usual route
_OBJECTS = frozenset({"ROUTE", "QUEUE", "SERVICE", "TYPE", "CONTRACT", "PRIORITY", "BINDING"})  # DROP ROUTE IF EXISTS
_COMMENT_MARK = re.compile(r"/\*|\*/")
_REST_OF_GO = re.compile(r"(?:[ \t]+[0-9]{1,9})?[ \t\r]*(?:--[^\n]*)?(?:\n|\Z)")


def read_tokens(text: str, at: int, openers: Collection[str]) -> tuple[list[Token], int]:
    """
    The tokens of the next statement, and the offset at which the one after it may begin.

    Args:
        text: The script; line ends are LF or CR LF.
        at: Where to begin: 0, or the offset returned before.
        openers: Words, in capitals, that open a statement.

    Returns:
        No tokens where nothing stands between two separators.

    Raises:
        UnclosedError: a quote or comment in it has no end, or there are more than `TOKENS_MAX` tokens.
    """
    tokens: list[Token] = []
    depth = 0
    while True:  # once more after each /* comment */
        for match in islice(_TOKENS(text, at), TOKENS_MAX + 1 - len(tokens)):
            kind = match.lastgroup
            start, end = match.span(match.lastindex or 0)
            value = text[start:end]
            if kind == "WORD":
                kind = value.upper()
                if kind in openers and tokens and depth <= 0 and not (kind == "IF" and tokens[-1].kind in _OBJECTS):
                    return tokens, start
                if kind == "GO" and (separator_end := _separator_end(text, at, start, end, is_first=not tokens)):
                    return tokens, separator_end
            elif kind == "MARK":
                kind = value
                if kind == "(":
                    depth += 1
                elif kind == ")":
                    depth -= 1
            elif kind == "TEXT":
                kind, value = TEXT, value[value.index("'") + 1 : -1].replace("''", "'")
            elif kind == "QUOTED":
                kind, value = NAME, value[1:-1].replace(value[-1] * 2, value[-1])
            elif kind == "SEPARATOR":
                return tokens, end
            elif kind == "COMMENT":
                at = _end_of_comment(text, start)
                break
            elif kind == "OPEN":
                raise UnclosedError(value, start)
            else:
                kind = {"NUMBER": NUMBER, "NAME": NAME}.get(kind or "", OTHER)
            tokens.append(_new(Token, (kind, value, start, end)))
            at = end
        else:
            raise UnclosedError(";", tokens[0].start)


def _end_of_comment(text: str, start: int) -> int:
    """The offset after a comment, which may hold comments."""
    depth = 0
    for mark in _COMMENT_MARK.finditer(text, start):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    raise UnclosedError("/", start)


def _separator_end(text: str, at: int, start: int, end: int, *, is_first: bool) -> int:
    """
    The end of a GO at the beginning of a line or after a `;`, with at most a count and a comment after it; 0 otherwise.

    `at` is the end of the token before.
    """
    rest = _REST_OF_GO.match(text, end) if is_first or text.find("\n", at, start) >= 0 else None
    return 0 if rest is None else rest.end()


_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PEM = re.compile(r"^-----BEGIN (?:[A-Z0-9]+ )*(?:KEY|CERTIFICATE|PARAMETERS)-----", re.MULTILINE)


def decode_script(data: bytes, *, source: str = "-") -> str:
    """
    The text of a script: UTF-8 with or without a byte order mark, or UTF-16 with one, as the tools of the original
    save theirs. A key or a certificate is refused before a line of it could be shown in an error.

    Raises:
        DdlSyntaxError: 102, at the first byte that is not a character, or where a key or a certificate begins.
    """
    encoding = "utf-16" if data.startswith(_UTF_16_MARKS) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode(encoding)
        span = Span(source, before.count("\n") + 1, len(before) - before.rfind("\n"))
        name = "UTF-16" if encoding == "utf-16" else "UTF-8"
        problem = f"the byte 0x{error.object[error.start]:02x} is not {name}; save the script as UTF-8"
        raise DdlSyntaxError(102, problem, span) from None
    found = _PEM.search(text)
    if found:
        span = Span(source, text.count("\n", 0, found.start()) + 1, 1)
        raise DdlSyntaxError(102, "this is a key or a certificate in PEM form; name a script of statements", span)
    return text
