"""
The command `broker`.

`serve` runs the daemon in the foreground; the others talk to a running one over its admin socket, or work on a
database file. What a machine reads goes to standard output, everything else to standard error. Whatever is slow to
import is imported by the command that needs it.

Exit codes: 0 success; 1 error; 2 usage; 3 not found; 4 daemon unreachable; 5 not permitted; 6 refused because it would
do harm; 7 timed out; `serve` also 75 (port taken, store locked) and 78 (bad configuration).
"""

from __future__ import annotations

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

config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="BROKER_CONFIG",
    help="Configuration file.",
)
socket_option = click.option(
    "--socket", type=click.Path(path_type=Path), help="Admin socket; else the one of the configuration."
)
output_option = click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
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
    """Run one instance in the foreground: gateway, endpoint or both."""
    settings = _settings(config)
    from broker.daemon import run  # noqa: PLC0415
    from broker.observe.logs import configure_logging  # noqa: PLC0415

    observe = settings.observe
    configure_logging(log_format=observe.log_format, level=observe.log_level, instance=settings.instance.name)
    try:
        run(settings)
    except (ListenFailedError, StoreUnavailableError) as error:
        _fail(str(error), EX_TEMPFAIL)
    except (StatementError, SettingError) as error:
        _fail(str(error), EX_CONFIG)


@_examples("""
broker check -c config/gateway.toml
broker check -c config/gateway.toml --offline
""")
@main.command()
@config_option
@click.option("--offline", is_flag=True, help="Touch no port; for a machine that is not the instance's own.")
@_exits
def check(config: Path | None, *, offline: bool) -> None:
    """Everything wrong with a configuration, in one run, and what is legal but unwise."""
    from broker.control.check import check_settings  # noqa: PLC0415

    settings = _settings(config, exit_code=1)
    errors = check_settings(settings, offline=offline)
    for error in errors:
        click.echo(str(error), err=True)
    for warning in settings.warnings():
        click.echo(f"warning: {warning}", err=True)
    if errors:
        sys.exit(1)
    click.echo("the configuration is good")


@_examples("""
broker demo
broker demo --messages 20000 --keep
""")
@main.command()
@click.option("--messages", type=click.IntRange(1, 1_000_000), default=6000, show_default=True, help="In all.")
@click.option("--keep", is_flag=True, help="Leave the instances running until a key is pressed.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where to keep its files; else a temporary one.")
@_exits
def demo(messages: int, directory: Path | None, *, keep: bool) -> None:
    """The whole system on loopback: dialogs through two gateways, one of which is killed on the way."""
    from broker.demo.story import run_demo  # noqa: PLC0415

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
@click.option("--contract", default="DEFAULT", show_default=True)
@click.option("--type", "message_type", default="DEFAULT", show_default=True)
@click.option("--broker-instance", help="GUID of the one database that shall answer.")
@click.option("--lifetime", type=float, default=604_800.0, show_default=True, help="Seconds.")
@click.option("--lines", is_flag=True, help="One message a line of standard input, each in its own transaction.")
@click.option("--end", is_flag=True, help="End the conversation behind the last message.")
@click.argument("body", required=False)
@_exits
def send(config: Path | None, database: str, body: str | None, *, lines: bool, end: bool, **dialog: Any) -> None:
    """Begin a dialog and send; the body is the argument or standard input. Prints the conversation handle."""
    import broker  # noqa: PLC0415

    message_type = dialog.pop("message_type")
    with _connect(config, database) as db:
        with db:
            conversation = broker.begin_dialog(db, **dialog)
            if not lines:
                conversation.send(sys.stdin.buffer.read() if body is None else body, type=message_type)
        if lines:
            for line in sys.stdin.buffer:
                with db:
                    conversation.send(line.rstrip(b"\r\n"), type=message_type)
        if end:
            with db:
                conversation.end()
    click.echo(str(conversation.conversation_handle))


@_examples("""
broker receive -d billing.db --queue BillingQueue
broker receive -c config/endpoint.toml -d orders --queue OrdersQueue --wait 30 -o json
""")
@main.command()
@config_option
@database_option
@click.option("--queue", required=True)
@click.option("--top", type=click.IntRange(1), default=100, show_default=True, help="At most so many messages.")
@click.option("--wait", type=float, default=0.0, help="Seconds to wait for the first one.")
@click.option("--end", is_flag=True, help="End each conversation that is received from.")
@output_option
@_exits
def receive(config: Path | None, database: str, output: str, *, end: bool, **what: Any) -> None:
    """Take messages from a queue; they are gone from it once they are printed. Exit code 7 when none came."""
    import broker  # noqa: PLC0415

    with _connect(config, database) as db, db:
        messages = broker.receive(db, **what)
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
    if not messages:
        sys.exit(TIMED_OUT)


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
    """A statement or script, or a SELECT over the system views; from standard input without an argument."""
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
    """The state of a running instance at a glance."""
    answer = _client(config, socket).get("/v1/status")
    if output == "json":
        click.echo(json.dumps(answer, indent=2))
    else:
        from broker.observe.glance import render_status  # noqa: PLC0415

        render_status(answer)


# --- what the commands share ------------------------------------------------------------------------------------


def _settings(config: Path | None, *, exit_code: int = EX_CONFIG) -> Any:
    from broker.control.load import load_settings  # noqa: PLC0415

    try:
        return load_settings(config, environ=os.environ)
    except SettingsError as error:
        _fail(str(error), exit_code)


def _client(config: Path | None, socket: Path | None) -> Any:
    from broker.admin.client import AdminClient  # noqa: PLC0415

    return AdminClient(socket if socket is not None else _settings(config).admin.socket)


def _connect(config: Path | None, database: str) -> Any:
    """A connection to a database given by its name in the configuration or by its file."""
    from contextlib import closing  # noqa: PLC0415

    path = Path(database)
    if config is not None:
        databases = _settings(config).databases
        if database not in databases:
            raise ConversationError(911, f"the configuration has no database {database!r}; it has {sorted(databases)}")
        path = databases[database].path
    if not path.exists():
        raise StoreUnavailableError(str(path), "no such file; name a database of the configuration with -c")
    return closing(sqlite3.connect(path))


def _interactive(client: Any, database: str | None, output: str) -> None:
    """Statements typed at a prompt, each ended by a line with GO or by an empty line."""
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


def _show(rows: list[dict[str, Any]], output: str, columns: list[str] | None = None) -> None:
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    from broker.observe.glance import render_table  # noqa: PLC0415

    render_table(columns or list(rows[0] if rows else ()), rows)
