"""
The catalogue of numbers: what each number and each reason means, when it occurs, and what to do.

The code that raises an error or drops a frame has the number and the sentence; the rest of what operators need is here.
The texts are in the TOML files of `messages/`, a table for each number or reason. `sys.messages` shows them, and
`python -m tools.pages` makes a page of each. A test fails when a number of the code has no table here, or a table
no number of the code.

`remedy_of...` give one sentence for a case: the `advice` of the catalogue with the names of the case, for status,
events, `broker why` and the pages of errors.

Source: Transact-SQL reference, "sys.messages"; SQL Server documentation, "Database Engine events and errors".
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from broker.advice import create_route, render_name, to_run
from broker.catalog.catalog import MSDB
from broker.errors import MAY_NOT_CONNECT, NO_TLS, NOT_TRUSTED, TLS_REFUSED, StatementError
from broker.flow import Disposition
from broker.observe.snapshot import DropSnapshot

_TEXTS = Path(__file__).parent / "messages"


class MessageChannel(StrEnum):
    """Where a number occurs; the word is the key of the tables `when` and `example`."""

    STATEMENT = "statement"
    SELECT = "select"
    APPLICATION = "application"
    DIALOG = "dialog"
    FRAME = "frame"
    CONNECTION = "connection"
    REQUEST = "request"
    START = "start"


class MessageEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One number or reason.

    Attributes:
        number: 0 where the original has none for it.
        advice: The remedy for one frame or dialog, with gaps such as `{instance}`, as `_filled` fills them in.
        reason: The word of a disposition, empty for an error.
        title: One sentence.
        when: By channel, when it occurs.
        notified: The party that is notified of a dropped frame, or of a dialog that failed.
        original: The meaning of the number there.
        example: By channel, code that causes the error: a statement, a SELECT, Python.
    """

    number: int
    title: str
    when: Mapping[MessageChannel, str]
    remedy: str
    advice: str = ""
    reason: str = ""
    notified: str = ""
    original: str = ""
    example: Mapping[MessageChannel, str] = {}


@cache
def catalogue() -> Mapping[str, MessageEntry]:
    """All entries, by number and then by reason."""
    return read(_TEXTS)


def read(directory: Path) -> dict[str, MessageEntry]:
    """
    The entries of all TOML files of a directory, by number and then by reason.

    Raises:
        ValueError: two files have the same table.
    """
    tables: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.glob("*.toml")):
        for key, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if key in tables:
                raise ValueError(f"{path.name} has a second table [{key}]")
            tables[key] = table
    return {
        key: msgspec.convert({**tables[key], "number": int(key) if key.isdigit() else 0}, MessageEntry)
        for key in sorted(tables, key=_order)
    }


def _order(key: str) -> tuple[bool, int, str]:
    return (not key.isdigit(), int(key) if key.isdigit() else 0, key)


# --- the view ---

MESSAGES = "sys.messages"
MESSAGE_COLUMNS = ("message_id", "language_id", "severity", "is_event_logged", "text", "reason", "remedy")

_ENGLISH = 1033
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")  # in a text of the catalogue, which pages are made of too


def message_rows() -> Iterator[tuple[object, ...]]:
    """A row for each number, by number."""
    for entry in catalogue().values():
        if entry.number:
            remedy = _LINK.sub(r"\1", entry.remedy)
            yield entry.number, _ENGLISH, StatementError.severity, False, entry.title, entry.reason, remedy


# --- remedies ---


@cache
def _advice() -> Mapping[str, str]:
    """By reason, and by number."""
    entries = [(key, entry) for key, entry in catalogue().items() if entry.advice]
    return {entry.reason or key: entry.advice for key, entry in entries}


# As `broker.security.grants` words them in reasons; a ] in a name is doubled.
_NAME = r"\[(?:[^\]]|\]\])*\]"
_MISSING = re.compile(rf"no (GRANT (?:SEND|CONNECT) ON \w+::{_NAME} TO {_NAME})")
_GAP = re.compile(r"\{(\w+)\}")
_DENIED = re.compile(rf"DENY ((?:SEND|CONNECT) ON \w+::{_NAME}) TO ({_NAME})")


def statement_of(reason: str, where: str) -> str:
    """
    How the statement is run that gives the permission which a reason names; empty when it names none.

    Args:
        reason: Of a refusal, as the instance that refused words it.
        where: The instance, as a sentence names it.
    """
    if missing := _MISSING.search(reason):
        return to_run(f"{missing[1]};", database=MSDB, instance=where)
    if denied := _DENIED.search(reason):
        return to_run(f"REVOKE {denied[1]} FROM {denied[2]};", database=MSDB, instance=where)
    return ""


@dataclass(frozen=True, slots=True)
class DoubtfulName:
    """
    The question whether the name of a service is right, where nothing leads to it.

    Attributes:
        known: Known services with a similar name.
        end: How the dialog is ended at the sender; empty when that was not asked.
    """

    known: Sequence[str] = ()
    end: str = ""

    def __str__(self) -> str:
        known = f" Known there: {', '.join(self.known)}." if self.known else ""
        end = self.end or "END CONVERSATION 'HANDLE' WITH CLEANUP; at the sender,"
        return (
            f"is the name right?{known} A sent message cannot be readdressed: if the name is wrong, {end} and begin"
            " another dialog"
        )


