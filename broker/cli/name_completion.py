"""
What a word at the prompt may become: keywords, views and their columns, and the names that live in the instance.

The names are asked of the daemon when the first word is completed, and again when they are older than half a minute. A
daemon that does not answer at once leaves the keywords. What is offered depends on what stands before the word: views
and queues behind FROM, routes behind ROUTE, names of services in a text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

# Asks a SELECT: rows.
Ask = Callable[[str], Sequence[Sequence[Any]]]

NAMES_MAX = 1000  # of one kind
FRESH_SECONDS = 30.0
OFFERED_MAX = 500  # more than anybody reads
DELIMITERS = " \t\n,()=<>+;'"  # what ends a word; a name may hold dots, slashes, brackets

_WORDS = """
    ADDRESS ALTER AND ANONYMOUS AS ASC AUTHORIZATION BETWEEN BROKER_INSTANCE BY CASE CAST CHARINDEX COALESCE CONNECT
    CONTRACT CONVERSATION COUNT COUNT_BIG CREATE DATE DATETIME DENY DESC DISTINCT DROP ELSE END ENDPOINT EXCEPT
    EXISTS FETCH FROM FULL GETUTCDATE GO GRANT GROUP HAVING IIF IN INNER INTERSECT IS ISNULL JOIN JULIANDAY LEFT LEN
    LIFETIME LIKE LOCAL LOWER MAX MESSAGE MIN MIRROR_ADDRESS NEXT NOT NULL NULLIF OFFSET ON ONLY OR ORDER OUTER OVER
    PARTITION PRIORITY QUEUE REMOTE REPLACE REVOKE RIGHT ROUND ROUTE ROWS SELECT SEND SERVICE SERVICE_NAME SET
    STATUS STRING_AGG SUBSTRING SUM SYSUTCDATETIME THEN TO TOP TRANSPORT TRIM TYPE UNION UPPER USE VALIDATION WEIGHT
    WHEN WHERE WITH
