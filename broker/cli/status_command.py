"""Part of `broker.cli.asking`."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from broker.admin.client import AdminClient
from broker.cli.access import admin_client
from broker.cli.asking import _interval_option
from broker.cli.exit_code import with_exit_code
from broker.cli.option import config_option, examples, output_option, socket_option
from broker.cli.output import show_json
from broker.errors import DaemonUnreachableError
from broker.observe.glance import render_status
from broker.observe.tables import readable
from broker.observe.terminal import Terminal, encodable


@examples("""
broker status -c config/gateway.toml
broker status --socket /run/broker/admin.sock --watch --interval 10
""")
@click.command()
@config_option
@socket_option
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@_interval_option
@output_option
@with_exit_code
def status(config: Path | None, socket: Path | str | None, interval: float, output: str, *, watch: bool) -> None:
    """
    Show the state of a running instance at a glance.

    With --watch on a terminal it fills the screen; elsewhere each state is printed below the one before, with -o json
    one a line. Exit codes: 0 it answers, 4 daemon unreachable.
    """
    _show(admin_client(config, socket), output, interval if watch else None)


@examples("""
broker top -c config/gateway.toml
broker top --socket /run/broker/admin.sock -o json --interval 10
""")
@click.command()
@config_option
@socket_option
@_interval_option
@click.option("--once", is_flag=True, help="Show it once and end: broker status.")
@output_option
@with_exit_code
def top(config: Path | None, socket: Path | str | None, interval: float, output: str, *, once: bool) -> None:
    """
    Show the state of a running instance again and again.

    The same as broker status --watch. Exit codes: 0 ended, 4 daemon unreachable, 5 not permitted.
    """
    _show(admin_client(config, socket), output, None if once else interval)


def _show(client: AdminClient, output: str, interval: float | None) -> None:
    """The state, once or each so many seconds until Ctrl-C."""
    answer = client.get("/v1/status")
    with contextlib.suppress(KeyboardInterrupt):
        if interval is not None and output == "table" and sys.stdout.isatty():
            _fill_screen(client, answer, interval)
        while True:
            if output == "table":
                render_status(answer)
            elif interval is None:
                show_json(answer)
            else:
                click.echo(json.dumps(answer))
            if interval is None:
                return
            time.sleep(interval)
            answer = client.get("/v1/status")


def _fill_screen(client: AdminClient, answer: Mapping[str, Any], interval: float) -> NoReturn:
    """The newest state on the whole screen; while the instance does not answer, the last one and for how long."""
    console, came_at, problem = Console(highlight=False), time.monotonic(), ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            page = io.StringIO()
            terminal = Terminal(page, width=console.width, is_styled=True)
            if problem:
                terminal.prose(f"NO NEWS for {time.monotonic() - came_at:.0f} s: {problem}", "bold red")
            render_status(answer, terminal)
            live.update(Text.from_ansi(encodable(page.getvalue(), console.encoding)), refresh=True)
            time.sleep(interval)
            try:
                answer, came_at, problem = client.get("/v1/status"), time.monotonic(), ""
            except DaemonUnreachableError as error:
                problem = readable(error.problem)
