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
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from broker.advice import create_route, render_name, render_text, to_run
from broker.catalog.catalog import MSDB
from broker.catalog.unscripted import PARTNER_NAME
from broker.errors import (
    MAY_NOT_CONNECT,
    NO_HELLO,
    NO_TLS,
    NOT_A_FRAME,
    NOT_TRUSTED,
    TLS_ONLY,
    TLS_REFUSED,
    UNTRUSTED,
    StatementError,
)
from broker.flow import Disposition
from broker.net.peer_table import BACKOFF_CAP
from broker.security.grants import SHOWN_NAME, lifted

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
    entries = {
        key: msgspec.convert({**table, "number": int(key) if key.isdigit() else 0}, MessageEntry)
        for key, table in tables.items()
    }
    return dict(sorted(entries.items(), key=lambda one: (not one[1].number, one[1].number, one[0])))


# --- the view ---

_ENGLISH = 1033
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")  # in a text of the catalogue, which pages are made of too


def message_rows() -> Iterator[tuple[object, ...]]:
    """The rows of `sys.messages`, by number."""
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


# As `broker.security.grants` words them in reasons.
_MISSING = re.compile(rf"no (GRANT (?:SEND|CONNECT) ON \w+::{SHOWN_NAME} TO {SHOWN_NAME})")
_GAP = re.compile(r"\{(\w+)\}")
_DENIED = re.compile(rf"DENY ((?:SEND|CONNECT) ON \w+::{SHOWN_NAME}) TO ({SHOWN_NAME})")
PROVE = (
    ' Or, if the peer has a certificate, set endpoint.encryption = "required" and authentication = "certificate" at'
    " both ends, and reload both."
)
_CONTRACT = re.compile(r"does not accept the contract '(.*)'")  # as the target words it


def statement_of(*reasons: str, where: str, database: str = MSDB) -> str:
    """
    How the statements are run, in one command, that give the permissions which reasons name; empty if they name none.

    Args:
        reasons: Of refusals, as the instance that refused words them, each with one permission.
        where: The instance, as a sentence names it.
        database: The database that lacks the permission.
    """
    found = [_MISSING.search(one) or _DENIED.search(one) for one in reasons]
    missing = " ".join(dict.fromkeys(f"{one[1]};" for one in found if one and one.re is _MISSING))
    commands = [to_run(missing, database=database, instance=where)] if missing else []
    if database == MSDB and " TO [public];" in missing:
        commands[0] += PROVE
    for denied in dict.fromkeys(one[0] for one in found if one and one.re is _DENIED):
        lift = to_run(f"{lifted(denied)};", database=database, instance=where)
        commands.append(f"if {denied} is not meant, {lift}")
    return " And ".join(commands)


BEGIN = "begin another dialog"


@dataclass(frozen=True, slots=True)
class WaitingDialog:
    """
    The dialog whose messages wait: the name of its far service may be wrong, and it can be ended.

    Attributes:
        end: How its sender ends it.
        is_known: Whether messages of either side have arrived, so that the name is right.
        near: Known services with a similar name.
        principal: Which its sender proves to be.
        begin: How another one is begun: by its initiator.
    """

    end: str = "end the dialog at the sender (broker why there says how)"
    is_known: bool = False
    near: Sequence[str] = ()
    principal: str = "PRINCIPAL"
    begin: str = BEGIN

    @property
    def again(self) -> str:
        """How it is replaced: a sent message cannot be readdressed."""
        return f"{self.end} and {self.begin}"

    @property
    def question(self) -> str:
        """The beginning of a remedy: whether the name is right; empty where it is."""
        near = f" Known there: {', '.join(self.near)}." if self.near else ""
        doubt = f"is the name right?{near} A sent message cannot be readdressed: if the name is wrong, {self.again}"
        return "" if self.is_known else f"{doubt}. Otherwise, "


