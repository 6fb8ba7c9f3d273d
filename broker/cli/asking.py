"""The commands that ask a running daemon: statements and views, and its state at a glance."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli.access import admin_client
from broker.cli.exit_code import with_exit_code
from broker.cli.option import config_option, examples, output_option, socket_option
from broker.cli.output import show_json, show_rows
from broker.cli.script import LONG_CHARACTERS, run_long_script
from broker.ddl.text import decode_script
from broker.errors import BrokerError

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from broker.admin.client import AdminClient


@examples("""
broker sql "SELECT name, address FROM msdb.sys.routes"
broker sql --database orders < routes.sql
""")
@click.command()
@config_option
@socket_option
@click.option("-d", "--database", help="Where it runs; else the only user database, else msdb.")
@output_option
@click.argument("statement", required=False)
@with_exit_code
def sql(
    config: Path | None, socket: Path | str | None, database: str | None, output: str, statement: str | None
) -> None:
    """
    Carry out a statement or script, or a SELECT over the views.

    Without an argument it is read from standard input, or asked for at a prompt. Exit codes: 1 refused, 3 something it
    names does not exist, 4 daemon unreachable.
    """
    client = admin_client(config, socket)
    if statement is None and sys.stdin.isatty():
        _interactive(client, database, output)
        return
    text = decode_script(sys.stdin.buffer.read()) if statement is None else statement
    run = client.sql if len(text) < LONG_CHARACTERS else partial(run_long_script, client)
    _answer(run(text, database), output)


@examples("""
broker status -c config/gateway.toml
broker status --socket /run/broker/admin.sock -o json
""")
@click.command()
@config_option
@socket_option
@output_option
@with_exit_code
def status(config: Path | None, socket: Path | str | None, output: str) -> None:
    """
    Show the state of a running instance at a glance.

    Exit codes: 0 it answers, 4 daemon unreachable.
    """
    answer = admin_client(config, socket).get("/v1/status")
    if output == "json":
        show_json(answer)
    else:
        from broker.observe.glance import render_status  # noqa: PLC0415

        render_status(answer)


def _interactive(client: AdminClient, database: str | None, output: str) -> None:
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
        show_rows([dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]], output, answer["columns"])
    if answer.get("truncated"):
        click.echo("there are more rows than one answer holds: ask for fewer with WHERE, or page with OFFSET", err=True)
