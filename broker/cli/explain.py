"""`broker explain`: shows where a message would go and why, by one instance, by all on its path, or by files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import click

from broker.admin.client import NO_CREDENTIALS
from broker.admin.trace import Directory, ask, follow
from broker.cli.access import (
    ask_daemon_or_files,
    credentials,
    is_nothing_given,
    nothing_to_read,
    option_of,
    read_settings,
    usual_config,
)
from broker.cli.exit_codes import ExitCode
from broker.cli.names import live_names
from broker.cli.options import Command, Config, Output, Parsed, Socket, Where
from broker.cli.output import TextLine, print_lines, show_json
from broker.client.arguments import CURRENT_DATABASE
from broker.config.settings import Settings
from broker.config.units import counted
from broker.observe.explain import ExplainAnswer, ExplainRequest, answer, configured_place, find_contact
from broker.routing.explain import ClassTried, Explanation, PassShown, Progress, RouteFate, Step


def _broker_instance(text: str) -> UUID | str:
    """A GUID, or CURRENT_DATABASE."""
    return CURRENT_DATABASE if text.upper() == CURRENT_DATABASE else click.UUID(text)


@click.command(cls=Command)
@click.option(
    "--to",
    metavar="SERVICE",
    shell_complete=live_names("far service", "service"),
    help="The service; not needed for a conversation of this instance.",
)
@click.option(
    "--broker-instance",
    type=Parsed("uuid", _broker_instance),
    metavar="GUID",
    help="The only database that may receive it; 'CURRENT DATABASE' is the one where it begins.",
)
@click.option(
    "--conversation",
    type=click.UUID,
    metavar="GUID",
    help="Id of the conversation, or a handle of this instance; random if left out.",
)
@click.option(
    "-d",
    "--database",
    shell_complete=live_names("database"),
    help="Database in which it begins; by default the only user database, or none: it arrives from outside.",
)
@click.option("--incoming", is_flag=True, help="The message arrives from another instance.")
@click.option("--peer", metavar="PRINCIPAL", help="The peer that sends it, as in GRANT: also check its permissions.")
@click.option("--from-target", is_flag=True, help="The message is an answer of the target.")
@click.option("--through", is_flag=True, help="Ask the next instance too, and go on to the last one.")
@click.option("--offline", is_flag=True, help="Ask no daemon: read the configuration, its scripts and its files.")
def explain(config: Config, socket: Socket, output: Output, where: Where, *, through: bool, **how: Any) -> None:
    """
    Show where a message would go, and why.

    Prints every step of the routing decision and why each route was or was not chosen; sends nothing. Asks the running
    instance; when it does not answer, or with --offline, reads the configuration. Exit codes: 0 it would arrive, as far
    as is known; 3 it would not arrive, or no such database, service or conversation; 4 no daemon answers and there is
    no configuration.

    Examples:
        broker explain --to //shop/Billing --database orders --through
        broker explain --to //shop/Billing --incoming -c config/gateway.toml --offline
    """
    is_offline = how.pop("offline")
    directory = Directory(where, credentials=credentials() if through else NO_CREDENTIALS)
    if how["broker_instance"] == CURRENT_DATABASE:
        how |= {"broker_instance": None, "current_database": True}
    if how["to"] is None and how["conversation"] is None:
        raise click.UsageError("name a service with --to, or a conversation of this instance with --conversation")
    if (how["incoming"] or how["peer"] is not None) and how["database"] is not None:
        raise click.UsageError("a message begins in a --database or is --incoming, from a --peer: leave out one")
    if is_offline and (socket is not None or through):
        raise click.UsageError("--offline asks no running instance: leave it out, or --socket and --through")
    if is_offline and is_nothing_given(config, ()):
        raise click.UsageError(nothing_to_read(config))
    if where and not through:
        raise click.UsageError("--admin says where --through asks: add it")
    request = ExplainRequest(**how)
    read = partial(_read_answer, request)
    if is_offline:
        first = read(read_settings(config))
        note = f"read from {usual_config(config) or 'the environment'}; no daemon was asked"
    else:
        first, note = ask_daemon_or_files(
            config, socket, lambda client: directory.learn(client, ask(client, request)), read
        )
    way = follow(first, directory.explain) if through else None
    if output == "json":
        if note:
            click.echo(note, err=True)
        show_json(way or first)
    else:
        for hop in way.hops if way else [first]:
            of_first = (note, option_of(config, None if note else socket)) if hop is first else ()
            print_lines(explanation_lines(hop, *of_first))
            if way:
                print_lines([TextLine("")])
        if way:
            print_lines([TextLine(way.sentence, style="bold")])
    is_good = way.arrives if way else first.explanation.has_way
    sys.exit(0 if is_good else ExitCode.NOT_FOUND)


def _read_answer(request: ExplainRequest, settings: Settings) -> ExplainAnswer:
    """The answer of an instance with these settings."""
    place = configured_place(settings, now=datetime.now(UTC))
    contact = find_contact(place, request) if request.to is None else None
    return answer(place, request, contact)


# --- in a terminal ---

_ITEM, _DETAIL = 2, 6  # columns before a step, and before what belongs to it

_NOTHING_STEP = 7  # the end of the list: a failure

_MARKS = {Progress.SKIPPED: "-", Progress.NOTHING: "·", Progress.MATCHED: "✓", Progress.NOT_REACHED: "-"}


def explanation_lines(answered: ExplainAnswer, note: str = "", option: str = "") -> Iterator[TextLine]:
    """
    The question, the steps, and the answer in the last line.

    Args:
        answered: By an instance.
        note: A remark on the source.
        option: How the instance is named in commands, after a blank.
    """
    explanation = answered.explanation
    yield from _question(answered, note)
    yield from _permissions(explanation)
    for number, one in enumerate(explanation.passes):
        yield TextLine("")
        how = " again, as if it had come from outside:" if number else ", by the routes of"
        yield TextLine(f"Matching{how} {one.table}", style="bold")
        yield from _matching(one)
        yield from _choosing(one)
    yield TextLine("")
    for hint in explanation.hints:
        run = hint.replace("with broker sql", f"at {answered.instance}, with broker sql{option}")
        yield TextLine(f"hint: {run}", style="yellow", is_table=run != hint)
    yield TextLine(explanation.sentence, style="bold")


def _question(answered: ExplainAnswer, note: str) -> Iterator[TextLine]:
    explanation, is_drawn = answered.explanation, answered.is_conversation_drawn
    first = explanation.passes[0]
    begins = "from outside" if first.is_incoming else f"from the database {first.table}"
    answer = ", an answer of the target" if explanation.is_from_target else ""
    yield TextLine(f"{answered.instance}: to {explanation.to_service}, {begins}{answer}", style="bold")
    if note:
        yield TextLine(note, _ITEM)
    instance = explanation.to_broker_instance
    yield TextLine("any broker instance" if instance is None else f"broker instance {instance}", _ITEM)
    remarks = ["drawn"] if is_drawn else []
    if is_drawn or explanation.is_by_conversation:
        remarks.append("others may differ" if explanation.is_by_conversation else "same for others")
    remark = f" ({'; '.join(remarks)})" if remarks else ""
    yield TextLine(f"conversation {explanation.conversation_id}{remark}", _ITEM)


def _permissions(explanation: Explanation) -> Iterator[TextLine]:
    """The permissions of the peer, which are checked before the routes."""
    if not explanation.permissions:
        return
    yield TextLine("")
    yield TextLine(f"Permissions of {explanation.peer}", style="bold")
    for one in explanation.permissions:
        progress = Progress.MATCHED if one.is_permitted else Progress.NOTHING
        yield TextLine(f"{one.permission}: {one.why}", _ITEM, _MARKS[progress], "green" if one.is_permitted else "red")
    if not all(one.is_permitted for one in explanation.permissions):
        yield TextLine("With these permissions, the routes would decide as follows.", _ITEM)


def _matching(one: PassShown) -> Iterator[TextLine]:
    for step in one.steps:
        if step.progress is not Progress.NOT_REACHED:
            text = f"{step.step} {step.title}: {step.why}"
            yield TextLine(text, _ITEM, "!", "red") if step.step == _NOTHING_STEP else _marked(step.progress, text)
            yield from _scores(step)
            yield from _routes(step, _described)
    yield from _not_reached([step for step in one.steps if step.progress is Progress.NOT_REACHED])


def _scores(step: Step) -> Iterator[TextLine]:
    """The draw between broker instances, if there was one."""
    if len(step.scores) < 2:
        return
    yield TextLine("       score  weight  broker instance", _DETAIL, style="dim", is_table=True)
    for one in step.scores:
        mark = _MARKS[Progress.MATCHED if one.is_picked else Progress.NOTHING]
        row = f"{one.score:>10.4g}  {one.weight:>6}  {one.broker_instance}"
        yield TextLine(row, _DETAIL, mark, "green" if one.is_picked else "", is_table=True)


def _routes(part: Step | ClassTried, called: Callable[[RouteFate], str]) -> Iterator[TextLine]:
    for route in part.routes:
        progress = Progress.MATCHED if route.is_taken else Progress.NOTHING
        style = "green" if route.is_taken else ""
        yield TextLine(f"{called(route)}: {route.why}", _DETAIL, _MARKS[progress], style)
    if part.more_routes:
        yield TextLine(f"and {part.more_routes:,} more", _DETAIL)


def _described(route: RouteFate) -> str:
    """A route with its properties."""
    parts = [route.address]
    if route.mirror_address is not None:
        parts.append(f"mirror {route.mirror_address}")
    if route.broker_instance is not None:
        parts.append(f"broker instance {route.broker_instance}")
    if route.weight != 1:
        parts.append(f"weight {route.weight}")
    return f"{_named(route)} ({', '.join(parts)})"


def _named(route: RouteFate) -> str:
    """The name of a route; the implied one has none."""
    return route.name or "the implied route"


def _not_reached(steps: list[Step]) -> Iterator[TextLine]:
    """The steps after the one that ended the search, in one line, with the number of their routes."""
    if not steps:
        return
    numbers = str(steps[0].step) + (f" to {steps[-1].step}" if len(steps) > 1 else "")
    passed = [(step.step, len(step.routes) + step.more_routes) for step in steps if step.routes]
    over = ", ".join(f"{counted(count, 'route')} of step {number}" for number, count in passed)
    before = f", before {over}" if over else ""
    yield _marked(Progress.NOT_REACHED, f"{numbers} not reached: {steps[0].why}{before}")


def _choosing(one: PassShown) -> Iterator[TextLine]:
    if one.classes:
        yield TextLine("Choosing", style="bold")
    for tried in one.classes:
        if tried.progress is not Progress.NOT_REACHED:
            yield _marked(tried.progress, f"{tried.route_class}: {tried.why}")
            yield from _routes(tried, _named)
        elif tried.routes:
            routes = counted(len(tried.routes) + tried.more_routes, "route")
            yield _marked(tried.progress, f"{tried.route_class}: {tried.why} ({routes})")
    if one.candidates:
        yield TextLine("Candidates, best first", style="bold")
    for number, candidate in enumerate(one.candidates, 1):
        problem = f": {candidate.problem}" if candidate.problem else ""
        score = f", score {candidate.score:.4g}" if len(one.candidates) > 1 else ""
        text = f"{number}. {candidate.address}, by route {candidate.route}{score}, {candidate.health}{problem}"
        yield TextLine(text, _ITEM, style="green" if number == 1 else "")
    if one.more_candidates:
        yield TextLine(f"and {one.more_candidates:,} more", _ITEM)


def _marked(progress: Progress, text: str) -> TextLine:
    style = {Progress.MATCHED: "green", Progress.NOTHING: ""}.get(progress, "dim")
    return TextLine(text, _ITEM, _MARKS[progress], style)
