"""The command that has an instance leave, and shows how far it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli.access import admin_client
from broker.cli.exit_code import TIMED_OUT, fail, with_exit_code
from broker.cli.option import config_option, examples, output_option, socket_option
from broker.cli.output import show_json
from broker.errors import DaemonUnreachableError

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from broker.admin.client import AdminClient

_UNAVAILABLE = 503
ANSWER_SECONDS = 20.0  # an answer about the next change comes within ten


@examples("""
broker drain -c config/gateway.toml
broker drain --dry-run --socket /run/broker/admin.sock
""")
@click.command()
@config_option
@socket_option
@output_option
@click.option("--dry-run", is_flag=True, help="Only tell what would have to leave.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds to wait for the end; else until it has come.")
@with_exit_code
def drain(config: Path | None, socket: Path | str | None, output: str, timeout: float | None, *, dry_run: bool) -> None:
    """
    Have an instance leave in good order, and follow it until it has gone.

    Peers move to other ways, what is held leaves, databases are handed over, and the process ends. Exit codes: 0
    drained, 4 daemon unreachable, 5 not permitted, 7 something was left behind, or it was still there after --timeout.
    """
    client = admin_client(config, socket, timeout=ANSWER_SECONDS)
    if dry_run:
        _show(client.get("/v1/drain"), output)
        return
    deadline = None if timeout is None else time.monotonic() + timeout
    last = _follow(client, _begin(client), deadline)
    if output == "json":
        show_json(last)
    if last["stage"] != "left" and deadline is not None and time.monotonic() >= deadline:
        fail(f"still there after {timeout:g} s; {last['sentence']}", TIMED_OUT)
    if last["held"] or last["peers"] or last["busy"]:
        fail(f"gone, and something was left behind: {_left(last)}; its senders have it", TIMED_OUT)
    if last["stage"] != "left":  # else it has said so itself
        click.echo("drained", err=True)


def _begin(client: AdminClient) -> dict[str, Any]:
    """The first state of the drain. An instance that is short of something, as of room to write it down, is told."""
    from broker.admin.client import ProblemError  # noqa: PLC0415 - see the docstring of broker.cli.group

    try:
        begun: dict[str, Any] = client.request("POST", "/v1/drain", {})
    except ProblemError as error:
        if error.status != _UNAVAILABLE:
            raise
        fail(f"{error}; SIGTERM drains it all the same: systemctl stop, or kill -TERM its process", 1)
    return begun


def _follow(client: AdminClient, state: dict[str, Any], deadline: float | None) -> dict[str, Any]:
    """Tell every change until the instance has gone, or the time is up; the last that was heard."""
    told = ""
    while True:
        if state["sentence"] != told:
            click.echo(state["sentence"], err=True)
        told = state["sentence"]
        if state["stage"] == "left" or (deadline is not None and time.monotonic() >= deadline):
            return state
        wait = ANSWER_SECONDS if deadline is None else max(0.05, min(ANSWER_SECONDS, deadline - time.monotonic()))
        try:
            state = client.patient(wait).get(f"/v1/drain?since={state['changes']}")
        except DaemonUnreachableError:
            if deadline is None or time.monotonic() < deadline:
                return state


def _show(state: dict[str, Any], output: str) -> None:
    if output == "json":
        show_json(state)
        return
    click.echo(_left(state) if state["held"] or state["peers"] or state["busy"] else "nothing would have to leave")
    for hop, held in state["by_hop"].items():
        click.echo(f"  {held} held for {hop}")
    for name in state["busy"]:
        click.echo(f"  database {name} is busy")


def _left(state: dict[str, Any]) -> str:
    return f"{state['held']} held ({state['unserved']} without a connection), {state['peers']} peers"
