"""
Carrying out a long script, and showing how far it is: a bar on a terminal, else a line each ten seconds.

The daemon gets the script whole, so that it is carried out wholly or not at all, and tells in `/v1/status` how far it
is with it. Whoever interrupts the command leaves the script to the daemon.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from broker.errors import BrokerError

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from concurrent.futures import Future

    from broker.admin.client import AdminClient

LONG_CHARACTERS = 1_000_000  # a script of this size is shown; a shorter one takes a fraction of a second
POLL_SECONDS = 0.25
LINE_SECONDS = 10.0
SCRIPT_SECONDS = 3600.0  # for a script and those before it


def run_long_script(client: AdminClient, text: str, database: str | None) -> Any:
    """
    The answer of the daemon.

    Raises:
        DaemonUnreachableError, ProblemError: as `AdminClient.sql`.
    """
    from concurrent.futures import Future  # noqa: PLC0415 - see the docstring of broker.cli.group
    from threading import Thread  # noqa: PLC0415

    patient = client.patient(SCRIPT_SECONDS)
    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            answer.set_result(patient.sql(text, database))
        except BaseException as error:  # noqa: BLE001 - told where the answer is wanted
            answer.set_exception(error)

    Thread(target=ask, name="script", daemon=True).start()
    show = _show_bar if sys.stderr.isatty() else _show_lines
    show(_states(client, len(text), answer), len(text))
    return answer.result()


def _states(client: AdminClient, size: int, answer: Future[Any]) -> Iterator[dict[str, Any]]:
    """How far the script is, again and again until it is answered. Its size tells it from others."""
    from concurrent.futures import wait  # noqa: PLC0415

    while not wait([answer], POLL_SECONDS).done:
        try:
            running = client.get("/v1/status")["running_scripts"]
        except BrokerError:
            continue  # the answer itself will say what is wrong
        yield from [script for script in running if script["size"] == size][:1]


def _show_bar(states: Iterator[dict[str, Any]], size: int) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("sending", total=size)
        for state in states:
            progress.update(task, description=_words(state), completed=state["position"])


def _show_lines(states: Iterator[dict[str, Any]], size: int) -> None:
    for number, state in enumerate(states, 1):
        if number % int(LINE_SECONDS / POLL_SECONDS) == 0:
            click.echo(f"{_words(state)}, {state['position'] * 100 // size} %", err=True)


def _words(state: dict[str, Any]) -> str:
    return f"{state['stage']}, {state['statements']:,} statements"
