"""
`broker send` and `broker receive` use the services of a database; `broker dialogs` counts and ends its dialogs.

They work on the file, whether a daemon runs or not. A message leaves its queue only after it was printed.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote
from uuid import UUID

import click
import msgspec

import broker
from broker import Message
from broker.cli.access import admin_client, option_of, read_settings
from broker.cli.database import file_of, open_database
from broker.cli.exit_codes import ExitCode, fail
from broker.cli.options import (
    DURATION,
    INPUT,
    Command,
    Config,
    Group,
    OneDatabase,
    Output,
    RowsOutput,
    Socket,
    Yes,
    confirm,
)
from broker.cli.output import TextLine, print_lines, show_json, show_lines, show_rows
from broker.client.ending import ENDABLE, DialogSelection, EndMode, count_selected, end_selected
from broker.config.units import plural
from broker.conversation.state import ConversationState
from broker.observe.database_stats import census_of
from broker.protocol.layout import show_guid
from broker.store.sqlite.schema import LARGE_BYTES


@click.command(cls=Command)
@click.option("--from", "from_service", required=True, help="A service of the database.")
@click.option("--to", "to_service", required=True, help="The service to send to.")
@click.option("--contract", default="DEFAULT", help="Contract of the dialog.")
@click.option("--type", "message_type", default="DEFAULT", help="Type of the messages.")
@click.option("--broker-instance", help="GUID of the only database that may answer, or 'CURRENT DATABASE'.")
@click.option("--lifetime", type=float, default=604_800.0, help="Lifetime of the dialog, in seconds.")
@click.option(
    "--group", "related_conversation_group", metavar="GUID", help="Conversation group of the dialog; may be new."
)
@click.option(
    "--encryption/--no-encryption",
    default=None,
    help="Whether the dialog has to be sealed where it leaves the instance; left out, when the database has a"
    " certificate. A remote service binding seals it in any case.",
)
@click.option("--file", type=INPUT, help="The body is this file, of any length; - is standard input.")
@click.option("--lines", is_flag=True, help="One message a line of standard input, each in its own transaction.")
@click.option("--end", is_flag=True, help="End the conversation after the last message.")
@click.argument("body", required=False)
def send(
    config: Config,
    database: OneDatabase,
    output: Output,
    body: str | None,
    *,
    file: Path | None,
    lines: bool,
    end: bool,
    **dialog: Any,
) -> None:
    """
    Begin a dialog, send, and print the conversation handle.

    The body is the argument, a file, or standard input. Exit codes: 0 committed, for the daemon on the same database to
    deliver; 1 refused, 3 no such database or service.

    Examples:
        broker send -d orders.db --from //shop/Orders --to //shop/Billing --type //shop/Invoice '{"order": 7}'
        tail -f orders.jsonl | broker send -d orders.db --from //shop/Orders --to //shop/Billing --lines
    """
    message_type = dialog.pop("message_type")
    if lines and (body is not None or file is not None):
        raise click.UsageError("--lines reads the messages from standard input: leave out BODY and --file")
    if file is not None and body is not None:
        raise click.UsageError("the body is --file or BODY, not both")
    with open_database(config, database) as db, _body(file, body, is_needed=not lines) as whole:
        with db:
            conversation = broker.begin_dialog(db, **dialog)
            if not lines:
                conversation.send(whole, type=message_type)
        handle = {"conversation_handle": show_guid(conversation.conversation_handle)}
        click.echo(json.dumps(handle) if output == "json" else handle["conversation_handle"])
        for line in sys.stdin.buffer if lines else ():
            with db:
                conversation.send(line.rstrip(b"\r\n"), type=message_type)
        if end:
            with db:
                conversation.end()


def _body(file: Path | None, body: str | None, *, is_needed: bool) -> IO[bytes]:
    """
    The body, read completely before the transaction, which blocks other writers of the database.

    Large standard input is spooled to an anonymous file.
    """
    if body is not None or not is_needed:
        return io.BytesIO(os.fsencode(body or ""))
    if file is not None and str(file) != "-":
        return file.open("rb")
    spool = tempfile.SpooledTemporaryFile(LARGE_BYTES)  # noqa: SIM115 - the caller closes it
    shutil.copyfileobj(sys.stdin.buffer, spool)
    spool.seek(0)
    return spool


@click.command(cls=Command)
@click.option("--queue", required=True, help="A queue of the database.")
@click.option("--top", type=click.IntRange(1), default=100, help="Maximum number of messages.")
@click.option("--wait", type=click.FloatRange(0), default=0.0, help="Seconds to wait for the first message.")
@click.option("--conversation", metavar="HANDLE", help="Only messages of this conversation.")
@click.option("--group", "conversation_group", metavar="GUID", help="Only messages of this conversation group.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    help="Directory for the bodies, each as a file HANDLE-NUMBER whose path is printed instead.",
)
@click.option("--end", is_flag=True, help="End each conversation that is received from.")
def receive(
    config: Config, database: OneDatabase, output: RowsOutput, *, save: Path | None, end: bool, **what: Any
) -> None:
    """
    Take messages from a queue and print them.

    They leave the queue once they are printed; when printing fails they stay. Bytes that are not UTF-8 are shown with a
    backslash. A body above 1 MiB needs --save. Exit codes: 0 some received, 7 none, 6 a body is too large to be
    printed, 3 no such database or queue.

    Examples:
        broker receive -d billing.db --queue BillingQueue
        broker receive -c config/endpoint.toml -d orders --queue OrdersQueue --wait 30 -o json
    """
    with open_database(config, database) as db, db:
        messages = broker.receive(db, **what, poison=0)  # a failure to print does not count against a message
        if not messages:
            hint = f" within {what['wait']:g} s" if what["wait"] else "; with --wait SECONDS, wait for it"
            fail(f"nothing in {what['queue']}{hint}", ExitCode.TIMED_OUT)
        rows = [
            {
                "conversation_handle": show_guid(message.dialog.conversation_handle),
                "message_sequence_number": message.message_sequence_number,
                "service_name": message.service_name,
                "message_type_name": message.type,
                "message_body": _shown(message, save),
            }
            for message in messages
        ]
        show_rows(rows, output)
        sys.stdout.flush()
        if end:
            for handle in {message.dialog.conversation_handle: message.dialog for message in messages}.values():
                handle.end()


def _shown(message: Message, save: Path | None) -> str:
    """The body of a message as text, or the path of the file in which it was saved."""
    if save is None:
        if message.is_large:
            where = f"message {message.message_sequence_number} of {show_guid(message.dialog.conversation_handle)}"
            fail(
                f"{where} has {message.body_length} bytes: take it with --save DIRECTORY; all stay in the queue",
                ExitCode.HARMFUL,
            )
        return message.body.decode("utf-8", "backslashreplace")
    path = save / f"{show_guid(message.dialog.conversation_handle)}-{message.message_sequence_number}"
    with path.open("wb") as file:
        shutil.copyfileobj(message.open(), file)
        file.flush()
        os.fsync(file.fileno())
    return str(path)


_STATES = ("SO", "SI", "CO", "DI", "ER", "DO")  # of sides that can end, the last one only with cleanup


@click.group(cls=Group)
def dialogs() -> None:
    """
    Summarize, end, or send again the dialogs of a database.

    Examples:
        broker dialogs census -c config/orders.toml
        broker dialogs census -d orders.db -o json
    """


@dialogs.command()
@click.option(
    "-d", "--database", help="A database of the configuration, or the path of its file; all of them if left out."
)
def census(config: Config, socket: Socket, database: str | None, output: Output) -> None:
    """
    Summarize conversations, queues and storage.

    Shows conversations by service, state and age, queues, tombstones, quarantine, the bytes of each table, and the
    ledger: whether anything that was sent is missing. Reads the files, whether a daemon runs or not; with --socket,
    asks the daemon there. Exit codes: 0 counted, 1 a file cannot be used, 3 no such database, 4 daemon unreachable.

    Examples:
        broker dialogs census -c config/orders.toml
        broker dialogs census -d orders.db -o json
    """
    if socket is not None:
        query = "" if database is None else f"?database={quote(database)}"
        answer = admin_client(config, socket).get(f"/v1/census{query}")
    else:
        answer = msgspec.to_builtins(census_of(_paths(config, database), time.time()))
    if output == "json":
        show_json(answer)
        return
    for number, one in enumerate(answer["databases"]):
        if number:
            click.echo()
        _show(one["database"], one["census"], one.get("ledger"))


@dialogs.command()
@click.argument("id", metavar="[ID]", type=click.UUID, required=False)
def retry(config: Config, socket: Socket, output: Output, **chosen: UUID | None) -> None:
    """
    Send what is not acknowledged again now.

    ID is the handle of a dialog, or its conversation id; without it, every dialog that waits is sent again, and every
    next hop that has failed is dialled. Use it when you have removed the cause and the next attempt is far away. Exit
    codes: 0 done, 3 no such conversation, 4 daemon unreachable.

    Examples:
        broker dialogs retry -c config/orders.toml
        broker dialogs retry 5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11 -c config/orders.toml
    """
    guid = chosen["id"]
    answer = admin_client(config, socket).request("POST", "/v1/retry", {"id": None if guid is None else str(guid)})
    show_lines(answer, output, [plural(answer["dialogs"], "dialog") + " sent again"])


@dialogs.command()
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(_STATES),
    help="State of this side; any that can end if left out.",
)
@click.option("--service", metavar="NAME", help="Service of this side; any if left out.")
@click.option(
    "--far-instance",
    type=click.UUID,
    metavar="GUID",
    help="Broker instance of the far side, as sys.conversation_endpoints has it; any if left out.",
)
@click.option("--older-than", type=DURATION, required=True, help="Minimum age.")
@click.option("--error", type=click.IntRange(min=1), metavar="CODE", help="End them WITH ERROR.")
@click.option("--description", default="", show_default=False, help="Text of the error.")
@click.option("--cleanup", is_flag=True, help="End them WITH CLEANUP: forget them, without notice to the far side.")
@click.option("--dry-run", is_flag=True, help="Count them, and change nothing.")
def end(config: Config, database: OneDatabase, output: Output, *, dry_run: bool, yes: Yes, **choice: Any) -> None:
    """
    End all conversations of a kind that no application ends.

    Does what END CONVERSATION does, some hundreds in a transaction; the daemon may run. Their messages that were not
    received yet are lost. Exit codes: 0 done, 1 not confirmed, 3 no such database.

    Examples:
        broker dialogs end -d orders.db --state DI --older-than 7d --dry-run
        broker dialogs end -d orders.db --service //shop/Orders --older-than 30d --error 9001 --yes
    """
    selection, mode = _selection(**choice)
    ended = 0
    with open_database(config, database) as db:
        db.isolation_level = None
        members = count_selected(db, selection)
        total = sum(one.conversations for one in members)
        if output == "table" and members:
            columns = ["service_name", "state", "conversations", "unread", "unsent"]
            show_rows([one._asdict() for one in members], "table", columns)
        if total and not dry_run:
            if not yes:
                confirm(f"end {plural(total, 'conversation')}?")
            for ended in end_selected(db, selection, mode):
                click.echo(f"{ended:,} of {total:,} ended", err=True)
    done = f"{plural(total, 'conversation')} would end" if dry_run else f"{plural(ended, 'conversation')} ended"
    show_lines({"chosen": [one._asdict() for one in members], "ended": ended}, output, [done])


def _selection(
    states: tuple[str, ...],
    service: str | None,
    older_than: timedelta,
    error: int | None,
    description: str,
    *,
    far_instance: UUID | None,
    cleanup: bool,
) -> tuple[DialogSelection, EndMode]:
    if cleanup and error is not None:
        raise click.UsageError("--cleanup sends nothing to the far side, and so no --error")
    if description and error is None:
        raise click.UsageError("--description belongs to --error: give its code too, or leave it out")
    if "DO" in states and not cleanup:
        raise click.UsageError("a conversation in DO has ended here and waits for the far side: only --cleanup ends it")
    wanted = tuple(map(ConversationState, states)) or (tuple(ConversationState) if cleanup else ENDABLE)
    selection = DialogSelection(wanted, service, time.time() - older_than.total_seconds(), far_instance)
    return selection, EndMode(error, description, cleanup)


def _paths(config: Path | None, database: str | None) -> Mapping[str, Path]:
    """The files by the names of their databases."""
    if database is None and config is None:
        raise click.UsageError("name a database with -d FILE, or a configuration with -c FILE")
    known = {} if config is None else read_settings(config).databases
    return {name: file_of(known, name, option_of(config)) for name in ([database] if database else known)}


def _show(database: str, census: Mapping[str, Any], ledger: Mapping[str, Any] | None) -> None:
    print_lines([TextLine(f"database {database}, {census['file_bytes']:,} bytes", style="bold")])
    groups = [{**group, "first_lifetime": _instant(group["first_lifetime"])} for group in census["groups"]]
    columns = ["service_name", "state", "age", "conversations", "unread", "unsent", "first_lifetime"]
    show_rows(groups, "table", columns, empty="no conversations")
    queues = [{**queue, "oldest": _instant(queue["oldest_time"])} for queue in census["queues"]]
    columns = ["queue_name", "is_receive_enabled", "ready", "quarantined", "oldest"]
    show_rows(queues, "table", columns, empty="no queues")
    show_rows(census["tables"], "table", ["table", "rows", "size_bytes"])
    estimated = "estimated" if census["is_estimated"] else "counted"
    since = _instant(census["sending_since"])
    unsent, tombstones = plural(census["sending"], "message"), plural(census["tombstones"], "tombstone")
    quarantined = plural(census["quarantined_dialogs"], "dialog")
    print_lines(
        [
            TextLine(f"sizes are {estimated}; {census['free_bytes']:,} bytes of the file are used by nothing"),
            TextLine(f"{unsent} not acknowledged{since and f', the oldest since {since}'}"),
            TextLine(f"{tombstones} of closed sides, {census['tombstones_due']:,} of them due"),
            TextLine(f"{quarantined} in quarantine, {census['failing_dialogs']:,} tried again"),
        ]
    )
    if ledger is not None:  # a daemon of an older version sends none
        print_lines([TextLine(f"ledger: {ledger['sentence']}", style="red" if ledger["unaccounted"] else "")])


def _instant(at: float | None) -> str:
    try:
        return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return "in the far future"
