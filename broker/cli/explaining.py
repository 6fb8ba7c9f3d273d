"""The command that asks why: of a running instance, of all on the way, or of a configuration that nobody runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from broker.cli.access import admin_client, credentials, read_settings
from broker.cli.exit_code import NOT_FOUND, with_exit_code
from broker.cli.neighbour import Where, where_option
from broker.cli.option import examples, output_option

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from broker.admin.message import ExplainAnswer, ExplainRequest
    from broker.admin.through import Way


@examples("""
broker explain --to //shop/Billing --database orders --through
broker explain --to //shop/Billing --incoming -c config/gateway.toml
""")
@click.command()
@click.option("--to", metavar="SERVICE", help="The service; may be left out for a conversation that lives here.")
@click.option("--broker-instance", type=click.UUID, metavar="GUID", help="The one database that shall get it.")
@click.option(
    "--conversation", type=click.UUID, metavar="GUID", help="Its id, or the handle of one that lives here; else drawn."
)
@click.option("-d", "--database", help="Where it begins; else the only user database, else it comes from outside.")
@click.option("--incoming", is_flag=True, help="It comes from outside.")
@click.option("--peer", metavar="PRINCIPAL", help="Who brings it from outside, as in GRANT: may they?")
@click.option("--from-target", is_flag=True, help="It is an answer of the target.")
@click.option("--through", is_flag=True, help="Ask the next instance too, and go on to the last one.")
@where_option
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Offline: ask this configuration and its scripts, no running instance.",
)
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    help="Admin socket of the running instance; else that of the configuration in $BROKER_CONFIG, else the default.",
)
@output_option
@with_exit_code
def explain(
    config: Path | None, socket: Path | str | None, output: str, where: Where, *, through: bool, **question: Any
) -> None:
    """
    Show where a message would go, and why.

    Every step of the routing decision with what became of each route; nothing is sent. Asks the running instance, or
    with -c a configuration. Exit codes: 0 it has a way, as far as that is known; 3 it has none (dropped, delayed, in a
    loop, or to a service that is not there), or no such database or conversation; 4 daemon unreachable.
    """
    from broker.admin.message import ExplainRequest  # noqa: PLC0415

    _check_usage(config, socket, where, through=through, question=question)
    request = ExplainRequest(**question)
    if config is not None:
        _show(_offline(config, request), output, note=f"not asked, but read from {config}")
    elif through:
        _show_way(_live(socket, request), where, output)
    else:
        _show(_live(socket, request), output)


def _check_usage(
    config: Path | None, socket: Path | str | None, where: Where, *, through: bool, question: Mapping[str, Any]
) -> None:
    if question["to"] is None and question["conversation"] is None:
        raise click.UsageError("name a service with --to, or a conversation that lives here with --conversation")
    is_incoming = question["incoming"] or question["peer"] is not None
    if is_incoming and question["database"] is not None:
        raise click.UsageError("a message begins in a --database or is --incoming, from a --peer: leave out one")
    if config is not None and (socket is not None or through):
        raise click.UsageError("-c asks no running instance: leave it out, or --socket and --through")
    if where and not through:
        raise click.UsageError("--admin says where --through asks: add it")


def _offline(config: Path, request: ExplainRequest) -> ExplainAnswer:
    """The answer of the instance that a configuration describes."""
    from broker.admin.explaining import answer, configured_place, find_contact  # noqa: PLC0415

    place = configured_place(read_settings(config), now=datetime.now(UTC))
    contact = find_contact(place, request) if request.to is None else None
    return answer(place, request, contact)


def _live(socket: Path | str | None, request: ExplainRequest) -> ExplainAnswer:
    """The answer of a running instance."""
    from broker.admin.through import ask  # noqa: PLC0415

    named = os.environ.get("BROKER_CONFIG")
    return ask(admin_client(Path(named) if named else None, socket), request)


def _show(told: ExplainAnswer, output: str, *, note: str = "") -> NoReturn:
    """Print one answer, and end the program by it."""
    from broker.admin.through import has_way  # noqa: PLC0415

    if output == "json":
        _show_json(told)
    else:
        _render(told, note)
    sys.exit(0 if has_way(told) else NOT_FOUND)


def _show_way(first: ExplainAnswer, where: Where, output: str) -> NoReturn:
    """Follow the way that the first answer begins, print it, and end the program by it."""
    from broker.admin.through import Directory, follow  # noqa: PLC0415
    from broker.observe.line import Line, print_lines  # noqa: PLC0415

    way = follow(first, Directory(where, credentials=credentials()))
    if output == "json":
        _show_json(way)
    else:
        for hop in way.hops:
            _render(hop, "")
            print_lines([Line("")])
        print_lines([Line(way.sentence, style="bold")])
    sys.exit(0 if way.arrives else NOT_FOUND)


def _render(told: ExplainAnswer, note: str) -> None:
    from broker.observe.explained import render_explanation  # noqa: PLC0415

    is_drawn = told.is_conversation_drawn
    render_explanation(told.explanation, place=told.instance, is_conversation_drawn=is_drawn, note=note)


def _show_json(value: ExplainAnswer | Way) -> None:
    import msgspec  # noqa: PLC0415

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))
