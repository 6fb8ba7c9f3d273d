"""
The plain CREATE ROUTE in one step.

A script of routes is mostly one form over and over: properties in the documented order, no owner, no comment inside, no
doubled quote, closed by `;`. One pattern reads that form some ten times as fast as the grammar does, and anything else
is left to the grammar. It must never accept what the grammar refuses, nor read it differently, places included: a
property test holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from broker.ddl.lexer import Place, is_text
from broker.ddl.statements import NAME
from broker.routing.route import RouteProperties

_PLAIN = re.compile(
    r"""
    (?: \s++ | --[^\n]*+ )*+
    (?P<CREATE> CREATE ) \s++ ROUTE \s++
    (?P<NAME> \[( [^\]]{1,128}+ )\] | ( [a-z_][a-z0-9_]{0,127}+ ) ) \s++ WITH \s++
    (?: SERVICE_NAME    \s*+ = \s*+ (?P<SERVICE_NAME>    N?'( [^']*+ )' )        \s*+ , \s*+ )?
    (?: BROKER_INSTANCE \s*+ = \s*+ (?P<BROKER_INSTANCE> N?'( [^']*+ )' )        \s*+ , \s*+ )?
    (?: LIFETIME        \s*+ = \s*+ (?P<LIFETIME>        [+-]?[0-9]{1,19}+ )     \s*+ , \s*+ )?
        ADDRESS         \s*+ = \s*+ (?P<ADDRESS>         N?'( [^']*+ )' )
    (?: \s*+ , \s*+ MIRROR_ADDRESS \s*+ = \s*+ (?P<MIRROR_ADDRESS> N?'( [^']*+ )' )    )?
    (?: \s*+ , \s*+ WEIGHT         \s*+ = \s*+ (?P<WEIGHT>         [+-]?[0-9]{1,19}+ ) )?
    \s*+ (?P<END> ; )
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
).match
_PARTS = (NAME, "SERVICE_NAME", "BROKER_INSTANCE", "LIFETIME", "ADDRESS", "MIRROR_ADDRESS", "WEIGHT")


class PlainRoute(NamedTuple):
    """What was read: the statement's own place, and in `following` the offset behind its `;`."""

    name: str
    properties: RouteProperties
    start: int
    end: int
    following: int


class PlainPlaces(Mapping[str, Place]):
    """Where the parts of a plain CREATE ROUTE stand, looked for when somebody asks; `start` is that of its CREATE."""

    __slots__ = ("_start", "_text")

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._start = start

    def __getitem__(self, key: str) -> Place:
        return self._found()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())

    def _found(self) -> dict[str, Place]:
        match = _PLAIN(self._text, self._start)
        assert match is not None, "it was read from there"
        return {key: match.span(key) for key in _PARTS if match[key] is not None}


def read_plain(text: str, at: int, keywords: Collection[str]) -> PlainRoute | None:
    """
    The plain CREATE ROUTE that begins here, after blanks and line comments.

    Args:
        text: The script.
        at: Where a statement may begin.
        keywords: Words, in upper case, that this does not take for names.

    Returns:
        The statement still without its origin; None when something else begins here.
    """
    match = _PLAIN(text, at)
    if match is None:
        return None
    start = match.start(1)
    _, _, name, word, _, service, _, instance, lifetime, _, address, _, mirror, weight, _ = match.groups()
    if name is None:
        if word.upper() in keywords or word.upper() == "GO":
            return None  # not sure to be a name: GO may stand alone on its line
        name = word
    if not is_text(name):
        return None
    properties = RouteProperties(
        service,
        instance,
        None if lifetime is None else int(lifetime),
        address,
        mirror,
        None if weight is None else int(weight),
    )
    last = "ADDRESS" if weight is None and mirror is None else "MIRROR_ADDRESS" if weight is None else "WEIGHT"
    return PlainRoute(name, properties, start, match.end(last), match.end())
