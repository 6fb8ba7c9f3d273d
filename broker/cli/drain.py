"""`broker drain`: drains an instance, and waits until its process has ended."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import click

from broker.admin.client import AdminClient, ProblemError
from broker.cli.access import admin_client
from broker.cli.exit_codes import ExitCode, fail
from broker.cli.options import Command, Config, Output, Socket
from broker.cli.output import show_json, show_lines
from broker.config.units import plural
from broker.errors import DaemonUnreachableError

ANSWER_SECONDS = 20.0  # the daemon answers within ten
QUIET_SECONDS = 1.0  # for a process to end before that is reported


@click.command(cls=Command)
@click.option("--dry-run", is_flag=True, help="Only show what would have to be sent or handed over.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds to wait for the end; without limit if left out.")
def drain(config: Config, socket: Socket, output: Output, timeout: float | None, *, dry_run: bool) -> None:
    """
    Drain an instance, and wait until it has ended.

    Peers change to other routes, held frames are forwarded, databases are handed over, and the process ends; asked on
    its socket, the command returns after that. Exit codes: 0 drained, 4 daemon unreachable, 5 not permitted, 7
    something was not sent or handed over, or the instance still runs after --timeout.

    Examples:
        broker drain -c config/gateway.toml
        broker drain --dry-run --socket /run/broker/admin.sock
    """
    client = admin_client(config, socket, timeout=ANSWER_SECONDS)
    if dry_run:
        state = client.get("/v1/drain")
        show_lines(state, output, _lines(state))
        return
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    with _watched_process(client) as (process, descriptor):
        last = _follow(client, _begin(client), deadline)
        is_over = last["stage"] == "left"
        if process is not None and process == last.get("process"):  # the process of an application goes on
            is_over = _has_ended(process, descriptor, deadline)
    if output == "json":
        show_json(last)
    if time.monotonic() >= deadline and not is_over:
        fail(f"still there after {timeout:g} s; {last['sentence']}", ExitCode.TIMED_OUT)
    # One that ended between two questions has waited for its peers and databases.
    if _is_left(last) and (last["held"] or last["stage"] == "left"):
        fail(f"the instance ended with {_remainder(last)}; the senders still have these frames", ExitCode.TIMED_OUT)
    if last["stage"] != "left":  # otherwise the last sentence said so
        click.echo("drained", err=True)


@contextmanager
def _watched_process(client: AdminClient) -> Iterator[tuple[int | None, int]]:
    """Id and descriptor of the process at the socket; None for a port, or a process of another container."""
    number, descriptor = client.process(), -1
    try:
        descriptor = -1 if number is None else os.pidfd_open(number)
    except OSError:
        number = None  # one of another container is number 0 here
    try:
        yield number, descriptor
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _has_ended(number: int, descriptor: int, deadline: float) -> bool:
    """Wait until a process has ended, or the time is up."""
    ending = select.poll()
    ending.register(descriptor, select.POLLIN)
    if ending.poll(1000 * max(0.0, min(QUIET_SECONDS, deadline - time.monotonic()))):
        return True
    click.echo(f"waiting for process {number} to end", err=True)
    return bool(ending.poll(None if deadline == math.inf else 1000 * max(0.0, deadline - time.monotonic())))


def _begin(client: AdminClient) -> dict[str, Any]:
    """Begin the drain and return its first state; an instance that cannot write its audit refuses."""
    try:
        begun: dict[str, Any] = client.request("POST", "/v1/drain", {})
    except ProblemError as error:
        if error.status != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        hint = "drain it by SIGTERM instead: systemctl stop, or kill -TERM its process"
        fail(f"{error}; {hint}", ExitCode.ERROR)
    return begun


def _follow(client: AdminClient, state: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Report every change until the instance has ended, or the time is up; return its last known state."""
    reported = ""
    while True:
        if state["sentence"] != reported:
            click.echo(state["sentence"], err=True)
        reported = state["sentence"]
        if state["stage"] == "left" or time.monotonic() >= deadline:
            return state
        wait = max(0.05, min(ANSWER_SECONDS, deadline - time.monotonic()))
        try:
            state = client.patient(wait).get(f"/v1/drain?since={state['changes']}")
        except DaemonUnreachableError:
            if time.monotonic() < deadline:  # it has ended
                return state


def _lines(state: dict[str, Any]) -> Iterator[str]:
    yield _remainder(state) if _is_left(state) else "nothing would have to leave"
    yield from (f"  {held} held for {hop}" for hop, held in state["by_hop"].items())
    yield from (f"  database {name} is busy" for name in state["busy"])


def _is_left(state: dict[str, Any]) -> bool:
    return bool(state["held"] or state["peers"] or state["busy"])


def _remainder(state: dict[str, Any]) -> str:
    return f"{state['held']} held ({state['unserved']} without a connection), {plural(state['peers'], 'peer')}"
