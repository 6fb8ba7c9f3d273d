"""The command that asks what a script of routes would do, before it does it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from broker.cli.access import admin_client
from broker.cli.exit_code import HARMFUL, with_exit_code
from broker.cli.neighbour import Where, where_option
from broker.cli.option import config_option, examples, output_option, socket_option
from broker.cli.output import show_json

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from broker.admin.client import AdminClient
    from broker.admin.message import ExplainAnswer


@examples("""
broker routes plan new-routes.sql -c config/gateway.toml
broker routes plan new-routes.sql -d orders --through && broker sql -d orders < new-routes.sql
""")
@click.command()
@config_option
@socket_option
@click.option("-d", "--database", help="Where the script runs; else the only user database, else msdb.")
@click.option("--through", is_flag=True, help="Follow the changed routes over the next instances, and find loops.")
@where_option
@click.option("--accept-harm", is_flag=True, help="Exit with 0 whatever would happen.")
@output_option
@click.argument("script", type=click.File(encoding="utf-8"))
@with_exit_code
def plan(
    config: Path | None,
    socket: Path | None,
    output: str,
    where: Where,
    script: Any,
    *,
    database: str | None,
    through: bool,
    accept_harm: bool,
) -> NoReturn:
    """
    Show what a script would do to routes and to conversations under way.

    SCRIPT is a file, or - for standard input. Nothing is changed. Of a gateway, what passed lately counts as under way. Exit codes: 0 nobody is harmed; 1 the script would be refused; 3 it names what does
    not exist; 4 daemon unreachable; 6 a conversation that has sent would move or lose its route, or a loop appears.
    """
    if where and not through:
        raise click.UsageError("--admin says where --through asks: add it")
    client = admin_client(config, socket)
    request = {"script": script.read(), "database": database, "source": script.name}
    answer = client.request("POST", "/v1/plan", request)
    loops = _loops(client, answer["arrivals"], where) if through else []
    if output == "json":
        show_json(answer | {"loops": loops})
    else:
        from broker.observe.planned import render_plan  # noqa: PLC0415

        render_plan(answer, loops)
    is_harm = answer["harmed"] or any(not loop["was_there"] for loop in loops)
    sys.exit(HARMFUL if is_harm and not accept_harm else 0)


def _loops(client: AdminClient, arrivals: list[Any], where: Where) -> list[dict[str, Any]]:
    """The ways that would lead in a circle, and whether they do so already."""
    import msgspec  # noqa: PLC0415

    from broker.admin.message import ExplainAnswer, ExplainRequest  # noqa: PLC0415
    from broker.admin.through import Directory, End, ask, follow  # noqa: PLC0415

    directory = Directory(where)
    loops = []
    for first in msgspec.convert(arrivals, list[ExplainAnswer]):
        way = follow(first, directory)
        if way.end is End.LOOP:
            request = _request(first, ExplainRequest)
            was_there = follow(ask(client, request), directory).end is End.LOOP
            loops.append({"to_service": first.explanation.to_service, "path": way.sentence, "was_there": was_there})
    return loops


def _request(answer: ExplainAnswer, make: Any) -> Any:
    """The question that an answer was given to."""
    told = answer.explanation
    is_incoming = told.passes[0].is_incoming
    return make(
        to=told.to_service,
        broker_instance=told.to_broker_instance,
        conversation=told.conversation_id,
        database=None if is_incoming else told.passes[0].table,
        incoming=is_incoming,
    )
