"""`broker quarantine`: lists dialogs whose message made its reader fail, and settles them."""

from __future__ import annotations

import sqlite3
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from broker.admin.audit import AuditEntry
from broker.cli.access import read_settings
from broker.cli.audit import recording
from broker.cli.database import open_database
from broker.cli.options import CONFIG, DATABASE, OUTPUT, YES, Config, Group, OneDatabase, Output, RowsOutput, confirm
from broker.cli.output import show_lines, show_rows
from broker.client.dialog import Dialog, get_dialog
from broker.config.units import counted
from broker.errors import ConversationError
from broker.protocol.layout import show_guid
from broker.store.sqlite.quarantine import Failure, body_pieces, failures, find
from broker.store.sqlite.quarantine import resume as resume_one
from broker.store.sqlite.quarantine import skip as skip_one

_COLUMNS = ["conversation_handle", "service_name", "state", "failures", "last_failure_time", "messages_behind", "error"]
_FIELDS = (
    *("conversation_handle", "conversation_id", "service_name", "far_service", "queue_name", "state"),
    *("message_sequence_number", "message_type_name", "body_bytes", "messages_behind", "failures"),
    *("first_failure_time", "last_failure_time", "quarantine_time", "age_s", "error", "traceback"),
)
_EMPTY = "no dialog is in quarantine"
_RESUME = "resume"  # which loses nothing

_CHANGING = (  # of every command that changes something
    *(CONFIG, DATABASE),
    click.Option(("--all", "everything"), is_flag=True, help="Every dialog in quarantine."),
    click.Option(("--dry-run",), is_flag=True, help="Show what would be done, and change nothing."),
    *(YES, OUTPUT, click.Argument(("ids",), metavar="[CONVERSATION]...", nargs=-1)),
)
_NO_TRACEBACK = """\
no traceback is known: only readers (broker run) keep one, not programs that call receive themselves, nor processes
that die. See the log of that program, or let a reader handle the messages"""


@click.group(cls=Group)
def quarantine() -> None:
    """
    List, resume, skip and end dialogs that a failing message stopped.

    Changes are recorded in the audit of the configuration that -c names; without -c, nowhere.

    Examples:
        broker quarantine list -c config/endpoint.toml -d billing
        broker quarantine resume -d billing.db 5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11
    """


@quarantine.command("list")
@click.option(
    "-d",
    "--database",
    help="A database of the configuration, or the path of its file; by default all of the configuration.",
)
@click.option("--dry-run", is_flag=True, expose_value=False, help="No effect: a list changes nothing.")
def list_(config: Config, database: str | None, output: RowsOutput) -> None:
    """
    List the dialogs in quarantine, and those that are tried again.

    Exit codes: 0 also when there is none, 3 no such database.

    Examples:
        broker quarantine list -c config/endpoint.toml
        broker quarantine list -d billing.db -o json
    """
    rows: list[dict[str, Any]] = []
    for name in [database] if database else read_settings(config).databases:
        with open_database(config, name) as db:
            rows += [{"database": name, **_row(failure)} for failure in failures(db)]
    if output.startswith("json"):
        show_rows(rows, output)
        return
    columns = _COLUMNS if database else ["database", *_COLUMNS]
    show_rows([{**row, "error": row["error"].splitlines()[0]} for row in rows], output, columns, empty=_EMPTY)


@quarantine.command()
@click.option(
    "--body", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), help="Write the body to this file."
)
@click.option("--dry-run", is_flag=True, help="The same, and no file is written.")
@click.argument("conversation")
def show(
    config: Config, database: OneDatabase, conversation: str, body: Path | None, output: Output, *, dry_run: bool
) -> None:
    """
    Show a failed message: error, times, size, number of later messages.

    CONVERSATION is its handle or its id. Exit codes: 0 shown, 3 no such database or failure.

    Examples:
        broker quarantine show -d billing.db 5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11
        broker quarantine show -d billing.db --body invoice.xml 5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11
    """
    with open_database(config, database) as db:
        failure = _find(db, conversation)
        if body is not None and not dry_run:
            _write_body(db, failure, body)
            if str(body) == "-":
                return
    row = _row(failure)
    told = {name: "" if value is None else value for name, value in row.items() if name != "traceback"}
    width = max(map(len, told))
    lines = [f"{name:{width}}  {value}" for name, value in told.items()]
    show_lines(row, output, [*lines, "", failure.traceback or _NO_TRACEBACK])


