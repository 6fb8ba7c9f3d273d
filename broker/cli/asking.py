"""The commands that ask a running daemon: statements and views, and its state at a glance."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from broker.cli.access import admin_client
from broker.cli.exit_code import with_exit_code
from broker.cli.live_names import live_names
from broker.cli.option import config_option, examples, socket_option
from broker.cli.output import FORMATS, show_answer
from broker.cli.script import LONG_CHARACTERS, run_long_script
from broker.ddl.text import decode_script


@examples("""
broker sql "SELECT name, address FROM msdb.sys.routes"
broker sql --database orders < routes.sql
""")
@click.command()
@config_option
@socket_option
@click.option(
    "-d",
    "--database",
    shell_complete=live_names("database"),
    help="Where it runs; else the only user database, else msdb.",
)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="How to print.")
@click.argument("statement", required=False)
@with_exit_code
def sql(
    config: Path | None, socket: Path | str | None, database: str | None, output: str, statement: str | None
) -> None:
    """
    Carry out a statement or script, or a SELECT over the views.

    Without an argument it is read from standard input, or asked for at a prompt, which has a history and completes
    names with Tab. Exit codes: 1 refused, 3 something it names does not exist, 4 daemon unreachable, 5 not permitted.
    """
    client = admin_client(config, socket)
    if statement is None and sys.stdin.isatty():
        from broker.cli.prompt import run_prompt  # noqa: PLC0415

        run_prompt(client, database, output)
        return
    text = decode_script(sys.stdin.buffer.read()) if statement is None else statement
    run = client.sql if len(text) < LONG_CHARACTERS else partial(run_long_script, client)
    show_answer(run(text, database), output)


_interval_option = click.option(
    "--interval", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True, help="Seconds between two looks."
)
