"""The command that asks why: of a running instance, of all on the way, or of the files of a configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from broker.cli.access import (
    URL_VARIABLE,
    admin_client,
    credentials,
    is_nothing_given,
    nothing_to_read,
    read_settings,
    usual_config,
)
from broker.cli.exit_code import NOT_FOUND, with_exit_code
from broker.cli.live_names import live_names
from broker.cli.neighbour import Where, where_option
from broker.cli.option import config_option, examples, output_option, socket_option
from broker.errors import DaemonUnreachableError

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from broker.admin.explain_message import ExplainAnswer, ExplainRequest
    from broker.admin.through import TracedRoute


@examples("""
broker explain --to //shop/Billing --database orders --through
broker explain --to //shop/Billing --incoming -c config/gateway.toml --offline
""")
@click.command()
@click.option(
    "--to",
    metavar="SERVICE",
    shell_complete=live_names("far service", "service"),
    help="The service; may be left out for a conversation that lives here.",
)
@click.option("--broker-instance", type=click.UUID, metavar="GUID", help="The one database that shall get it.")
@click.option(
    "--conversation", type=click.UUID, metavar="GUID", help="Its id, or the handle of one that lives here; else drawn."
)
@click.option(
    "-d",
    "--database",
    shell_complete=live_names("database"),
    help="Where it begins; else the only user database, else it comes from outside.",
)
@click.option("--incoming", is_flag=True, help="It comes from outside.")
@click.option("--peer", metavar="PRINCIPAL", help="Who brings it from outside, as in GRANT: may they?")
@click.option("--from-target", is_flag=True, help="It is an answer of the target.")
@click.option("--through", is_flag=True, help="Ask the next instance too, and go on to the last one.")
@where_option
@config_option
@socket_option
@click.option("--offline", is_flag=True, help="Ask nobody: read the configuration, its scripts and its files.")
@output_option
@with_exit_code
def explain(
    config: Path | None, socket: Path | str | None, output: str, where: Where, *, through: bool, **how: Any
) -> None:
    """
    Show where a message would go, and why.

    Every step of the routing decision with what became of each route; nothing is sent. Asks the running instance; when
    none answers, or with --offline, the configuration is read. Exit codes: 0 it has a way, as far as that is known; 3
    it has none (dropped, delayed, in a loop, or to a service that is not there), or no such database or conversation; 4
    no daemon answers and there is no configuration.
    """
    from broker.admin.explain_message import ExplainRequest  # noqa: PLC0415

    is_offline = how.pop("offline")
    _check_usage(config, socket, where, through=through, is_offline=is_offline, question=how)
    request = ExplainRequest(**how)
    if is_offline:
        told, note = _offline(config, request), f"not asked, but read from {usual_config(config) or 'the environment'}"
    else:
        told, note = _first(config, socket, request)
    if through:
        _show_way(told, where, output, note=note)
    else:
        _show(told, output, note=note)


def _check_usage(
    config: Path | None,
    socket: Path | str | None,
    where: Where,
    *,
    through: bool,
    is_offline: bool,
    question: Mapping[str, Any],
) -> None:
    if question["to"] is None and question["conversation"] is None:
        raise click.UsageError("name a service with --to, or a conversation that lives here with --conversation")
    is_incoming = question["incoming"] or question["peer"] is not None
    if is_incoming and question["database"] is not None:
        raise click.UsageError("a message begins in a --database or is --incoming, from a --peer: leave out one")
    if is_offline and (socket is not None or through):
        raise click.UsageError("--offline asks no running instance: leave it out, or --socket and --through")
    if is_offline and is_nothing_given(config, ()):
        raise click.UsageError(nothing_to_read(config))
    if where and not through:
        raise click.UsageError("--admin says where --through asks: add it")


def _first(config: Path | None, socket: Path | str | None, request: ExplainRequest) -> tuple[ExplainAnswer, str]:
    """The answer of the daemon, else that of the files; and what has to be known of it."""
    from broker.admin.through import ask  # noqa: PLC0415

    is_named = socket is not None or bool(os.environ.get(URL_VARIABLE))
    try:
        return ask(admin_client(config, socket), request), ""
    except DaemonUnreachableError:
        if config is None or is_named:
            raise
        return _offline(config, request), f"no daemon answers, so read from {config}"


def _offline(config: Path | None, request: ExplainRequest) -> ExplainAnswer:
    """The answer of the instance that a configuration describes."""
    from datetime import UTC, datetime  # noqa: PLC0415

    from broker.admin.explaining import answer, configured_place, find_contact  # noqa: PLC0415

    place = configured_place(read_settings(config), now=datetime.now(UTC))
    contact = find_contact(place, request) if request.to is None else None
    return answer(place, request, contact)


def _show(told: ExplainAnswer, output: str, *, note: str) -> NoReturn:
    """Print one answer, and end the program by it."""
    if output == "json":
        _show_json(told, note)
    else:
        _render(told, note)
    sys.exit(0 if told.explanation.has_way else NOT_FOUND)


def _show_way(first: ExplainAnswer, where: Where, output: str, *, note: str) -> NoReturn:
    """Follow the way that the first answer begins, print it, and end the program by it."""
    from broker.admin.through import Directory, follow  # noqa: PLC0415
    from broker.observe.line import TextLine, print_lines  # noqa: PLC0415

    way = follow(first, Directory(where, credentials=credentials()))
    if output == "json":
        _show_json(way, note)
    else:
        for hop in way.hops:
            _render(hop, note if hop is first else "")
            print_lines([TextLine("")])
        print_lines([TextLine(way.sentence, style="bold")])
    sys.exit(0 if way.arrives else NOT_FOUND)


def _render(told: ExplainAnswer, note: str) -> None:
    from broker.observe.explained import render_explanation  # noqa: PLC0415

    is_drawn = told.is_conversation_drawn
    render_explanation(told.explanation, place=told.instance, is_conversation_drawn=is_drawn, note=note)


def _show_json(value: ExplainAnswer | TracedRoute, note: str) -> None:
    import msgspec  # noqa: PLC0415

    if note:
        click.echo(note, err=True)
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))