@quarantine.command(params=[*_CHANGING])
def resume(**options: Any) -> None:
    """
    Try again, from the failed message on.

    Use it when the reader is fixed. Exit codes: 0 done, 3 no such database or failure.

    Examples:
        broker quarantine resume -d billing.db 5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11
        broker quarantine resume -c config/endpoint.toml -d billing --all --dry-run
    """
    sentence = "try {message} again, then {later} after it"
    _settle(_RESUME, sentence, lambda db, failure: resume_one(db, failure.endpoint_id), **options)


@quarantine.command(params=[*_CHANGING])
def skip(**options: Any) -> None:
    """
    Drop the failed message, and go on with the next.

    For the far side it has been received. `broker quarantine show --body FILE` keeps it. Exit codes: 0 done, 1 not
    confirmed, 3 no such database or failure.

    Examples:
        broker quarantine skip -d billing.db --dry-run 5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11
        broker quarantine skip -d billing.db --yes 5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11
    """
    _settle("skip", "drop {message}; go on with {later} after it", skip_one, **options)


@quarantine.command(params=[*_CHANGING])
@click.option("--error", type=click.IntRange(1, 2**31 - 1), metavar="CODE", help="End it WITH ERROR, above 0.")
@click.option("--description", default="", show_default=False, help="Text of the error, for the far side.")
@click.option("--cleanup", is_flag=True, help="End it WITH CLEANUP: forget it, without notice to the far side.")
def end(*, error: int | None, description: str, cleanup: bool, **options: Any) -> None:
    """
    End the dialog, with an error or with cleanup.

    Does what END CONVERSATION does. The far side reads the error; of a cleanup it finds out by the lifetime of the
    dialog, or when it sends again. Exit codes: 0 done, 1 not confirmed, 3 no such database or failure.

    Examples:
        broker quarantine end -d billing.db --error 1 --description "no such order" --all --yes
        broker quarantine end -c config/endpoint.toml -d billing --cleanup --all --dry-run
    """
    if cleanup == (error is not None) or (cleanup and description):
        raise click.UsageError("say --error CODE, with a --description, or --cleanup")
    _end(error, description, **options)


@quarantine.command(params=[*_CHANGING], hidden=True, deprecated="Use broker quarantine end with --cleanup.")
def discard(**options: Any) -> None:
    """End the dialog with cleanup, under an earlier name. Exit codes: as end."""
    _end(None, "", **options)


@quarantine.command(
    params=[*_CHANGING], hidden=True, deprecated="Use broker quarantine end with --error CODE --description TEXT."
)
@click.option("--code", type=click.IntRange(1, 2**31 - 1), required=True, help="Code of the error, above 0.")
@click.option("--text", required=True, help="Description of the error, for the far side.")
def answer(*, code: int, text: str, **options: Any) -> None:
    """End the dialog with an error, under an earlier name. Exit codes: as end."""
    _end(code, text, **options)


def _end(error: int | None, description: str, **options: Any) -> None:
    """End it with an error; without one, with cleanup."""
    sentence = "forget the dialog: drop {message} and {later} after it, without notice"
    ending: dict[str, Any] = {"cleanup": True}
    if error is not None:
        sentence = f"end the dialog with error {error}: drop {{message}} and {{later}} after it, notify {{far}}"
        ending = {"error": error, "description": description}
    _settle("end", sentence, lambda db, failure: _dialog(db, failure).end(**ending), **options)


def _dialog(db: sqlite3.Connection, failure: Failure) -> Dialog:
    return get_dialog(db, uuid.UUID(bytes=failure.conversation_handle))


