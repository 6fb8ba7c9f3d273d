"""
Text to tokens, and tokens to one list per statement.

The rules of T-SQL's surface live here and only here: blanks, `--` and nested `/* */` comments, `[names]` and "names"
with their doubled closing mark, 'texts' and N'texts', signed whole numbers, `;`, and `GO` alone on its line. Which
words are keywords comes from the grammar. Values leave decoded: a token of type NAME or STRING holds what the quotes
enclose.

A statement ends at `;`, at `GO`, at the end of the text, and before a word that opens a statement (outside
parentheses), because T-SQL does not ask for the `;`. So memory is bounded by the longest statement, whose length has a
bound, a mistake spoils one statement only, and every character is looked at once: the pattern uses possessive repeats,
which never go back.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from broker.errors import DdlSyntaxError, Span

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import Self


# --- token ---
# A word, mark or value of a statement, and where it stands.


class Token(str):
    """
    The decoded text of a token, which is a text itself.

    Shape: `type` the terminal of the grammar; `start`, `end` offsets into the script.
    """

    __slots__ = ("end", "start", "type")

    type: str
    start: int
    end: int

    def __new__(cls, kind: str, value: str, start: int = 0, end: int = 0) -> Self:
        """A token of this kind."""
        token = str.__new__(cls, value)
        token.type, token.start, token.end = kind, start, end
        return token

    def __repr__(self) -> str:
        return f"Token({self.type!r}, {str(self)!r})"


def place_of(token: Token) -> tuple[int, int]:
    """Where a token begins and ends, as offsets into the script."""
    return token.start, token.end


_TOKEN = re.compile(
    r"""
    (?: [\s\ufeff]++ | --[^\n]*+ )*+
    (?: (?P<STRING> [Nn]?+ '(?: [^']++ | '' )*+' )
      | (?P<WORD> (?: [^\W\d] | [#@] ) [\w$#@]*+ )
      | (?P<NAME> "(?: [^"]++ | "" )*+" | \[(?: [^\]]++ | \]\] )*+\] )
      | (?P<INTEGER> [+-]?+ [0-9]{1,1000}+ (?![\w.]) )
      | (?P<MARK> :: | [(),.=;] )
      | (?P<COMMENT> /\* )
      | (?P<OPEN> ['"\[] )
      | (?P<END_OF_TEXT> \Z )
      | (?P<OTHER> [0-9] [\w.]*+ | . )
    )
    """,
    re.VERBOSE,
).match
_SEPARATORS = frozenset({"SEMICOLON", "GO", "END_OF_TEXT"})
_COMMENT_MARK = re.compile(r"/\*|\*/")
_REST_OF_GO = re.compile(r"[ \t\r]*(?:--[^\n]*)?(?:\n|\Z)")

TOKENS_MAX = 10_000  # of one statement; none needs a hundredth of it but a service with thousands of contracts

_UNCLOSED = {
    "'": (105, "this text is not closed: its ' is missing"),
    '"': (105, 'this name is not closed: its " is missing'),
    "[": (105, "this name is not closed: its ] is missing"),
    "/": (113, "this comment is not closed: its */ is missing"),
    ";": (102, f"this statement does not end within {TOKENS_MAX} words and marks; is this a script of statements?"),
}


class UnclosedError(Exception):
    """A quote, comment or statement without its end; `at` is the offset of its beginning. Only the parser sees it."""

    def __init__(self, mark: str, at: int) -> None:
        super().__init__(mark, at)
        self.number, self.problem = _UNCLOSED[mark]
        self.at = at
        self.length = 2 if mark == "/" else 1


class Draft(Struct, frozen=True):
    """The tokens of one statement, none between two separators, and the offset at which the next one may begin."""

    tokens: list[Token]
    next: int


def next_draft(text: str, at: int, keywords: Mapping[str, str], openers: Collection[str]) -> Draft:
    """
    The next statement of a script.

    Args:
        text: The script; line ends are LF or CR LF.
        at: Where to begin: 0, or where the last draft said.
        keywords: Terminal of every keyword (in upper case) and punctuation mark of the grammar.
        openers: Terminals that open a statement.

    Raises:
        UnclosedError: a quote or comment in it has no end, or there are more than `TOKENS_MAX` tokens.
    """
    tokens: list[Token] = []
    depth = 0
    stream = _tokens(text, at, keywords)
    while True:
        token = next(stream)
        kind = token.type
        if kind in _SEPARATORS:
            return Draft(tokens, place_of(token)[1])
        if kind in openers and tokens and depth <= 0:
            return Draft(tokens, place_of(token)[0])
        if kind == "LPAR":
            depth += 1
        elif kind == "RPAR":
            depth -= 1
        tokens.append(token)
        if len(tokens) > TOKENS_MAX:
            raise UnclosedError(";", place_of(tokens[0])[0])


def _tokens(text: str, at: int, keywords: Mapping[str, str]) -> Iterator[Token]:
    """Every token from an offset on, then END_OF_TEXT for ever; a mark unknown to the grammar has a type it lacks."""
    while True:
        match = _TOKEN(text, at)
        assert match is not None  # the last alternatives take anything, and the end
        kind = match.lastgroup or ""
        start, end = match.span(kind)
        if kind == "COMMENT":
            at = _end_of_comment(text, start)
            continue
        if kind == "OPEN":
            raise UnclosedError(text[start], start)
        value = text[start:end]
        if kind == "WORD":
            kind = keywords.get(value.upper(), "NAME") if value.isascii() else "NAME"
            if kind == "NAME" and value[0] == "@":
                kind = "VARIABLE"
            elif kind == "NAME" and _is_go(text, value, at, start, end):
                kind = "GO"
        elif kind == "MARK":
            kind = "SEMICOLON" if value == ";" else keywords.get(value, "OTHER")
        elif kind != "INTEGER":
            value = _decode(kind, value)
        yield Token(kind, value, start, end)
        at = end


def _end_of_comment(text: str, start: int) -> int:
    """The offset after a comment, which may hold comments."""
    depth = 0
    for mark in _COMMENT_MARK.finditer(text, start):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    raise UnclosedError("/", start)


def _is_go(text: str, value: str, at: int, start: int, end: int) -> bool:
    """Whether the word is the batch separator: GO, alone on its line but for a comment; `at` ends the last token."""
    return (
        value.upper() == "GO"
        and (at == 0 or text.find("\n", at, start) >= 0)
        and _REST_OF_GO.match(text, end) is not None
    )


def _decode(kind: str, value: str) -> str:
    """What a quoted text or name stands for; other tokens stand for themselves."""
    if kind == "STRING":
        return value[value.index("'") + 1 : -1].replace("''", "'")
    if kind == "NAME":
        mark = value[-1]
        return value[1:-1].replace(mark * 2, mark)
    return value


# --- text ---
# From the bytes of a file, or of standard input, to the text of a script.
#
# A script is UTF-8, with or without the mark that some editors put at its beginning, or UTF-16 behind such a mark, as
# the
# tools of the original save theirs. Anything else is a mistake with a place, like one in a statement. A key or a
# certificate, which somebody has named instead of a script, is refused before a line of it could be shown in a
# mistake.


_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PEM = re.compile(r"^-----BEGIN (?:[A-Z0-9]+ )*(?:KEY|CERTIFICATE|PARAMETERS)-----", re.MULTILINE)


def decode_script(data: bytes, *, source: str = "-") -> str:
    """
    The text, without the mark.

    Raises:
        DdlSyntaxError: 102, at the first byte that stands for no character, or where a key or a certificate begins.
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


# --- places ---
# Part of `broker.ddl.parser`.


Place: TypeAlias = tuple[int, int]


def is_text(name: str) -> bool:
    """Whether a name can be stored and sent: JSON can bring half of a pair of surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
