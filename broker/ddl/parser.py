"""
Text to statements, and what is wrong with text that is none.

The script is cut into statements first (`lexer`), each is parsed by itself (`automaton`, by `grammar.lark`), so memory
is bounded by the longest statement, time is linear, and a mistake in one statement does not hide those in the next. A
`DdlSyntaxError` shows the line, the column, a caret, what would have been right there, and the nearest word when
something looks misspelt.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from broker.ddl.automaton import END, Automaton, UnexpectedTokenError
from broker.ddl.builder import Builder
from broker.ddl.built import Built, Place, RefusedError
from broker.ddl.lexer import UnclosedError, next_draft
from broker.ddl.plain import PlainPlaces, read_plain
from broker.ddl.statements import CreateRoute, Statement, StatementOrigin
from broker.ddl.token import Token, place_of
from broker.errors import DdlSyntaxError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_ELEMENTS = {
    "NAME": "a name",
    "STRING": "a text in quotes",
    "INTEGER": "a whole number",
    END: "the end of the statement",
}
NEAR_MAX = 128  # characters of a token that are looked at to say what is wrong with it; it may have a hundred million
_QUEUE_OPTIONS = "what is supported is WITH STATUS and POISON_MESSAGE_HANDLING"
_VALID_XML = "use WELL_FORMED_XML, and check the body against its schema in the application"
_NO_OPTION = "only an administrator of the instance gives permissions, so nobody passes them on"
_SELECT = "SELECT"
_ALONE = "a SELECT is asked by itself, not in a script"
_READ_ONLY = "is not supported: the views are read only; ALTER, CREATE and DROP change what they show"
_CHANGING_ROWS = frozenset({"DELETE", "INSERT", "MERGE", "TRUNCATE", "UPDATE"})
_GRANTING = dict.fromkeys(("WITH", "AS"), _NO_OPTION)
# What the original documents and this system leaves out, by the first two words: the option, and what to do instead.
_QUEUE = {
    "RETENTION": "an application keeps what it needs in a table of its own, in the transaction that sends or receives",
    "ACTIVATION": "write the reader as a function, @broker.reader('queue'), and start it with broker run",
    **dict.fromkeys(("ON", "REBUILD", "REORGANIZE"), _QUEUE_OPTIONS),
}
_NOT_SUPPORTED = {
    ("CREATE", "QUEUE"): _QUEUE,
    ("ALTER", "QUEUE"): _QUEUE,
    ("CREATE", "MESSAGE"): {"VALID_XML": _VALID_XML},
    ("ALTER", "MESSAGE"): {"VALID_XML": _VALID_XML},
    **dict.fromkeys(product(("GRANT", "DENY", "REVOKE"), ("CONNECT", "SEND")), _GRANTING),
}


_AUTOMATON = Automaton(Builder())
_WORD = _AUTOMATON.words
_KEYWORDS = {word.upper(): terminal for terminal, word in _WORD.items()}
OPENERS = _AUTOMATON.openers


def parse_script(text: str, *, source: str = "-") -> list[Statement]:
    """
    All statements of a script.

    Raises:
        DdlSyntaxError: the first mistake.
    """
    return list(iter_script(text, source=source))


def iter_script(text: str, *, source: str = "-") -> Iterator[Statement]:
    """
    The statements of a script, each as soon as it is read.

    Raises:
        DdlSyntaxError: the first mistake, after every statement before it.
    """
    for outcome in read_script(text, source=source):
        if isinstance(outcome, DdlSyntaxError):
            raise outcome
        yield outcome


def read_script(text: str, *, source: str = "-") -> Iterator[Statement | DdlSyntaxError]:
    """
    The statements of a script and, in their places, the mistakes: for whoever reports them all.

    Raises:
        Nothing. After an unclosed quote or comment nothing more is read.
    """
    lines = _LineCounter(text)
    at = 0
    while at < len(text):
        plain = read_plain(text, at, _KEYWORDS)
        if plain is not None:
            name, properties, start, end, at = plain
            places = PlainPlaces(text, start)
            yield CreateRoute(
                name, properties, origin=StatementOrigin(source, text, lines.line(start), start, end, places)
            )
            continue
        try:
            draft = next_draft(text, at, _KEYWORDS, OPENERS)
        except UnclosedError as error:
            whole = StatementOrigin(source, text, 1, 0, len(text))
            yield _mistake(whole, (error.at, error.at + error.length), error.problem, error.number)
            return
        at = draft.next
        if draft.tokens:
            start, end = place_of(draft.tokens[0])[0], place_of(draft.tokens[-1])[1]
            yield _parse(draft.tokens, StatementOrigin(source, text, lines.line(start), start, end))


class _LineCounter:
    """The lines of offsets that only grow, so every part of the text is counted once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._line = 1
        self._counted = 0

    def line(self, at: int) -> int:
        self._line += self._text.count("\n", self._counted, at)
        self._counted = at
        return self._line