@dataclass(frozen=True, slots=True)
class TakenRoute:
    """
    The route by which messages have come to an instance, which may be the wrong one.

    Attributes:
        name: Empty where only that instance was asked.
        instance: The instance that has the route, as a sentence names it.
        table: The database whose route it is.
    """

    name: str = ""
    instance: str = ""
    table: str = MSDB

    def altered(self, option: str) -> str:
        """How an option of the route is changed."""
        statement = f"ALTER ROUTE {render_name(self.name)} WITH {option};"
        is_scripted = not self.name.startswith(PARTNER_NAME)
        return to_run(statement, database=self.table, instance=self.instance, is_scripted=is_scripted)

    def led_elsewhere(self) -> str:
        """How another address is given to it."""
        return self.altered("ADDRESS = 'tcp://HOST:PORT'")

    def corrected(self, here: str, service: str) -> str:
        """What to do if messages shall not arrive at `here` at all."""
        if not self.name:
            return f"if messages to {service} are not to arrive at {here}, correct the route to it."
        return f"if route {self.name} of {self.instance} is not to lead to {here}, {self.led_elsewhere()}"


_SOME_DIALOG = WaitingDialog()
_END = "RECEIVE the Error message and END CONVERSATION here"


def remedy_of(
    disposition: str,
    *,
    instance: str,
    service: str,
    table: str = MSDB,
    database: str = "DATABASE",
    reason: str = "",
    dialog: WaitingDialog = _SOME_DIALOG,
    route: TakenRoute | None = None,
    wanted: str = "",
    is_forwarding: bool = False,
    sender: str = "its sender",
    peers: Sequence[str] = (),
) -> str:
    """
    Return the remedy for frames that end by this disposition at this instance.

    Args:
        disposition: Why they end.
        instance: The instance, as a sentence names it.
        service: The service that they are for.
        table: The database whose routes or permissions count.
        database: The database that has the service, or should have it.
        reason: As the instance words it.
        dialog: The dialog of the messages.
        route: By which they arrive, where that may be wrong.
        wanted: The broker instance that they name.
        is_forwarding: Whether the instance passes messages on: then a route that it lacks is likelier than a wrong one.
        sender: The service that they come from.
        peers: The paths and patterns of the `peers` of the database, where they are known.
    """
    statement = statement_of(reason, where=instance, database=table)
    corrected = "" if route is None else route.corrected(instance, service)
    address_right = corrected and f"{corrected} Otherwise, "
    or_corrected = corrected and f" Or, {corrected}"
    near = dialog.question if dialog.near else ""
    or_renamed = "" if near or dialog.is_known else f" Or, if the name is wrong, {dialog.again}."
    text = _advice().get(disposition, "see the page on dispositions, and the log of {instance}")
    return _filled(
        "{near}{statement}{or_corrected}{or_renamed}" if statement else text,
        instance=instance,
        service=service,
        table=table,
        database=database,
        statement=statement,
        reason=reason or f"the log of {instance} says which certificate is meant",
        name_right=dialog.question,
        near=near,
        again=dialog.again,
        address_right=address_right,
        or_corrected=or_corrected,
        or_renamed="" if "CONNECT ON" in statement else or_renamed,
        address_first="" if is_forwarding else address_right,
        address_last=or_corrected and f".{or_corrected}" if is_forwarding else "",
        asked_first=near if is_forwarding else f"{address_right}{dialog.question}",
        asked_last=f"{or_corrected}{or_renamed}" if is_forwarding else "",
        sender=sender,
        files=f" ({', '.join(peers)})" if peers else "",
        create_route=create_route(service, wanted if disposition == Disposition.INSTANCE_NOT_HERE else ""),
    )


def queue_on(database: str, queue: str, *, instance: str = "") -> str:
    """How a queue is turned on."""
    statement = f"ALTER QUEUE {render_name(queue)} WITH STATUS = ON;"
    turn_on = to_run(statement, database=database, instance=instance, is_scripted=False)
    return f"{turn_on} Then, correct its script if that turns it off"


_WRONG_PORT = (
    (NOT_A_FRAME, "another program answers there: ", ""),
    (NO_HELLO, "if its port is wrong, ", " Otherwise, see whether the instance there hangs"),
    (NO_TLS, "if its port is wrong, ", " Otherwise, set endpoint.encryption of the instance there"),
)


_CHECK = "; broker check with a -c for each instance of the path prints which file to copy where"
_CORRECT = "correct the route, or "  # as the handshake advises