"""
_KEYWORDS = tuple(_WORDS.split())
# What the words before tell about the next one, and which kinds of names then fit.
_AFTER: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\b(FROM|JOIN)\s+$", ("view", "queue", "database")),
    (r"\bROUTE\s+$", ("route",)),
    (r"\bON\s+QUEUE\s+$|\bQUEUE\s+$", ("queue",)),
    (r"\bSERVICE\s+$|\bSERVICE::\s*$|\bTO\s+SERVICE\s+$|\bFROM\s+SERVICE\s+$", ("service",)),
    (r"\bCONTRACT\s+$", ("contract",)),
    (r"\bMESSAGE\s+TYPE\s+$", ("message type",)),
    (r"\bUSE\s+$|\bDATABASE\s+$", ("database",)),
    (r"'$", ("far service", "service", "address")),
)
_LIVE: Mapping[str, str] = {
    "database": "SELECT TOP {n} name FROM sys.databases",
    "route": "SELECT TOP {n} name FROM sys.routes UNION SELECT TOP {n} name FROM msdb.sys.routes",
    "far service": (
        "SELECT TOP {n} remote_service_name FROM sys.routes"
        " UNION SELECT TOP {n} remote_service_name FROM msdb.sys.routes"
    ),
    "address": "SELECT TOP {n} address FROM sys.routes UNION SELECT TOP {n} address FROM msdb.sys.routes",
    "service": "SELECT TOP {n} name FROM sys.services",
    "queue": "SELECT TOP {n} name FROM sys.service_queues",
    "contract": "SELECT TOP {n} name FROM sys.service_contracts",
    "message type": "SELECT TOP {n} name FROM sys.service_message_types",
}
_COLUMNS = "SELECT schema_name, view_name, name FROM sys.system_columns ORDER BY object_id DESC, column_id"
_PLAIN = re.compile(r"[A-Za-z_#][\w$#@]*")
_WORD = re.compile(r"[\w.]+")


class Names:
    """What lives in an instance. `ask` raises for what it cannot answer; such names are not offered."""

    def __init__(self, ask: Ask, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._columns: dict[str, list[str]] = {}
        self._live: dict[str, tuple[float, list[str]]] = {}

    def columns(self) -> Mapping[str, Sequence[str]]:
        """The columns of each view; asked until they are known, for they never change."""
        if not self._columns:
            for schema, view, column in self._rows(_COLUMNS):
                self._columns.setdefault(f"{schema}.{view}", []).append(str(column))
        return self._columns

    def of(self, kind: str) -> Sequence[str]:
        """The names of a kind, not older than `FRESH_SECONDS`."""
        if kind == "view":
            return list(self.columns())
        at, names = self._live.get(kind, (-FRESH_SECONDS, []))
        if self._clock() - at >= FRESH_SECONDS:
            rows = self._rows(_LIVE[kind].format(n=NAMES_MAX))
            names = sorted({str(row[0]) for row in rows if row[0] is not None and str(row[0]).isprintable()})
            self._live[kind] = self._clock(), names
        return names

    def forget(self) -> None:
        """Ask again next time: something was changed."""
        self._live.clear()

    def _rows(self, question: str) -> Sequence[Sequence[Any]]:
        try:
            return self._ask(question)
        except Exception:  # noqa: BLE001 - nobody has asked for this; a word that cannot be completed is no error
            return ()


def completions(names: Names, before: str, word: str) -> list[str]:
    """
    What `word` may become.

    Args:
        names: What lives in the instance.
        before: The whole statement in front of the word.
        word: As far as it is typed; it may be empty.

    Returns:
        Whole words, keywords in the case that is typed, `OFFERED_MAX` at most; those that differ from what is typed
        in case alone only when there are no others.
    """
    found: dict[str, None] = {}
    typed = word.lstrip("[").casefold()
    for name in _fitting(names, before, word):
        if name.lstrip("[").casefold().startswith(typed):
            found[name] = None
        if len(found) == OFFERED_MAX:
            break
    exact = [name for name in found if name.lstrip("[").startswith(word.lstrip("["))]
    return exact or list(found)


def _fitting(names: Names, before: str, word: str) -> Iterator[str]:
    for pattern, kinds in _AFTER:
        if re.search(pattern, before, re.IGNORECASE):
            is_text = before.endswith("'")
            for kind in kinds:
                yield from (name if is_text else _written(name, kind, kinds) for name in names.of(kind))
            if is_text or kinds[0] != "view":
                return
            yield from _of_database(names, word)
            return
    if before.count("'") % 2:
        return
    yield from _of_statement(names.columns(), before)
    if "." in word:  # an alias before the column
        alias = word.rpartition(".")[0]
        yield from (f"{alias}.{column}" for column in _of_statement(names.columns(), before))
    keywords = (keyword.lower() for keyword in _KEYWORDS) if word and word == word.lower() else iter(_KEYWORDS)
    yield from keywords


def _of_database(names: Names, word: str) -> Iterator[str]:
    """The views behind the name of a database: `orders.sys.`, once the name stands there."""
    database, dot, _ = word.partition(".")
    if dot and database.casefold() != "sys":
        yield from (f"{database}.{view}" for view in names.of("view"))


def _of_statement(columns: Mapping[str, Sequence[str]], before: str) -> Iterator[str]:
    """The columns of the views that the statement names; of all when it names none yet."""
    words = {word.casefold() for word in _WORD.findall(before)}
    named: Iterable[str] = [
        view for view in columns if any(word == view or word.endswith("." + view) for word in words)
    ]
    for view in named or columns:
        yield from columns[view]


def _written(name: str, kind: str, kinds: Sequence[str]) -> str:
    """A name as a statement has to have it: in brackets where it must be; a database in front of what is in it."""
    quoted = name if kind == "view" or _PLAIN.fullmatch(name) else f"[{name.replace(']', ']]')}]"
    return f"{quoted}." if kind == "database" and "view" in kinds else quoted
