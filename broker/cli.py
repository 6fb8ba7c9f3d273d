"""
The command `broker`.

`serve` runs the daemon in the foreground; the others talk to a running one over its admin socket, or work on a
database file. What a machine reads goes to standard output, everything else to standard error. Whatever is slow to
import is imported by the command that needs it.

Exit codes: 0 success; 1 error; 2 usage; 3 not found; 4 daemon unreachable; 5 not permitted; 6 refused because it would
do harm; 7 timed out; `serve` also 75 (port taken, store locked) and 78 (bad configuration).
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import click

from broker.errors import (
    BrokerError,
    ConversationError,
    DaemonUnreachableError,
    ListenFailedError,
    SettingError,
    SettingsError,
    StatementError,
    StoreUnavailableError,
)

NOT_FOUND, UNREACHABLE, TIMED_OUT, EX_TEMPFAIL, EX_CONFIG = 3, 4, 7, 75, 78
_NOT_FOUND_NUMBERS = frozenset({208, 911, 8426, 15151})
_MESSAGES_HELP = "To the targets, in equal parts on twenty dialogs; as many answers come back."

config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="BROKER_CONFIG",
    show_envvar=True,
    help="Configuration file.",
)
socket_option = click.option(
    "--socket", type=click.Path(path_type=Path), help="Admin socket of the instance; else the configuration's."
)
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)
database_option = click.option(
    "-d", "--database", "database", required=True, help="A database of the configuration, or the path of its file."
)


def _examples(text: str) -> Callable[[click.Command], click.Command]:
    """Two examples at the end of the help."""

    def add(command: click.Command) -> click.Command:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())
        return command

    return add


def _exits(call: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what the package raises into one sentence and the documented exit code."""

    @wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except BrokerError as error:
            _fail(str(error), _exit_code(error))
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader has gone; click ends quietly
            _fail(str(error), 1)

    return wrapper


def _exit_code(error: BrokerError) -> int:
    from broker.admin.client import ProblemError  # noqa: PLC0415 - see the module's docstring

    if isinstance(error, DaemonUnreachableError):
        return UNREACHABLE
    number = getattr(error, "number", 0)
    if isinstance(error, ProblemError):
        number = error.problem.get("number", 0)
    return NOT_FOUND if number in _NOT_FOUND_NUMBERS else 1


def _fail(text: str, code: int) -> NoReturn:
    click.echo(text, err=True)
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="broker", prog_name="broker")
def main() -> None:
    """
    A Service-Broker-style message router and forwarder.

    Exit codes: 0 success, 1 error, 2 usage, 3 not found, 4 daemon unreachable, 5 not permitted, 6 refused because it
    would do harm, 7 timed out; serve also 75 (port taken, store locked) and 78 (bad configuration).
    """


@_examples("""
broker serve -c config/gateway.toml
BROKER_ENDPOINT__MAX_HOPS=4 broker serve -c config/endpoint.toml
""")
@main.command()
@config_option
@_exits
def serve(config: Path | None) -> None:
    """
    Run one instance in the foreground: gateway, endpoint or both.

    SIGTERM ends it. Exit codes: 75 port taken or store locked, 78 bad configuration.
    """
    from broker.daemon import run  # noqa: PLC0415
    from broker.observe.logs import configure_logging  # noqa: PLC0415

    try:
        settings = _settings(config)
        observe = settings.observe
        configure_logging(log_format=observe.log_format, level=observe.log_level, instance=settings.instance.name)
        run(settings)
    except (ListenFailedError, StoreUnavailableError) as error:
        _fail(str(error), EX_TEMPFAIL)
    except (StatementError, SettingError, SettingsError) as error:
        _fail(str(error), EX_CONFIG)


@_examples("""
broker check -c config/gateway.toml
broker check -c config/gateway.toml --offline
""")
@main.command()
@config_option
@click.option("--offline", is_flag=True, help="Touch no port; for a machine that is not the instance's own.")
@output_option
@_exits
def check(config: Path | None, output: str, *, offline: bool) -> None:
    """
    Find everything wrong with a configuration, and what is unwise.

    All of it in one run, with file, line and column. Exit codes: 0 good, 1 something is wrong; warnings do not count.
    """
    from broker.control.check import check_scripts, check_settings  # noqa: PLC0415
    from broker.control.load import load_what_is_good  # noqa: PLC0415

    settings, errors = load_what_is_good(config, environ=os.environ)  # a refused setting has its default
    errors += check_scripts(settings) if errors else check_settings(settings, offline=offline)
    report = [("error", str(error)) for error in errors]
    report += [("warning", f"warning: {warning}") for warning in settings.warnings() if not errors]
    if output == "json":
        _show([{"level": level, "text": text} for level, text in report], output)
    for _, text in report if output == "table" else ():
        click.echo(text, err=True)
    if not errors and output == "table":
        click.echo("the configuration is good")
    sys.exit(1 if errors else 0)


