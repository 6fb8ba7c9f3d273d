"""`broker why`: shows where a conversation or message is and why, by asking every instance on its path."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import click
import msgspec

from broker.admin.client import AdminClient
from broker.admin.trace import FORECAST, Directory, NotAskedError, Trace, ask_why, trace
from broker.advice import render_name
from broker.catalog.catalog import MSDB
from broker.catalog.database_files import is_elsewhere
from broker.catalog.unscripted import IMPORT_AGAIN
from broker.cli.access import (
    Asked,
    admin_client,
    ask_daemon_or_files,
    credentials,
    option_of,
    read_settings,
    with_config,
    with_sql_at,
)
from broker.cli.exit_codes import ExitCode, fail
from broker.cli.options import Command, Config, Output, Socket, Where
from broker.cli.output import TextLine, print_lines, remedy_lines, show_json
from broker.config.settings import Settings
from broker.config.units import plural
from broker.errors import BrokerError
from broker.observe.causes import joined
from broker.observe.explain import configured_place
from broker.observe.status import Level, Status
from broker.observe.why import WhyAnswer, answer_why, look, part_of
from broker.protocol.layout import show_guid

_INDENT, _DEEP = 2, 6  # columns
_REMEDY = "remedy: "
_FOR_THE_NEXT = "Then, broker why again has that for the next of these dialogs"
_ENDS_MANY = "--older-than 0s --dry-run counts what it ends at once with --yes"
_HANDLES = "a handle belongs to one side: broker why at its instance shows the conversation id, which both sides know"
ASKED_MAX = 20  # conversations that are asked about, those of each service in turn, oldest first
LISTED_MAX = 1000  # among which they are chosen, of each queue
_SENT = (
    f"SELECT TOP {LISTED_MAX} MIN(enqueue_time), conversation_handle, to_service_name, COUNT(*)"  # noqa: S608
    " FROM sys.transmission_queue GROUP BY conversation_handle, to_service_name ORDER BY 1"
)
_ARRIVED = (
    f"SELECT TOP {LISTED_MAX} MIN(message_enqueue_time), conversation_handle, service_name, COUNT(*)"  # noqa: S608
    " FROM {} GROUP BY conversation_handle, service_name ORDER BY 1"
)
_HELD = (
    f"SELECT TOP {LISTED_MAX} MAX(held_ms), conversation_id, to_service_name, COUNT(*)"  # noqa: S608
    " FROM sys.dm_broker_forwarded_messages GROUP BY conversation_id, to_service_name ORDER BY 1 DESC"
)
_QUEUES = "SELECT TOP 100 name FROM sys.service_queues WHERE message_count > 0 ORDER BY message_count DESC"
_FAILED = (
    f"SELECT TOP {LISTED_MAX} create_date, conversation_handle, service_name, 0"  # noqa: S608
    " FROM sys.conversation_endpoints WHERE state = 'ER' ORDER BY 1"
)
_ACKNOWLEDGED = (
    "SELECT TOP 1 conversation_handle FROM sys.conversation_endpoints"
    " WHERE is_initiator = 1 AND state IN ('SI', 'CO') AND acknowledged_sequence > 0 ORDER BY create_date DESC"
)
_Waiting: TypeAlias = tuple[str, str, str, str, int, bool]
"""A conversation: since when it waits, GUID, service, database, messages, and whether they have arrived here."""
NOTHING_WAITS = (
    "nothing waits: not to be acknowledged, not for a next hop, not to be received; and no dialog has failed"
)


def _traced(first: WhyAnswer, directory: Directory, how: Asked) -> Trace:
    """The trace, with commands for the first instance that run as they stand."""

    def placed(remedy: str, instance: str) -> str:
        remedy = with_sql_at(first.instance, remedy, *how)
        remedy = with_config(remedy, *how) if instance == first.instance else remedy
        for other, at in directory.places.items():
            remedy = remedy if other == first.instance else with_sql_at(other, remedy, None, at)
        return remedy

    found = trace(first, directory, option_of(*how))
    remedy = placed(found.remedy, found.where.partition(",")[0])
    findings = [msgspec.structs.replace(one, remedy=placed(one.remedy, one.instance)) for one in found.findings]
    return msgspec.structs.replace(found, remedy=remedy, findings=findings)


@click.command(cls=Command)
@click.argument("guid", metavar="[ID]", type=click.UUID, required=False)
def why(config: Config, socket: Socket, where: Where, output: Output, guid: UUID | None) -> None:
    """
    Show where a conversation or message is, why, and what to do.

    Without ID, lists why messages wait at a running instance to be acknowledged, for a next hop or to be received, and
    why dialogs have failed: a row for each service and cause, with the oldest conversation. Asks about twenty, the
    oldest of each service in turn, and says when there are more. Also reports frames that are dropped there, and a
    database whose write lock another process holds.

    ID is a conversation_handle, a conversation_id, or the message_id of a frame that is held at the first instance or
    recorded in the journal of the configuration. Where it is not known there, begins at the first of --admin that knows
    it. Asks every instance on the path, on port 9422 of its host or where --admin says. When no daemon answers, reads
    the files of the configuration.

    Exit codes: 0 shown, 3 the id is not known, 4 no daemon answers and there is no configuration.

    Examples:
        broker why -c config/orders.toml
        broker why 5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11 --admin tcp://gateway-a:4022=http://127.0.0.1:9422 -o json
    """
    directory = Directory(where, credentials=credentials())
    how = Asked(config, socket)
    if guid is None:
        client = admin_client(config, socket)
        status = client.get("/v1/status")
        waiting = sorted(_conversations(client, status))
        rows = list(_causes(client, waiting, directory, how))
        if output == "json":
            show_json(rows)
        else:
            print_lines(line for row in rows for line in _row_lines(row))
            if not rows:
                print_lines([TextLine(NOTHING_WAITS), *_acknowledged(client, status, how)])
            if len(waiting) > ASKED_MAX:
                note = f"{ASKED_MAX} of {len(waiting):,} dialogs were asked about, the oldest of each service in turn"
                print_lines([TextLine(f"{note}; broker why ID asks about another one", style="yellow")])
            told = {"drops"} if rows else {"drops", "queue"}
            resumed = (one["database"] for one in rows if "quarantine resume" in str(one["remedy"]))
            listed = {f"broker quarantine list -d {name}" for name in resumed}
            print_lines(_besides(msgspec.convert(status, Status), how, told, listed))
        return
    first, note = _first(config, socket, guid, directory)
    journalled = None
    if not first.is_known:
        conversation, journalled = _journalled(config, guid)
        if conversation is not None:
            first, note = _first(config, socket, conversation, directory)
            note = f"{note}; {journalled}" if note else journalled
        for address, at in where.items() if not first.is_known else ():
            with contextlib.suppress(NotAskedError):
                answer = directory.why(address, conversation or guid)
                if answer.is_known:
                    note = f"{note}; not known at {first.instance}".removeprefix("; ")
                    first, how = answer, Asked(None, at)
                    break
    if not first.is_known:
        unknown = f"{show_guid(guid)} is not known at {first.instance}, or was ended WITH CLEANUP; looked in:"
        places = (f"  {place}" for place in (*first.looked_in, journalled))
        fail("\n".join(filter(None, [unknown, *places, _HANDLES, note])), ExitCode.NOT_FOUND)
    found = _traced(first, directory, how)
    if output == "json":
        show_json(found)
    else:
        print_lines(_lines(found, guid, note))


def _besides(status: Status, how: Asked, about: Collection[str], listed: Collection[str]) -> Iterator[TextLine]:
    """
    Yield what keeps messages from arriving besides those listed, and what this instance cannot know.

    Args:
        status: Of the instance.
        how: It was asked.
        about: Findings shown already.
        listed: Remedies of findings shown for a dialog.
    """
    for finding in status.verdict.findings if status.verdict else ():  # none from an earlier release
        is_bad = finding.about == "database" and (finding.level is Level.BAD or finding.do == IMPORT_AGAIN)
        if finding.about in about or (is_bad and finding.do not in listed):
            do = with_sql_at(status.name, with_config(finding.do, *how), *how)
            yield TextLine(f"but {finding.what}", style="yellow")
            if do:
                yield from remedy_lines(do, style="yellow")
    if status.forwarding.enabled:
        gateway = "a gateway does not know of messages that wait at other instances: run broker why at the sender"
        yield TextLine(gateway, style="yellow")


def _acknowledged(client: AdminClient, status: Mapping[str, Any], how: Asked) -> Iterator[TextLine]:
    """What is known of messages that have left for good: they may wait at the far side."""
    for database in status["databases"]:
        for (handle,) in client.sql(_ACKNOWLEDGED, database)["rows"]:
            ask = f"broker why {handle}{option_of(*how)}"
            yield TextLine(
                f"what {database} has sent is acknowledged (the far side has stored it), or its dialog has failed or"
                f" was ended; the ledger in broker status counts each. {ask} asks the far side about the last open"
                " dialog, and broker why at the far instance lists messages that wait there"
            )


def _causes(
    client: AdminClient, waiting: Sequence[_Waiting], directory: Directory, how: Asked
) -> Iterator[dict[str, object]]:
    """A row for each service and cause among `ASKED_MAX` conversations, the oldest of each service, oldest first."""
    rows: dict[tuple[str, str, str, str | None], dict[str, Any]] = {}
    known: set[tuple[str | None, bool]] = set()
    of_service: Counter[tuple[str, str]] = Counter()
    ranked = []
    for one in waiting:
        ranked.append((of_service[one[2:4]], one))
        of_service[one[2:4]] += 1
    for since, guid, service, database, messages, is_here in sorted(one for _, one in sorted(ranked)[:ASKED_MAX]):
        answer = directory.learn(client, ask_why(client, UUID(guid)))
        if not answer.is_known or (answer.conversation_id, is_here) in known:
            continue  # acknowledged by now, or another side of it
        known.add((answer.conversation_id, is_here))
        found = _traced(part_of(answer, database, has_arrived=is_here), directory, how)
        fars = (one.far_broker_instance for one in answer.sides if one.conversation_handle == guid)
        first = {
            "since": since,
            "database": database,
            "conversation_handle": guid,
            "to_service_name": service,
            "dialogs": 0,
            "messages": 0,
            "cause": found.why,
            "remedy": found.remedy,
        }
        row = rows.setdefault((service, found.cause, found.remedy.replace(guid, ""), next(fars, None)), first)
        row["dialogs"] += 1
        row["messages"] += messages
    for (*_, far), row in rows.items():
        handle, more, which = row["conversation_handle"], _FOR_THE_NEXT, ""
        if f"--conversation {handle} --end" in row["remedy"]:  # it has failed, and all that have can be ended at once
            which = "--state ER"
        elif far is not None and f"END CONVERSATION '{handle}' WITH CLEANUP" in row["remedy"]:
            which = f"--far-instance {far} --cleanup"
        if which:
            at = f"{option_of(how.config)} -d {shlex.quote(row['database'])}"
            more += f"; broker dialogs end{at} {which} {_ENDS_MANY}"
        is_of_one = row["dialogs"] > 1 and handle in row["remedy"]
        yield row | {"remedy": joined(row["remedy"], more)} if is_of_one else row


def _conversations(client: AdminClient, status: Mapping[str, Any]) -> Iterator[_Waiting]:
    """The oldest conversations here that wait."""
    for database in status["databases"]:
        yield from ((*row[:3], database, row[3], False) for row in client.sql(_SENT, database)["rows"])
        queues = client.sql(_QUEUES, database)["rows"]
        arrived = [
            row for (name,) in queues for row in client.sql(_ARRIVED.format(render_name(name)), database)["rows"]
        ]
        unread = {row[1] for row in arrived}
        failed = [row for row in client.sql(_FAILED, database)["rows"] if row[1] not in unread]
        yield from ((*row[:3], database, row[3], True) for row in (*arrived, *failed))
    now = datetime.now(UTC)
    for held_ms, *row, messages in client.sql(_HELD, MSDB)["rows"]:
        since = (now - timedelta(milliseconds=held_ms)).replace(tzinfo=None)
        yield (since.isoformat(" ", "milliseconds"), *row, MSDB, messages, False)


def _row_lines(row: Mapping[str, object]) -> Iterator[TextLine]:
    messages, others = int(str(row["messages"])), int(str(row["dialogs"])) - 1
    place = "held here" if row["database"] == MSDB else f"in {row['database']}"
    noun = "frame" if row["database"] == MSDB else "message"
    about = f"{plural(messages, noun)} to {row['to_service_name']} {place}, since {row['since']}"
    about = about if messages else f"dialog of {row['to_service_name']} {place}, begun {row['since']}"
    more = f" and {plural(others, 'other dialog')} for the same cause" if others else ""
    yield TextLine(f"{row['conversation_handle']}{more}: {about}", style="bold")
    yield TextLine(f"cause:   {row['cause']}", _INDENT)
    yield from remedy_lines(str(row["remedy"]), _REMEDY, _INDENT)


def _first(config: Path | None, socket: Path | str | None, guid: UUID, directory: Directory) -> tuple[WhyAnswer, str]:
    return ask_daemon_or_files(
        config, socket, lambda client: directory.learn(client, ask_why(client, guid)), partial(_read_answer, guid)
    )


def _journalled(config: Path | None, guid: UUID) -> tuple[UUID | None, str]:
    """The conversation of a recorded frame in the journal of the configuration; and a sentence on what was found."""
    if config is None:
        return None, "no journal: no configuration (-c) names one"
    try:
        directory = read_settings(config).journal.directory
        if directory is None:
            return None, f"no journal: {config} has no journal.directory"
        from broker.journal.reader import Wanted, newest  # noqa: PLC0415 - pyarrow is an extra

        visits = newest(directory, Wanted(message=guid.bytes), 1).visits
        passed = [] if visits else newest(directory, Wanted(conversation=guid.bytes), 1).visits
    except (BrokerError, OSError, ImportError) as error:
        return None, f"not in the journal: {error}"
    if passed:
        last = passed[0]
        at = f"{last['left_at'] or last['entered_at']:%Y-%m-%d %H:%M:%S} UTC"
        ask = f"broker journal tail {shlex.quote(str(directory))} --conversation {show_guid(guid)}"
        told = f"message {last['sequence_number']} to {last['to_service']}, {last['outcome']} at {at}"
        return None, f"the journal has the conversation, last {told}; {ask} shows its visits"
    if not visits:
        return None, f"the journal in {directory}, whose newest visits are in no file yet"
    conversation = UUID(bytes=visits[0]["conversation_id"])
    number = visits[0]["sequence_number"]
    which = f"message {number} of conversation {show_guid(conversation)}"
    return conversation, f"message_id {show_guid(guid)} is of {which}, by the journal"


def _read_answer(guid: UUID, settings: Settings) -> WhyAnswer:
    """The answer from the files of a configuration."""
    now = time.time()
    mirrors = [name for name in settings.databases if is_elsewhere(settings, name)]
    paths = {name: database.path for name, database in settings.databases.items() if name not in mirrors}
    facts = look(guid, paths, None, now, mirrors=mirrors)
    place = configured_place(settings, now=datetime.now(UTC))
    return answer_why(place, guid, facts, dropped={}, is_running=False, now=now)


def _lines(found: Trace, asked: UUID, note: str) -> Iterator[TextLine]:
    other = "" if UUID(found.conversation_id) == asked else f", asked for by {show_guid(asked)}"
    yield TextLine(f"conversation {found.conversation_id}{other}", style="bold")
    if note:
        yield TextLine(note, _INDENT, style="yellow")
    for label, text in (("symptom", found.symptom), ("cause", found.why), ("next", found.next)):
        yield TextLine(f"{label + ':':<9}{text}", _INDENT)
    yield from remedy_lines(found.remedy, _REMEDY, _INDENT, "bold")
    yield TextLine("")
    yield TextLine("Answers of the instances on the path", style="bold")
    for finding in found.findings:
        yield TextLine(f"{finding.where}: {finding.cause}", _INDENT)
        yield TextLine(f"{finding.symptom}: {finding.why}", _DEEP)
        if finding.next == FORECAST and finding.remedy != found.remedy:
            yield TextLine(FORECAST, _DEEP)
            yield from remedy_lines(finding.remedy, _REMEDY, _DEEP)
    for answer in found.answers:
        for side in answer.sides:
            yield TextLine(f"{side.service_name} in {side.database}: {side.security}", _INDENT)
    for path in found.paths:
        if path not in found.not_asked:
            yield TextLine(f"way: {path}", _INDENT)
    for sentence in found.not_asked:
        yield TextLine(f"not asked: {sentence}", _INDENT, style="yellow")
