"""The command that has a running instance read its configuration again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.cli.access import URL_VARIABLE, admin_client, usual_config
from broker.cli.exit_code import UNREACHABLE, fail, with_exit_code
from broker.cli.option import config_option, examples, output_option, socket_option
from broker.cli.output import show_json
from broker.errors import DaemonUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWER_SECONDS = 180.0  # scripts of a million routes are carried out within a minute
USAGE = 2
_UNPROCESSABLE = 422
_EFFECTS = {"live": "in force", "reconnect": "for new connections", "restart": "waits for a restart"}


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
    from broker.admin.client import ProblemError  # noqa: PLC0415 - see the docstring of broker.cli.group

    where, problems = _where(config, socket)
    client = admin_client(config, where, timeout=ANSWER_SECONDS)
    try:
        answer = client.request("POST", "/v1/reload", {"dry_run": dry_run})
    except DaemonUnreachableError as error:
        hint = "if admin.socket is another one now, name the one before with --socket"
        if problems:  # the file may have been cut before it says where the daemon is
            fail("\n".join([*problems, str(error), hint]), USAGE)
        fail(f"{error}; {hint}", UNREACHABLE)
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


def _where(config: Path | None, socket: Path | str | None) -> tuple[Path | str | None, list[str]]:
    """Where the daemon is, as far as a file says so that may be half written; and what is wrong with that file."""
    from broker.control.load import load_what_is_good  # noqa: PLC0415 - as above
    from broker.errors import SettingsError  # noqa: PLC0415

    if socket is not None or URL_VARIABLE in os.environ:
        return socket, []
    try:
        settings, errors = load_what_is_good(usual_config(config), environ=os.environ)
    except SettingsError as error:
        fail(f"{error}\nthe daemon was not asked: name its socket with --socket, that it may tell so too", USAGE)
    return settings.admin.socket, [error.shown for error in errors]


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    """What has changed, a line each; first the sentence that says it all."""
    settings, waiting = answer["settings"], answer["waiting"]
    would = "would be " if answer["dry_run"] else ""
    if answer["changed"]:
        count = len(settings) - len(waiting)
        scripts = f", scripts of {', '.join(answer['databases'])} {would}carried out" if answer["databases"] else ""
        yield f"{count} setting{'' if count == 1 else 's'} {would}changed{scripts}"
    else:
        yield "nothing changed" if not answer["dry_run"] else "nothing would change"
    for one in settings:
        place = f"  ({one['place']})" if one["place"] else ""
        yield f"  {one['key']}: {one['before']} -> {one['after']}, {_EFFECTS[one['effect']]}{place}"
    for message in answer["messages"]:
        yield f"  {message}"
    if answer["connections"]:
        yield f"{answer['connections']} connections go on with what they had; new ones have the new settings"
    if waiting:
        yield f"restart the instance for: {', '.join(waiting)}"