@_examples("""
broker demo
broker demo --messages 20000 --keep
""")
@main.command()
@click.option("--messages", type=click.IntRange(1, 1_000_000), default=6000, show_default=True, help=_MESSAGES_HELP)
@click.option("--keep", is_flag=True, help="Leave the instances running until a key is pressed.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where to keep its files; else a temporary one.")
@_exits
def demo(messages: int, directory: Path | None, *, keep: bool) -> None:
    """
    Play the whole system on loopback, one gateway killed on the way.

    Five instances, each a process of its own. Exit codes: 0 the ledger adds up, 1 not.
    """
    from broker.demo.story import run_demo  # noqa: PLC0415

    if directory is not None and directory.is_dir() and any(directory.iterdir()):
        raise click.UsageError(f"{directory} is not empty: name a new directory")
    sys.exit(run_demo(messages=messages, directory=directory, keep=keep))


@_examples("""
broker send -d orders.db --from //shop/Orders --to //shop/Billing --type //shop/Invoice '{"order": 7}'
tail -f orders.jsonl | broker send -c config/endpoint.toml -d orders --from //shop/Orders --to //shop/Billing --lines
""")
@main.command()
@config_option
@database_option
@click.option("--from", "from_service", required=True, help="A service of the database.")
@click.option("--to", "to_service", required=True, help="The service to talk to.")
@click.option("--contract", default="DEFAULT", show_default=True, help="What the dialog is about.")
@click.option("--type", "message_type", default="DEFAULT", show_default=True, help="What the messages are.")
@click.option("--broker-instance", help="GUID of the one database that shall answer.")
@click.option("--lifetime", type=float, default=604_800.0, show_default=True, help="Of the dialog, in seconds.")
@click.option("--lines", is_flag=True, help="One message a line of standard input, each in its own transaction.")
@click.option("--end", is_flag=True, help="End the conversation behind the last message.")
@output_option
@click.argument("body", required=False)
@_exits
def send(config: Path | None, database: str, body: str | None, *, lines: bool, end: bool, **dialog: Any) -> None:
    """
    Begin a dialog, send, and print the conversation handle.

    The body is the argument, or standard input. Exit codes: 0 committed, for the daemon on the same database to
    deliver; 1 refused, 3 no such database or service.
    """
    import broker  # noqa: PLC0415

    message_type, output = dialog.pop("message_type"), dialog.pop("output")
    if lines and body is not None:
        raise click.UsageError("--lines reads the messages from standard input: leave out BODY")
    with _connect(config, database) as db:
        # Before the transaction: nobody else can write to the file while that is open.
        whole = b"" if lines else sys.stdin.buffer.read() if body is None else os.fsencode(body)
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


@_examples("""
broker receive -d billing.db --queue BillingQueue
broker receive -c config/endpoint.toml -d orders --queue OrdersQueue --wait 30 -o json
""")
@main.command()
@config_option
@database_option
@click.option("--queue", required=True, help="A queue of the database.")
@click.option("--top", type=click.IntRange(1), default=100, show_default=True, help="At most so many messages.")
@click.option(
    "--wait", type=click.FloatRange(0), default=0.0, show_default=True, help="Seconds to wait for the first one."
)
@click.option("--end", is_flag=True, help="End each conversation that is received from.")
@output_option
@_exits
def receive(config: Path | None, database: str, output: str, *, end: bool, **what: Any) -> None:
    """
    Take messages from a queue and print them.

    They are gone from the queue once they are printed; when printing fails they stay. Bytes that are no UTF-8 are shown
    with a backslash. Exit codes: 0 some came, 7 none came, 3 no such database or queue.
    """
    import broker  # noqa: PLC0415

    with _connect(config, database) as db, db:
        messages = broker.receive(db, **what)
        if not messages:
            _fail(f"nothing in {what['queue']}; with --wait SECONDS, wait for it", TIMED_OUT)
        rows = [
            {
                "conversation_handle": str(message.dialog.conversation_handle),
                "message_sequence_number": message.message_sequence_number,
                "service_name": message.service_name,
                "message_type_name": message.type,
                "message_body": message.body.decode("utf-8", "backslashreplace"),
            }
            for message in messages
        ]
        _show(rows, output)
        sys.stdout.flush()
        if end:
            for handle in {message.dialog.conversation_handle: message.dialog for message in messages}.values():
                handle.end()


