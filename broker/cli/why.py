"""`broker why`: shows where a conversation or message is and why, by asking every instance on its path."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import UUID

import click

from broker.admin.client import AdminClient
from broker.admin.trace import Directory, Trace, ask_why, trace
from broker.catalog.database_files import is_elsewhere
from broker.cli.access import admin_client, ask_daemon_or_files, credentials, read_settings
from broker.cli.exit_codes import ExitCode
from broker.cli.options import Command, Where, config_option, output_option, socket_option, where_option
from broker.cli.output import TextLine, print_lines, show_json
from broker.config.settings import Settings
from broker.config.units import plural
from broker.errors import BrokerError
from broker.observe.explain import configured_place
from broker.observe.why import WhyAnswer, answer_why, look

_INDENT, _DEEP = 2, 6  # columns
LISTED_MAX = 20  # conversations
_OLDEST = (
    f"SELECT TOP {LISTED_MAX} MIN(enqueue_time), conversation_handle, to_service_name, COUNT(*)"  # noqa: S608
    " FROM sys.transmission_queue GROUP BY conversation_handle, to_service_name ORDER BY 1"
)


ALL_ACKNOWLEDGED = "all messages sent are acknowledged; broker dialogs census counts those to be received"


@click.command(cls=Command)
@config_option
@socket_option
@where_option
@output_option
@click.argument("guid", metavar="[ID]", type=click.UUID, required=False)
def why(config: Path | None, socket: Path | str | None, where: Where, output: str, guid: UUID | None) -> None:
    """
    Show where a conversation or message is, why, and what to do.

    Without ID, lists the conversations whose messages wait at a running instance, the oldest first, each with its
    cause. ID is a conversation_handle, a conversation_id, or the message_id of a frame that is held at the first
    instance or recorded in the journal of the configuration. Asks every instance on the path, on port 9422 of its host
    or where --admin says. When no daemon answers, reads the files of the configuration.

    Exit codes: 0 shown, 3 the id is not known here, 4 no daemon answers and there is no configuration.

    Examples:
        broker why -c config/orders.toml
        broker why 5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11 --admin tcp://gateway-a:4022=http://127.0.0.1:9422 -o json
    """
    directory = Directory(where, credentials=credentials())
    if guid is None:
        rows = list(_waiting(admin_client(config, socket), directory))
        if output == "json":
            show_json(rows)
        else:
            print_lines(line for row in rows for line in _row_lines(row))
            click.echo(
                "" if rows else ALL_ACKNOWLEDGED,
                nl=not rows,
            )
        return
    first, note = _first(config, socket, guid)
    journalled = None
    if not first.is_known:
        conversation, journalled = _journalled(config, guid)
        if conversation is not None:
            first, note = _first(config, socket, conversation)
            note = f"{note}; {journalled}" if note else journalled
    if not first.is_known:
        click.echo(f"{guid} is not known at {first.instance}; looked in:", err=True)
        for place in (*first.looked_in, journalled):
            click.echo(f"  {place}", err=True)
        if note:
            click.echo(note, err=True)
        sys.exit(ExitCode.NOT_FOUND)
    found = trace(first, directory)
    if output == "json":
        show_json(found)
    else:
        print_lines(_lines(found, guid, note))


def _waiting(client: AdminClient, directory: Directory) -> Iterator[dict[str, object]]:
    """A row for each of the first `LISTED_MAX` conversations of each database whose messages wait, oldest first."""
    rows: list[tuple[str, str, str, str, int]] = []
    for database in client.get("/v1/status")["databases"]:
        rows += [(*row[:3], database, row[3]) for row in client.sql(_OLDEST, database)["rows"]]
    for since, handle, service, database, messages in sorted(rows)[:LISTED_MAX]:
        answer = ask_why(client, UUID(handle))
        found = trace(answer, directory) if answer.is_known else None  # acknowledged by now
        if found is not None:
            yield {
                "since": since,
                "database": database,
                "conversation_handle": handle,
                "to_service_name": service,
                "messages": messages,
                "cause": found.why,
                "remedy": found.remedy,
            }


def _row_lines(row: Mapping[str, object]) -> Iterator[TextLine]:
    count = plural(int(str(row["messages"])), "message")
    about = f"{count} to {row['to_service_name']} in {row['database']}, since {row['since']}"
    yield TextLine(f"{row['conversation_handle']}: {about}", style="bold")
    yield TextLine(f"cause:   {row['cause']}", _INDENT)
    yield TextLine(f"remedy:  {row['remedy']}", _INDENT)


def _first(config: Path | None, socket: Path | str | None, guid: UUID) -> tuple[WhyAnswer, str]:
    return ask_daemon_or_files(config, socket, lambda client: ask_why(client, guid), partial(_read_answer, guid))


def _journalled(config: Path | None, message: UUID) -> tuple[UUID | None, str]:
    """The conversation of a recorded frame in the journal of the configuration, and a sentence on it."""
    if config is None:
        return None, "no journal: no configuration (-c) names one"
    try:
        directory = read_settings(config).journal.directory
        if directory is None:
            return None, f"no journal: {config} has no journal.directory"
        from broker.journal.reader import Wanted, newest  # noqa: PLC0415 - pyarrow is an extra

        visits = newest(directory, Wanted(message=message.bytes), 1).visits
    except (BrokerError, OSError) as error:
        return None, f"not in the journal: {error}"
    if not visits:
        return None, f"the journal in {directory}, whose newest visits are in no file yet"
    conversation = UUID(bytes=visits[0]["conversation_id"])
    number = visits[0]["sequence_number"]
    return conversation, f"message_id {message} is of message {number} of conversation {conversation}, by the journal"


def _read_answer(guid: UUID, settings: Settings) -> WhyAnswer:
    """The answer from the files of a configuration."""
    now = time.time()
    mirrors = [name for name in settings.databases if is_elsewhere(settings, name)]
    paths = {name: database.path for name, database in settings.databases.items() if name not in mirrors}
    facts = look(guid, paths, None, now, mirrors=mirrors)
    place = configured_place(settings, now=datetime.now(UTC))
    return answer_why(place, guid, facts, dropped={}, is_running=False, now=now)


def _lines(found: Trace, asked: UUID, note: str) -> Iterator[TextLine]:
    other = "" if UUID(found.conversation_id) == asked else f", asked for by {str(asked).upper()}"
    yield TextLine(f"conversation {found.conversation_id}{other}", style="bold")
    if note:
        yield TextLine(note, _INDENT, style="yellow")
    for label, text in (
        ("symptom", found.symptom),
        ("cause", found.why),
        ("next", found.next),
        ("remedy", found.remedy),
    ):
        yield TextLine(f"{label + ':':<9}{text}", _INDENT, style="bold" if label == "remedy" else "")
    yield TextLine("")
    yield TextLine("Answers of the instances on the path", style="bold")
    for finding in found.findings:
        place = finding.instance if finding.database is None else f"{finding.instance}, database {finding.database}"
        yield TextLine(f"{place}: {finding.cause}", _INDENT)
        yield TextLine(f"{finding.symptom}: {finding.why}", _DEEP)
    for answer in found.answers:
        for side in answer.sides:
            yield TextLine(f"{side.service_name} in {side.database}: {side.security}", _INDENT)
    for path in found.paths:
        if path not in found.not_asked:
            yield TextLine(f"way: {path}", _INDENT)
    for sentence in found.not_asked:
        yield TextLine(f"not asked: {sentence}", _INDENT, style="yellow")