def _settle(
    action: str,
    sentence: str,
    change: Callable[[sqlite3.Connection, Failure], object],
    *,
    config: Path | None,
    database: str,
    ids: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    output: str,
) -> None:
    """Print what is done to each dialog, ask if something is lost, and change all of them or none."""
    if everything == bool(ids):
        raise click.UsageError("name the conversations, or say --all")
    with open_database(config, database) as db:
        if everything:
            chosen = [failure for failure in failures(db) if failure.quarantine_time is not None]
        else:
            chosen = list({found.endpoint_id: found for found in (_find(db, one) for one in ids)}.values())
        plans = [_plan(action, sentence, failure, is_done=not dry_run) for failure in chosen]
        if action != _RESUME and not dry_run and chosen and not yes:
            for plan in plans:
                click.echo(f"{plan['conversation_handle']}: {plan['what']}", err=True)
            confirm(f"{action} {counted(len(chosen), 'dialog')}?")
        if not dry_run and chosen:
            # Without a configuration, nothing is recorded, as for an application.
            entry: AbstractContextManager[AuditEntry | None] = nullcontext()
            if config is not None:
                entry = recording(read_settings(config), f"broker quarantine {action}", database)
            with entry as record:
                db.execute("BEGIN IMMEDIATE")
                with db:
                    for failure in chosen:
                        _check_same(db, failure)
                        change(db, failure)
                    if record is not None:
                        record.seal_done(*(show_guid(one.conversation_handle) for one in chosen))
    would = "would " if dry_run else ""
    lines = [f"{would}{plan['what']}  ({plan['conversation_handle']})" for plan in plans]
    show_lines(plans, output, lines or [_EMPTY])


def _check_same(db: sqlite3.Connection, failure: Failure) -> None:
    """Refuse a failure that changed after it was shown, as by a reader."""
    now = find(db, failure.conversation_handle)
    if now is None or (now.queuing_order, now.failures) != (failure.queuing_order, failure.failures):
        handle = show_guid(failure.conversation_handle)
        raise ConversationError(8426, f"the dialog {handle} has changed since it was read; nothing was done, try again")


def _plan(action: str, sentence: str, failure: Failure, *, is_done: bool) -> dict[str, Any]:
    message = "a message that is gone already"
    if failure.queuing_order is not None:
        kind = f"{failure.message_type_name!r}, {counted(failure.body_bytes, 'byte')}"
        message = f"message {failure.message_sequence_number} ({kind})"
    what = sentence.format(message=message, later=failure.messages_behind, far=failure.far_service)
    return {
        "action": action,
        "is_done": is_done,
        "what": what,
        "conversation_handle": show_guid(failure.conversation_handle),
        "message_sequence_number": failure.message_sequence_number,
        "messages_behind": failure.messages_behind,
    }


def _find(db: sqlite3.Connection, conversation: str) -> Failure:
    try:
        guid = uuid.UUID(conversation)
    except ValueError:
        raise ConversationError(8413, f"{conversation!r} is not a GUID") from None
    failure = find(db, guid.bytes)
    if failure is None:
        problem = f"no reader fails on the conversation {show_guid(guid)}"
        raise ConversationError(8426, f"{problem}; broker quarantine list has the handles of those that do")
    return failure


def _row(failure: Failure) -> dict[str, Any]:
    known = asdict(failure) | {
        "state": "retrying" if failure.quarantine_time is None else "quarantined",
        "age_s": round(max(0.0, time.time() - failure.first_failure_time), 3),
    }
    return {name: _shown(name, known[name]) for name in _FIELDS}


def _shown(name: str, value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, bytes):
        return show_guid(value)
    is_instant = name.endswith("_time") and value is not None
    return datetime.fromtimestamp(value, UTC).isoformat(timespec="milliseconds") if is_instant else value


def _write_body(db: sqlite3.Connection, failure: Failure, file: Path) -> None:
    if failure.queuing_order is None:
        raise ConversationError(8426, "the failed message is gone: its dialog has ended, or it was received")
    target: Any = nullcontext(sys.stdout.buffer) if str(file) == "-" else file.open("wb")
    with target as stream:
        for piece in body_pieces(db, failure.queuing_order):
            stream.write(piece)
        stream.flush()