def remedy_of_refused_link(address: str, problem: str, route: TakenRoute | None = None, instance: str = "") -> str:
    """
    Return the remedy for a next hop when the instance here or there refuses the other; empty when none does.

    Args:
        address: Of the next hop.
        problem: As the instance that refuses words it.
        route: The route to it; None where it is not known.
        instance: The instance with this next hop, as a sentence names it; empty for the one that shows the sentence.
    """
    here = instance or "this instance"
    where = f" at {instance}" if instance else ""
    correct = f"correct the route to {address}{where}." if route is None else route.led_elsewhere()
    astray = f" Or, if another instance is meant, {correct}"
    if MAY_NOT_CONNECT in problem:
        is_there = problem.startswith("FATAL")
        where = f"the instance at {address}" if is_there else here
        general = to_run("GRANT CONNECT ON ENDPOINT::[*] TO [PRINCIPAL];", database=MSDB, instance=where)
        remedy = statement_of(problem, where=where) or f"{general} The reason names the PRINCIPAL, or a DENY to REVOKE."
        return f"{remedy}{astray}" if is_there else remedy
    if NOT_TRUSTED in problem:
        add = f"add the certificate of {here} to the files of endpoint.peers, or its CA to those of endpoint.trust"
        return f"at {address}: {add}{_CHECK}.{astray}"
    if TLS_ONLY in problem:
        return (
            f'set endpoint.encryption of {here} to "required", with certificate and private_key, and where peers show'
            ' certificates with authentication = "certificate" and peers; then run broker reload.'
        ) + astray
    for mark, begin, end in _WRONG_PORT:
        if mark in problem and "looks like TLS" not in problem:
            return f"{begin}{correct}{end}"
    _, is_tls, sentence = problem.partition(TLS_REFUSED)
    what, _, remedy = sentence.rpartition(": ")
    if not (is_tls and what):
        return ""
    remedy = remedy.replace(" here", where) if where else remedy
    if route is not None and remedy.startswith(_CORRECT):
        remedy = f"{correct} Or {remedy.removeprefix(_CORRECT)}"
    remedy += _CHECK if " into endpoint.peers" in remedy else ""
    return f"{remedy}.{astray}" if UNTRUSTED in what or "plain text" in what else remedy


def remedy_of_unreached(address: str, problem: str, route: TakenRoute | None = None, instance: str = "") -> str:
    """Return the remedy for a next hop that is not reached; the arguments are those of `remedy_of_refused_link`."""
    where = f" at {instance}" if instance else ""
    elsewhere = "" if route is None else f"if it is somewhere else, {route.led_elsewhere()}"
    return remedy_of_refused_link(address, problem, route, instance) or (
        f"start the instance at {address} (if it runs by now, it is dialled within {BACKOFF_CAP:g} s), open the way to"
        f" it, or {elsewhere or f'correct the route to it{where}'}"
    )


def remedy_of_error(
    code: int | None,
    *,
    service: str,
    text: str = "",
    here: str = "at the sender, with broker sql: USE [DATABASE];",
    target: str = "",
    database: str = "DATABASE",
    end: str = _END,
) -> str:
    """
    Return the remedy for a dialog that failed with this number and text; a positive one is an application's own.

    Args:
        code: None where the Error message has been received.
        service: The far service.
        text: Of the Error message.
        here: How a statement is run in the database of the dialog, up to the statement.
        target: The far instance, as a sentence names it; empty where it is not known.
        database: The far database.
        end: How the Error message is received, and the dialog ended.
    """
    if code is None:
        return end
    if code > 0:
        return f"the far application ended the dialog with its own error {code}: ask there; {end}"
    there = target or f"the instance of {service}"
    statement = statement_of(text, where=there, database=database)
    undone = "" if target else "if that is not done since (broker why with --admin asks there), "
    advice = f"{undone}{{statement}} Then begin another dialog" if statement else _advice().get(str(-code))
    if advice is None:
        return end
    filled = _filled(
        advice,
        instance=there,
        service=service,
        database=database,
        statement=statement,
        reason=text,
        run_here=here,
    )
    return f"{filled}; {end}"


def _filled(
    text: str, *, instance: str, service: str, database: str, reason: str, table: str = MSDB, **values: str
) -> str:
    """Fill in a text in one pass: names of peers and applications may have braces, so they are never a format."""
    contract = _CONTRACT.search(reason)
    values = {
        "contract": render_name("CONTRACT" if contract is None else contract[1]),
        "instance": instance,
        "database": database,
        "reason": reason,
        "service": render_name(service),
        "service_name": render_text(service),
        "to": shlex.quote(service),
        "create_route": create_route(service),
        "run": to_run("", database=table, instance=instance).rstrip(),
        "run_in_database": to_run("", database=database, instance=instance).rstrip(),
        **values,
    }
    return _GAP.sub(lambda gap: values[gap[1]], text)
