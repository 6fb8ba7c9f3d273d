"""The command that asks what a script of routes would do, before anybody carries it out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from broker.admin.client import AdminClient
from broker.admin.explain_message import ExplainAnswer
from broker.admin.following import follow_plan
from broker.admin.through import Directory, ask
from broker.cli.access import admin_client, credentials
from broker.cli.exit_code import HARMFUL, with_exit_code
from broker.cli.neighbour import Where, where_option
from broker.cli.option import config_option, examples, output_option, socket_option
from broker.cli.output import show_json
from broker.cli.script import SCRIPT_SECONDS
from broker.ddl.text import decode_script
from broker.observe.planned import render_plan


@examples("""
broker routes plan new-routes.sql -c config/gateway.toml --through
broker routes plan new.sql -d orders --through && broker sql -d orders < new.sql
""")
@click.command()
@config_option
@socket_option
@click.option("-d", "--database", help="Where the script begins; else the only user database, else msdb.")
@click.option("--through", is_flag=True, help="Follow changed routes over the next instances, and find loops.")
@where_option
@click.option("--accept-harm", is_flag=True, help="Exit with 0 whatever would happen.")
@output_option
@click.argument("script", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@with_exit_code
def plan(
    config: Path | None,
    socket: Path | str | None,
    output: str,
    where: Where,
    script: Path,
    *,
    database: str | None,
    through: bool,
    accept_harm: bool,
) -> NoReturn:
    """
    Show what a script would do to routes and conversations.

    SCRIPT is a file, or - for standard input; the running instance tries it and changes nothing. A gateway answers for
    what passed through it lately. Exit codes: 0 no harm; 1 the script would be refused; 3 it names what does not exist;
    4 daemon unreachable; 6 a conversation that has sent would move, or lose its route or service, or a loop appears.
    """
    if where and not through:
        raise click.UsageError("--admin says where --through asks: add it")
    # Patient: many conversations take a while, and so does a script before this one.
    client = admin_client(config, socket, timeout=SCRIPT_SECONDS)
    source, data = ("<stdin>", sys.stdin.buffer.read()) if str(script) == "-" else (str(script), script.read_bytes())
    text = decode_script(data, source=source)
    request = {"script": text, "database": database, "source": source, "arrivals": through}
    answer = client.request("POST", "/v1/plan", request)
    arrivals, more = answer.pop("arrivals"), answer.pop("more_arrivals")
    answer["followed"] = _followed(client, arrivals, where, is_all=not more) if through else None
    if output == "json":
        show_json(answer)
    else:
        render_plan(answer)
    sys.exit(HARMFUL if _is_harm(answer) and not accept_harm else 0)


def _followed(client: AdminClient, arrivals: list[Any], where: Where, *, is_all: bool) -> dict[str, Any]:
    """What comes of messages behind the instance that plans."""
    told = msgspec.convert(arrivals, list[ExplainAnswer])
    followed = follow_plan(told, lambda request: ask(client, request), Directory(where, credentials=credentials()))
    found: dict[str, Any] = msgspec.to_builtins(followed)
    return found | {"count": len(told), "is_all": is_all}


def _is_harm(answer: dict[str, Any]) -> bool:
    loops = answer["followed"]["loops"] if answer["followed"] else []
    expired = answer["expired"]
    return bool(answer["harmed"]) or bool(expired and expired["harmed"]) or any(not loop["was_there"] for loop in loops)
