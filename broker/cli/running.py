"""The command that has an instance leave, and shows how far it is."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from broker.admin.client import AdminClient, ProblemError
from broker.cli.access import admin_client
from broker.cli.exit_codes import ExitCode, fail, with_exit_code
from broker.cli.options import config_option, examples, output_option, socket_option
from broker.cli.output import show_json
from broker.errors import DaemonUnreachableError, SettingsError

_UNAVAILABLE = 503
DRAIN_ANSWER_SECONDS = 20.0  # an answer about the next change comes within ten
TOLD_SECONDS = 1.0  # that a process may take to end before a word is said about it


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

    Peers move to other ways, what is held leaves, databases are handed over, and the process ends: asked on its socket,
    this returns when it has. Exit codes: 0 drained, 4 daemon unreachable, 5 not permitted, 7 something was left behind,
    or it was still there after --timeout.
    """
    client = admin_client(config, socket, timeout=DRAIN_ANSWER_SECONDS)
    if dry_run:
        _show(client.get("/v1/drain"), output)
        return
    deadline = None if timeout is None else time.monotonic() + timeout
    with _process(client) as process:
        last = _follow(client, _begin(client), deadline)
        is_over = last["stage"] == "left"
        if process is not None and process.number == last.get("process"):  # an application goes on without it
            is_over = process.has_ended(deadline)
    if output == "json":
        show_json(last)
    if deadline is not None and time.monotonic() >= deadline and not is_over:
        fail(f"still there after {timeout:g} s; {last['sentence']}", ExitCode.TIMED_OUT)
    if last["held"] or last["peers"] or last["busy"]:
        fail(f"gone, and something was left behind: {_left(last)}; its senders have it", ExitCode.TIMED_OUT)
    if last["stage"] != "left":  # else it has said so itself
        click.echo("drained", err=True)


@dataclass(frozen=True, slots=True)
class _Process:
    """The process of an instance. Shape: `number` as this machine counts it; `descriptor` to be watched."""

    number: int
    descriptor: int

    def has_ended(self, deadline: float | None) -> bool:
        """Wait until it has ended, or the time is up."""
        ending = select.poll()
        ending.register(self.descriptor, select.POLLIN)
        if ending.poll(_milliseconds(TOLD_SECONDS, deadline)):
            return True
        click.echo(f"waiting for process {self.number} to end", err=True)
        return bool(ending.poll(_milliseconds(None, deadline)))


def _milliseconds(seconds: float | None, deadline: float | None) -> float | None:
    """So many seconds, None for ever, and no longer than until the deadline."""
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    bounds = [bound for bound in (seconds, left) if bound is not None]
    return 1000 * min(bounds) if bounds else None


@contextmanager
def _process(client: AdminClient) -> Iterator[_Process | None]:
    """The process behind the socket; None behind a port, and where the system lets nobody watch it."""
    number = client.process()
    try:
        descriptor = None if number is None else os.pidfd_open(number)
    except OSError:
        descriptor = None  # one of another container is number 0 here
    if number is None or descriptor is None:
        yield None
        return
    try:
        yield _Process(number, descriptor)
    finally:
        os.close(descriptor)


def _begin(client: AdminClient) -> dict[str, Any]:
    """The first state of the drain. An instance that is short of something, as of room to write it down, is told."""
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
        wait = (
            DRAIN_ANSWER_SECONDS
            if deadline is None
            else max(0.05, min(DRAIN_ANSWER_SECONDS, deadline - time.monotonic()))
        )
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


# --- reload ---
# The command that has a running instance read its configuration again.


RELOAD_SECONDS = 180.0  # scripts of a million routes are carried out within a minute
USAGE = 2
_UNPROCESSABLE = 422
_EFFECTS = {"live": "in force", "reconnect": "for new connections", "restart": "waits for a restart"}
_EFFECTS_IF = {
    "live": "would be in force",
    "reconnect": "would be for new connections",
    "restart": "would wait for a restart",
}


@examples("""
broker reload -c config/gateway.toml
broker reload --dry-run -o json --socket /run/broker/admin.sock
""")
@click.command()
@config_option
@socket_option
@output_option
@click.option("--dry-run", is_flag=True, help="Try everything, tell what would change, and change nothing.")
@with_exit_code
def reload(config: Path | None, socket: Path | str | None, output: str, *, dry_run: bool) -> None:
    """
    Have a running instance read its configuration again, as SIGHUP does.

    All of it holds, or nothing has changed. Exit codes: 0 it holds, 2 something is wrong with the configuration, 4
    daemon unreachable, 5 not permitted.
    """
    try:
        answer = admin_client(config, socket, timeout=RELOAD_SECONDS).request(
            "POST", "/v1/reload", {"dry_run": dry_run}
        )
    except SettingsError as error:
        fail(str(error), USAGE)
    except ProblemError as error:
        if error.status != _UNPROCESSABLE:
            raise
        if output == "json":
            show_json(error.problem)
        more = error.problem.get("more_errors", 0)
        told = [str(one["text"]) for one in error.problem["errors"]] + ([f"and {more:,} more"] if more else [])
        fail("\n".join([*told, "nothing has changed"]), USAGE)
    if output == "json":
        show_json(answer)
        return
    for line in _lines(answer):
        click.echo(line)


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    """What has changed, a line each; first the sentence that says it all."""
    yield _sentence(answer)
    effects = _EFFECTS_IF if answer["dry_run"] else _EFFECTS
    for one in answer["settings"]:
        place = f"  ({one['place']})" if one["place"] else ""
        yield f"  {one['key']}: {_change(one)}, {effects[one['effect']]}{place}"
    yield from (f"  warning: {one}" for one in answer.get("warnings", []))
    for message in answer["messages"]:
        yield f"  {message}"
    if answer["connections"]:
        yield f"{answer['connections']} connections go on with what they had; new ones have the new settings"
    if answer["waiting"]:
        yield f"restart the instance for: {', '.join(answer['waiting'])}"


def _sentence(answer: dict[str, Any]) -> str:
    """How many settings changed and how many wait, which are the lines below, and whose scripts were carried out."""
    waiting = len(answer["waiting"])
    changed = len(answer["settings"]) - waiting
    is_dry_run, would = answer["dry_run"], "would be " if answer["dry_run"] else ""
    done = [] if answer["changed"] else ["nothing would change" if is_dry_run else "nothing changed"]
    if changed:
        done.append(f"{_settings(changed)} {would}changed")
    if waiting:
        who = str(waiting) if changed else _settings(waiting)
        verb = "would wait" if is_dry_run else "waits" if waiting == 1 else "wait"
        done.append(f"{who} {verb} for a restart")
    if answer["databases"]:
        done.append(f"scripts of {', '.join(answer['databases'])} {would}carried out")
    return ", ".join(done)


def _settings(count: int) -> str:
    return f"{count} setting{'' if count == 1 else 's'}"


def _change(one: dict[str, Any]) -> str:
    """Both values; a database comes or goes as a whole, and has none."""
    if one["before"] and one["after"]:
        return f"{one['before']} -> {one['after']}"
    return str(one["after"]) or f"{one['before']} that is there no more"
