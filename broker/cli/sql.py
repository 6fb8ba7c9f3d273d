"""
`broker sql`: runs a statement or script, or a SELECT over the views, in a running daemon.

The daemon gets the whole script, and runs all of it or nothing. The progress of a long one, from `/v1/status`, is shown
as a bar on a terminal, and otherwise as a line every ten seconds. When the command is interrupted, the daemon completes
the script.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from broker.admin.client import AdminClient
from broker.cli.access import admin_client
from broker.cli.names import live_names
from broker.cli.options import Command, Config, RowsOutput, Socket
from broker.cli.output import show_answer
from broker.cli.prompt import run_prompt
from broker.ddl.lexer import decode_script
from broker.errors import BrokerError

LONG_CHARACTERS = 1_000_000  # the progress of longer scripts is shown; a shorter one takes a fraction of a second
POLL_SECONDS = 0.25
LINE_SECONDS = 10.0
SCRIPT_SECONDS = 3600.0  # for a script and those before it


@click.command(cls=Command)
@click.option(
    "-d",
    "--database",
    shell_complete=live_names("database"),
    help="The database; by default the only user database, or msdb.",
)
@click.argument("statement", required=False)
def sql(config: Config, socket: Socket, database: str | None, output: RowsOutput, statement: str | None) -> None:
    """
    Run a statement or script, or a SELECT over the views.

    Without an argument it is read from standard input, or at a prompt, which has a history and completes names with
    Tab. Exit codes: 1 refused, 3 something it names does not exist, 4 daemon unreachable, 5 not permitted.

    Examples:
        broker sql "SELECT name, address FROM msdb.sys.routes"
        broker sql --database orders < routes.sql
    """
    client = admin_client(config, socket)
    if statement is None and sys.stdin.isatty():
        run_prompt(client, database, output)
        return
    text = decode_script(sys.stdin.buffer.read()) if statement is None else statement
    is_long = len(text) >= LONG_CHARACTERS
    answer = run_long_script(client, text, database) if is_long else client.sql(text, database)
    show_answer(answer, output)


def run_long_script(client: AdminClient, text: str, database: str | None) -> Any:
    """Run a script and show its progress; raises as `AdminClient.sql`."""
    patient = client.patient(SCRIPT_SECONDS)
    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            answer.set_result(patient.sql(text, database))
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            answer.set_exception(error)

    Thread(target=ask, name="script", daemon=True).start()
    show = _show_bar if sys.stderr.isatty() else _show_lines
    show(_states(client, len(text), answer), len(text))
    return answer.result()


def _states(client: AdminClient, size: int, answer: Future[Any]) -> Iterator[dict[str, Any]]:
    """States of the script until it has ended. It is recognized by its size."""
    while not wait([answer], POLL_SECONDS).done:
        try:
            running = client.get("/v1/status")["running_scripts"]
        except BrokerError:
            continue  # the answer to the script reports the problem
        yield from [script for script in running if script["size"] == size][:1]


def _show_bar(states: Iterator[dict[str, Any]], size: int) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("sending", total=size)
        for state in states:
            progress.update(task, description=_progress(state), completed=state["position"])


def _show_lines(states: Iterator[dict[str, Any]], size: int) -> None:
    for number, state in enumerate(states, 1):
        if number % int(LINE_SECONDS / POLL_SECONDS) == 0:
            click.echo(f"{_progress(state)}, {state['position'] * 100 // size} %", err=True)


def _progress(state: dict[str, Any]) -> str:
    return f"{state['stage']}, {state['statements']:,} statements"