def _parse(tokens: list[Token], origin: StatementOrigin) -> Statement | DdlSyntaxError:
    """One statement, or what is wrong with it."""
    try:
        built = cast("Built", _AUTOMATON.parse(tokens))
    except UnexpectedTokenError as error:
        return _unexpected(error, tokens, origin)
    except RefusedError as error:
        return _mistake(origin, place_of(error.token), error.problem, error.number)
    return built.make(origin=replace(origin, places=built.places))


def _unexpected(error: UnexpectedTokenError, tokens: list[Token], origin: StatementOrigin) -> DdlSyntaxError:
    """What to say about a token that cannot stand where it stands, or about an end that comes too early."""
    expected, token = error.accepts, error.token
    if token.type == END:
        place = (origin.end, origin.end)
        return _mistake(origin, place, f"incorrect syntax at the end of the statement; expected {_list(expected)}")
    place = place_of(token)
    option = _unsupported(tokens, token)
    if option:
        return _mistake(origin, place, option)
    near = origin.text[place[0] : min(place[1], place[0] + NEAR_MAX)]
    problem = f"incorrect syntax near {_shorten(near)!r}; expected {_list(expected)}"
    words = [_WORD[terminal] for terminal in expected if _WORD.get(terminal, "").isidentifier()]
    is_first = token is tokens[0]
    if is_first and near.upper() in _CHANGING_ROWS:
        return _mistake(origin, place, f"{near.upper()} {_READ_ONLY}")
    if is_first and near.upper() == _SELECT:
        return _mistake(origin, place, f"{problem}; {_ALONE}")
    from difflib import get_close_matches  # noqa: PLC0415 - for those who mistype; a slow import for all others

    similar = get_close_matches(near.upper(), sorted([*words, _SELECT] if is_first else words), n=1, cutoff=0.7)
    return _mistake(origin, place, f"{problem}; did you mean {similar[0]}?" if similar else problem)


def _unsupported(tokens: list[Token], token: Token) -> str | None:
    """The sentence for an option that the original documents and this system leaves out."""
    verb, kind, option = tokens[0].upper(), tokens[1].upper() if len(tokens) > 1 else "", token.upper()
    instead = _NOT_SUPPORTED.get((verb, kind), {}).get(option)
    if token.type == "STRING" or instead is None:
        return None
    what = "MESSAGE TYPE" if kind == "MESSAGE" else kind
    return f"the option {option} of {verb} {what} is not supported; {instead}"


def _list(expected: Collection[str]) -> str:
    """The expected elements as people say them. Where a name may stand, the words that may serve as names go unsaid."""
    if "NAME" in expected:
        expected = {terminal for terminal in expected if not _WORD.get(terminal, "").isidentifier()}
    shown = sorted(_ELEMENTS.get(terminal) or _quoted(_WORD[terminal]) for terminal in expected)
    return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _quoted(word: str) -> str:
    return word if word.isidentifier() else f"'{word}'"


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _mistake(origin: StatementOrigin, place: Place, problem: str, number: int = 102) -> DdlSyntaxError:
    start, end = place
    return DdlSyntaxError(number, problem, origin.span(start, end), origin.text_line(start))