_DOUBTFUL = DoubtfulName()
DEFINITIONS_CHANGED = (
    "nothing now: definitions here have changed since, and the next copy shows whether that is over; broker dialogs"
    " retry at the sender sends it at once"
)


def remedy_of(
    disposition: str,
    *,
    instance: str,
    service: str,
    table: str = MSDB,
    reason: str = "",
    name: DoubtfulName | None = _DOUBTFUL,
) -> str:
    """
    Return the remedy for frames that end by this disposition at this instance.

    Args:
        disposition: Why they end.
        instance: The instance, as a sentence names it.
        service: The service that they are for.
        table: The database whose routes were searched.
        reason: As the instance words it.
        name: Asked first where nothing leads to the service; None where the far side has been reached.
    """
    if statement := statement_of(reason, instance):
        return statement
    text = _advice().get(disposition, "see the page on dispositions: {instance} shows the reason in broker status")
    return _filled(text, instance=instance, service=service, table=table, name=name)


def queue_on(database: str, queue: str, *, instance: str = "") -> str:
    """How a queue is turned on."""
    statement = f"ALTER QUEUE {render_name(queue)} WITH STATUS = ON;"
    return to_run(statement, database=database, instance=instance, is_scripted=False)


def remedy_of_drop(drop: DropSnapshot, instance: str) -> str:
    """Return the remedy for the last frame that was dropped for a reason, unless definitions have changed since."""
    if drop.is_past:
        return DEFINITIONS_CHANGED
    fields = drop.fields
    service = fields.to_service_name or "SERVICE"
    if drop.disposition is Disposition.NOT_PERMITTED and drop.database is not None:
        statement = f"GRANT SEND ON SERVICE::{render_name(service)} TO [PRINCIPAL];"
        run = to_run(statement, database=drop.database, instance=instance)
        return f"{run} PRINCIPAL is that of the certificate of {fields.from_service_name}"
    return remedy_of(drop.disposition, instance=instance, service=service, reason=drop.reason)


def or_other_address(remedy: str) -> str:
    """The remedy for a refusal by the instance that answered, which need not be the one that the route means."""
    return f"{remedy.rstrip(';')}; if another instance was meant, correct the address of the route"


def remedy_of_refused_link(address: str, problem: str) -> str:
    """Return the remedy for a next hop when the instance here or there refuses the other; empty when none does."""
    if MAY_NOT_CONNECT in problem:
        is_there = problem.startswith("FATAL")
        where = f"the instance at {address}" if is_there else "this instance"
        general = to_run("GRANT CONNECT ON ENDPOINT::[*] TO [PRINCIPAL];", database=MSDB, instance=where)
        remedy = statement_of(problem, where) or f"{general} The reason names the PRINCIPAL, or a DENY to REVOKE"
        return or_other_address(remedy) if is_there else remedy
    if NOT_TRUSTED in problem:
        return (
            f"at the instance of {address}: add this instance's certificate to endpoint.peers, as partner import does"
        )
    if NO_TLS in problem:
        return f"correct the port in the route to {address}, or set endpoint.encryption of the instance there"
    _, is_tls, sentence = problem.partition(TLS_REFUSED)
    what, _, remedy = sentence.rpartition(": ")
    return remedy if is_tls and what else ""


def remedy_of_unreached(address: str, problem: str) -> str:
    """Return the remedy for a next hop that is not reached, for a reason that the instance here or there reports."""
    return remedy_of_refused_link(address, problem) or (
        f"start the instance at {address}, open the way to it, or correct the route to it"
    )


def remedy_of_error(code: int | None, *, service: str, text: str = "") -> str:
    """Return the remedy for a dialog that failed with this number and text; a positive one is an application's own."""
    end = "RECEIVE the Error message and END CONVERSATION here"
    if code is None:
        return end
    if code > 0:
        return f"the far application ended the dialog with its own error {code}: ask there; {end}"
    there = f"the instance of {service}"
    if missing := _MISSING.search(text):
        return f"{to_run(f'{missing[1]};', database='DATABASE', instance=there)} {end}, and begin another dialog"
    advice = _advice().get(str(-code))
    return end if advice is None else f"{_filled(advice, instance=there, service=service)}; {end}"


def _filled(
    text: str, *, instance: str, service: str, table: str = "DATABASE", name: DoubtfulName | None = _DOUBTFUL
) -> str:
    """Fill in a text in one pass: names of peers and applications may have braces, so they are never a format."""
    values = {
        "instance": instance,
        "service": render_name(service),
        "create_route": create_route(service),
        "run": to_run("", database=table, instance=instance).rstrip(),
        "run_in_database": to_run("", database="DATABASE", instance=instance).rstrip(),
        "name_right": "" if name is None else f"{name}. Otherwise, ",
    }
    return _GAP.sub(lambda gap: values[gap[1]], text)