@_examples("""
broker sql "SELECT name, address FROM msdb.sys.routes"
broker sql --database orders < routes.sql
""")
@main.command()
@config_option
@socket_option
@click.option("-d", "--database", help="Where it runs; else the only user database, else msdb.")
@output_option
@click.argument("statement", required=False)
@_exits
def sql(config: Path | None, socket: Path | None, database: str | None, output: str, statement: str | None) -> None:
    """
    Carry out a statement or script, or a SELECT over the views.

    Without an argument it is read from standard input, or asked for at a prompt. Exit codes: 1 refused, 3 something it
    names does not exist, 4 daemon unreachable.
    """
    client = _client(config, socket)
    if statement is None and sys.stdin.isatty():
        _interactive(client, database, output)
        return
    _answer(client.sql(sys.stdin.read() if statement is None else statement, database), output)


@_examples("""
broker status -c config/gateway.toml
broker status --socket /run/broker/admin.sock -o json
""")
@main.command()
@config_option
@socket_option
@output_option
@_exits
def status(config: Path | None, socket: Path | None, output: str) -> None:
    """
    Show the state of a running instance at a glance.

    Exit codes: 0 it answers, 4 daemon unreachable.
    """
    answer = _client(config, socket).get("/v1/status")
    if output == "json":
        click.echo(json.dumps(answer, indent=2))
    else:
        from broker.observe.glance import render_status  # noqa: PLC0415

        render_status(answer)


# --- what the commands share ------------------------------------------------------------------------------------


def _settings(config: Path | None) -> Any:
    from broker.control.load import load_settings  # noqa: PLC0415

    return load_settings(config, environ=os.environ)


def _client(config: Path | None, socket: Path | None) -> Any:
    from broker.admin.client import AdminClient  # noqa: PLC0415

    return AdminClient(socket if socket is not None else _settings(config).admin.socket)


def _connect(config: Path | None, database: str) -> Any:
    """A connection to a database given by its name in the configuration or by its file."""
    from contextlib import closing  # noqa: PLC0415

    path, hint = Path(database), "give the path of one, or with -c FILE the name of a database of that configuration"
    if config is not None:
        databases = _settings(config).databases
        path = databases[database].path if database in databases else path
        hint = f"the configuration has {sorted(databases)}, and broker serve makes their files"
    if not path.is_file():
        raise ConversationError(911, f"there is no database file {str(path)!r}: {hint}")
    return closing(sqlite3.connect(path))


def _interactive(client: Any, database: str | None, output: str) -> None:
    """Statements typed at a prompt, each ended by a line with GO or by an empty line."""
    click.echo("GO or an empty line ends a statement; exit, or the end of input, leaves", err=True)
    pending: list[str] = []
    while True:
        try:
            line = input("    -> " if pending else "broker> ")
        except EOFError:
            return
        if line.strip().lower() in ("exit", "quit") and not pending:
            return
        if line.strip().upper() not in ("GO", ""):
            pending.append(line)
        elif pending:
            try:
                _answer(client.sql("\n".join(pending), database), output)
            except BrokerError as error:
                click.echo(str(error), err=True)
            pending.clear()


def _answer(answer: Mapping[str, Any], output: str) -> None:
    for message in answer["messages"]:
        click.echo(message, err=True)
    if answer["columns"]:
        _show([dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]], output, answer["columns"])
    if answer.get("truncated"):
        click.echo("there are more rows than one answer holds: ask for fewer with WHERE, or page with OFFSET", err=True)


def _show(rows: list[dict[str, Any]], output: str, columns: list[str] | None = None) -> None:
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    from broker.observe.glance import render_table  # noqa: PLC0415

    render_table(columns or list(rows[0] if rows else ()), rows)
