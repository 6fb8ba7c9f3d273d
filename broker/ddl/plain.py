"""
The plain CREATE ROUTE in one step.

A script of routes is mostly one form over and over: properties in the documented order, no owner, no comment inside, no
doubled quote, closed by `;`. One pattern reads that form about seven times as fast as the grammar does, and anything
else is left to the grammar. It must never accept what the grammar refuses, nor read it differently, places included:
a property test holds the two together.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from broker.ddl.builder import Built, Place
from broker.ddl.statements import NAME, CreateRoute
from broker.routing.route import RouteProperties

if TYPE_CHECKING:
    from collections.abc import Collection

_PLAIN = re.compile(
    r"""
    (?: \s++ | --[^\n]*+ )*+
    (?P<CREATE> CREATE ) \s++ ROUTE \s++ (?P<NAME> \[[^\]]{1,128}+\] | [a-z_][a-z0-9_]{0,127}+ ) \s++ WITH \s++
    (?: SERVICE_NAME    \s*+ = \s*+ (?P<SERVICE_NAME>    N?'[^']*+' )          \s*+ , \s*+ )?
    (?: BROKER_INSTANCE \s*+ = \s*+ (?P<BROKER_INSTANCE> N?'[^']*+' )          \s*+ , \s*+ )?
    (?: LIFETIME        \s*+ = \s*+ (?P<LIFETIME>        [+-]?[0-9]{1,19}+ )   \s*+ , \s*+ )?
        ADDRESS         \s*+ = \s*+ (?P<ADDRESS>         N?'[^']*+' )
    (?: \s*+ , \s*+ MIRROR_ADDRESS \s*+ = \s*+ (?P<MIRROR_ADDRESS> N?'[^']*+' )        )?
    (?: \s*+ , \s*+ WEIGHT         \s*+ = \s*+ (?P<WEIGHT>         [+-]?[0-9]{1,19}+ ) )?
    \s*+ (?P<END> ; )
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
).match
_TEXTS = ("SERVICE_NAME", "BROKER_INSTANCE", "ADDRESS", "MIRROR_ADDRESS")
_NUMBERS = ("LIFETIME", "WEIGHT")


def read_plain(text: str, at: int, keywords: Collection[str]) -> tuple[Built, Place, int] | None:
    """
    The plain CREATE ROUTE that begins here, after blanks and line comments.

    Args:
        text: The script.
        at: Where a statement may begin.
        keywords: Words, in upper case, that this does not take for names.

    Returns:
        The statement, its own place, and the offset behind its `;`; None when something else begins here.
    """
    match = _PLAIN(text, at)
    if match is None:
        return None
    name = match["NAME"]
    if name[0] == "[":
        name = name[1:-1]
    elif name.upper() in keywords or name.upper() == "GO":
        return None  # not sure to be a name: GO may stand alone on its line
    values = match.groupdict()
    texts = [value if value is None else value[value.index("'") + 1 : -1] for value in map(values.get, _TEXTS)]
    lifetime, weight = [value if value is None else int(value) for value in map(values.get, _NUMBERS)]
    service_name, broker_instance, address, mirror_address = texts
    properties = RouteProperties(service_name, broker_instance, lifetime, address, mirror_address, weight)
    places = {key: match.span(key) for key in (NAME, *_TEXTS, *_NUMBERS) if values[key] is not None}
    end = max(place[1] for place in places.values())
    return Built(partial(CreateRoute, name, properties), places), (match.start("CREATE"), end), match.end()
