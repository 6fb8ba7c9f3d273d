"""
Completes words at the prompt and in the shell: keywords, views, columns, and names of an instance.

The instance is asked for its names when the first word is completed, and again after half a minute. When it does not
answer at once, only keywords are offered. Mistakes in earlier words are not reported: a person waits for the Tab key.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from broker.advice import render_name
from broker.cli.access import admin_client
from broker.errors import BrokerError

ASK_SECONDS = 1.0  # for the instance to answer
NAMES_MAX = 1000  # of one kind
FRESH_SECONDS = 30.0
OFFERED_MAX = 500  # more than a person reads

Ask = Callable[[str], Sequence[Sequence[Any]]]  # the rows of a SELECT
Complete = Callable[[click.Context, click.Parameter, str], list[str]]

_KEYWORDS = """
    ADDRESS ALTER AND ANONYMOUS AS ASC AUTHORIZATION BETWEEN BROKER_INSTANCE BY CASE CAST CHARINDEX COALESCE CONNECT
    CONTRACT CONVERSATION COUNT COUNT_BIG CREATE DATE DATETIME DENY DESC DISTINCT DROP ELSE END ENDPOINT EXCEPT
    EXISTS FETCH FROM FULL GETUTCDATE GO GRANT GROUP HAVING IIF IN INNER INTERSECT IS ISNULL JOIN JULIANDAY LEFT LEN
    LIFETIME LIKE LOCAL LOWER MAX MESSAGE MIN MIRROR_ADDRESS NEXT NOT NULL NULLIF OFFSET ON ONLY OR ORDER OUTER OVER
    PARTITION PRIORITY QUEUE REMOTE REPLACE REVOKE RIGHT ROUND ROUTE ROWS SELECT SEND SERVICE SERVICE_NAME SET
    STATUS STRING_AGG SUBSTRING SUM SYSUTCDATETIME THEN TO TOP TRANSPORT TRIM TYPE UNION UPPER USE VALIDATION WEIGHT
    WHEN WHERE WITH
"""
# Kinds of names that fit after these words.
_AFTER: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\b(FROM|JOIN)\s+$", ("view", "queue", "database")),
    (r"\bROUTE\s+$", ("route",)),
    (r"\bQUEUE\s+$", ("queue",)),
    (r"\bSERVICE\s+$|\bSERVICE::\s*$", ("service",)),
    (r"\bCONTRACT\s+$", ("contract",)),
    (r"\bMESSAGE\s+TYPE\s+$", ("message type",)),
    (r"\b(USE|DATABASE)\s+$", ("database",)),
    (r"'$", ("far service", "service", "address")),
)
_QUESTIONS: Mapping[str, str] = {
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
    """The names of an instance; none when `ask` raises."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._columns: dict[str, list[str]] = {}
        self._live: dict[str, tuple[float, list[str]]] = {}

    def columns(self) -> Mapping[str, Sequence[str]]:
        """The columns of each view, which never change; asked once."""
        if not self._columns:
            for schema, view, column in self._rows(_COLUMNS):
                self._columns.setdefault(f"{schema}.{view}", []).append(str(column))
        return self._columns

    def of(self, kind: str) -> Sequence[str]:
        """The names of a kind, not older than `FRESH_SECONDS`."""
        if kind == "view":
            return list(self.columns())
        at, names = self._live.get(kind, (-FRESH_SECONDS, []))
        if time.monotonic() - at >= FRESH_SECONDS:
            rows = self._rows(_QUESTIONS[kind].format(n=NAMES_MAX))
            names = sorted({str(row[0]) for row in rows if row[0] is not None and str(row[0]).isprintable()})
            self._live[kind] = time.monotonic(), names
        return names

    def forget(self) -> None:
        """Forget the names after a statement that changed something, or the database."""
        self._live.clear()

    def _rows(self, question: str) -> Sequence[Sequence[Any]]:
        try:
            return self._ask(question)
        except Exception:  # noqa: BLE001 - a failed completion is not worth a message
            return ()


def live_names(*kinds: str) -> Complete:
    """A function that completes a value in the shell to names of these kinds."""

    def complete(context: click.Context, _parameter: click.Parameter, word: str) -> list[str]:
        try:
            client = admin_client(context.params.get("config"), context.params.get("socket"), timeout=ASK_SECONDS)
        except (BrokerError, click.UsageError):
            return []
        names = Names(lambda question: client.sql(question)["rows"])
        return sorted({name for kind in kinds for name in names.of(kind) if name.startswith(word)})

    return complete


def completions(names: Names, before: str, word: str) -> list[str]:
    """
    The completions of a word of a statement.

    Args:
        names: Names of the instance.
        before: The statement in front of the word.
        word: The typed part of the word; it may be empty.

    Returns:
        At most `OFFERED_MAX` whole words, keywords in the typed case. Words that differ from the typed part in case
        are returned only when there are no others.
    """
    typed = word.lstrip("[")
    fitting = dict.fromkeys(_candidates(names, before, word))
    found = [name for name in fitting if name.lstrip("[").casefold().startswith(typed.casefold())]
    exact = [name for name in found if name.lstrip("[").startswith(typed)]
    return (exact or found)[:OFFERED_MAX]


def _candidates(names: Names, before: str, word: str) -> Iterator[str]:
    if before.endswith("'") or not before.count("'") % 2:
        for pattern, kinds in _AFTER:
            if re.search(pattern, before, re.IGNORECASE):
                yield from _names_after(names, kinds, word, is_text=before.endswith("'"))
                return
        columns = list(_columns_of(names.columns(), before))
        alias, dot, _ = word.rpartition(".")
        yield from columns
        yield from (f"{alias}.{column}" for column in columns if dot)
        yield from (keyword.lower() if word and word == word.lower() else keyword for keyword in _KEYWORDS.split())


def _names_after(names: Names, kinds: Sequence[str], word: str, *, is_text: bool) -> Iterator[str]:
    """Names as a statement writes them: in brackets where needed, unless inside quotes."""
    for kind in kinds:
        for name in names.of(kind):
            quoted = name if is_text or kind == "view" or _PLAIN.fullmatch(name) else render_name(name)
            yield f"{quoted}." if kind == "database" and "view" in kinds else quoted
    database, dot, _ = word.partition(".")
    if "view" in kinds and dot and database.casefold() != "sys":  # the views of that database: orders.sys.routes
        yield from (f"{database}.{view}" for view in names.of("view"))


def _columns_of(columns: Mapping[str, Sequence[str]], before: str) -> Iterator[str]:
    """The columns of the views in the statement; of all views when it has none yet."""
    words = {word.casefold() for word in _WORD.findall(before)}
    named = [view for view in columns if any(word == view or word.endswith("." + view) for word in words)]
    for view in named or columns:
        yield from columns[view]
