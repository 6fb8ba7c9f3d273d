"""The commands that use a database's services from the shell: nothing is lost between its file and the terminal."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from broker.cli.access import open_database
from broker.cli.exit_code import HARMFUL, TIMED_OUT, fail, with_exit_code
from broker.cli.option import config_option, database_option, examples, output_option
from broker.cli.output import show_rows
from broker.store.large import LARGE_BYTES

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from broker import Message


@examples("""
broker send -d orders.db --from //shop/Orders --to //shop/Billing --type //shop/Invoice '{"order": 7}'
tail -f orders.jsonl | broker send -c config/endpoint.toml -d orders --from //shop/Orders --to //shop/Billing --lines
""")
@click.command()
@config_option
@database_option
@click.option("--from", "from_service", required=True, help="A service of the database.")
@click.option("--to", "to_service", required=True, help="The service to talk to.")
@click.option("--contract", default="DEFAULT", show_default=True, help="What the dialog is about.")
@click.option("--type", "message_type", default="DEFAULT", show_default=True, help="What the messages are.")
@click.option("--broker-instance", help="GUID of the one database that shall answer.")
@click.option("--lifetime", type=float, default=604_800.0, show_default=True, help="Of the dialog, in seconds.")
@click.option(
    "--group", "related_conversation_group", metavar="GUID", help="Conversation group of the dialog; may be new."
)
@click.option(
    "--encryption/--no-encryption",
    default=None,
    help="Whether the dialog has to be sealed where it leaves the instance; left out, when the database has a"
    " certificate. A remote service binding seals it in any case.",
)
@click.option(
    "--file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    help="The body is this file, of any length; - is standard input.",
)
@click.option("--lines", is_flag=True, help="One message a line of standard input, each in its own transaction.")
@click.option("--end", is_flag=True, help="End the conversation behind the last message.")
@output_option
@click.argument("body", required=False)
@with_exit_code
def send(
    config: Path | None,
    database: str,
    body: str | None,
    *,
    file: Path | None,
    lines: bool,
    end: bool,
    **dialog: Any,
) -> None:
    """
    Begin a dialog, send, and print the conversation handle.

    The body is the argument, a file, or standard input. Exit codes: 0 committed, for the daemon on the same database
    to deliver; 1 refused, 3 no such database or service.
    """
    import broker  # noqa: PLC0415

    message_type, output = dialog.pop("message_type"), dialog.pop("output")
    if lines and (body is not None or file is not None):
        raise click.UsageError("--lines reads the messages from standard input: leave out BODY and --file")
    if file is not None and body is not None:
        raise click.UsageError("the body is --file or BODY, not both")
    with open_database(config, database) as db, _body(file, body, is_needed=not lines) as whole:
        with db:
            conversation = broker.begin_dialog(db, **dialog)
            if not lines:
                conversation.send(whole, type=message_type)
        handle = {"conversation_handle": str(conversation.conversation_handle)}
        click.echo(json.dumps(handle) if output == "json" else handle["conversation_handle"])
        for line in sys.stdin.buffer if lines else ():
            with db:
                conversation.send(line.rstrip(b"\r\n"), type=message_type)
        if end:
            with db:
                conversation.end()


def _body(file: Path | None, body: str | None, *, is_needed: bool) -> IO[bytes]:
    """
    What is sent, complete before the transaction: nobody else can write to the database while that is open.

    What comes from standard input goes into a file without a name when it is large.
    """
    if body is not None or not is_needed:
        return io.BytesIO(os.fsencode(body or ""))
    if file is not None and str(file) != "-":
        return file.open("rb")
    spool = tempfile.SpooledTemporaryFile(LARGE_BYTES)  # noqa: SIM115 - the caller closes it
    shutil.copyfileobj(sys.stdin.buffer, spool)
    spool.seek(0)
    return spool


@examples("""
broker receive -d billing.db --queue BillingQueue
broker receive -c config/endpoint.toml -d orders --queue OrdersQueue --wait 30 -o json
""")
@click.command()
@config_option
@database_option
@click.option("--queue", required=True, help="A queue of the database.")
@click.option("--top", type=click.IntRange(1), default=100, show_default=True, help="At most so many messages.")
@click.option(
    "--wait", type=click.FloatRange(0), default=0.0, show_default=True, help="Seconds to wait for the first one."
)
@click.option("--conversation", metavar="HANDLE", help="Only messages of this conversation.")
@click.option("--group", "conversation_group", metavar="GUID", help="Only messages of this conversation group.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    help="Directory for the bodies, each as a file HANDLE-NUMBER whose path is printed instead.",
)
@click.option("--end", is_flag=True, help="End each conversation that is received from.")
@output_option
@with_exit_code
def receive(config: Path | None, database: str, output: str, *, save: Path | None, end: bool, **what: Any) -> None:
    """
    Take messages from a queue and print them.

    They are gone from the queue once they are printed; when printing fails they stay. Bytes that are no UTF-8 are shown
    with a backslash. A body above 1 MiB needs --save. Exit codes: 0 some came, 7 none came, 6 a body is too large to
    be printed, 3 no such database or queue.
    """
    import broker  # noqa: PLC0415

    with open_database(config, database) as db, db:
        messages = broker.receive(db, **what, poison=0)  # when it cannot be printed no message is to blame
        if not messages:
            fail(f"nothing in {what['queue']}; with --wait SECONDS, wait for it", TIMED_OUT)
        rows = [
            {
                "conversation_handle": str(message.dialog.conversation_handle),
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
    """The body of a message as text, or the path of the file that has it now."""
    if save is None:
        if message.is_large:
            where = f"message {message.message_sequence_number} of {message.dialog.conversation_handle}"
            fail(
                f"{where} has {message.body_length} bytes: take it with --save DIRECTORY; all stay in the queue",
                HARMFUL,
            )
        return message.body.decode("utf-8", "backslashreplace")
    path = save / f"{message.dialog.conversation_handle}-{message.message_sequence_number}"
    with path.open("wb") as file:
        shutil.copyfileobj(message.open(), file)
        file.flush()
        os.fsync(file.fileno())
    return str(path)
