"""`broker reload`: makes a running instance read its configuration again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

import click

from broker.admin.client import AdminClient, ProblemError
from broker.cli.access import admin_client, option_of
from broker.cli.exit_codes import ExitCode, fail
from broker.cli.options import Command, Config, Output, Socket, confirm
from broker.cli.output import show_json, show_lines
from broker.cli.routes import TRANSIT_COUNTED, transit_gap
from broker.config.units import plural
from broker.errors import SCRIPTS_UNSEEN, BrokerError, SettingsError
from broker.routing.plan import UNCHANGED

RELOAD_SECONDS = 180.0  # scripts of a million routes run within a minute
REFUSED_SHOWN = 10  # sentences about peers that would be refused
_IN_NO_SCRIPT = "in no script (removed from one, or made by broker sql); it stays"
_UNCHANGED = "nothing has changed: the configuration before stays in force"
_EFFECTS = {  # as they are, and as they would be
    "live": ("in force", "would be in force"),
    "reconnect": ("for new connections", "would be for new connections"),
    "restart": ("waits for a restart", "would wait for a restart"),
}


@click.command(cls=Command)
@click.option("--dry-run", is_flag=True, help="Check everything, show what would change, and change nothing.")
@click.option("--prune", is_flag=True, help="Drop routes, bindings and permissions that no script names.")
@click.option("--yes", is_flag=True, help="Do not ask before --prune drops something.")
def reload(config: Config, socket: Socket, output: Output, *, dry_run: bool, prune: bool, yes: bool) -> None:
    """
    Reload the configuration of a running instance, as SIGHUP does.

    All changes are made, or none. Scripts only add: what was removed from one stays and is named; --prune shows it,
    asks, and drops it. Exit codes: 0 reloaded, 2 something is wrong with the configuration, 4 daemon unreachable, 5 not
    permitted.

    Examples:
        broker reload --dry-run -o json --socket /run/broker/admin.sock
        broker reload -c config/gateway.toml --prune
    """
    try:
        client = admin_client(config, socket, timeout=RELOAD_SECONDS)
        if prune:
            planned = client.request("POST", "/v1/reload", {"dry_run": True, "prune": True})
            drops, harm = list(_drops(planned)), _harm(client, planned.get("unscripted"))
            is_asked = bool(drops) and not (dry_run or yes)
            lines = [*(["in no script:", *drops] if is_asked else []), *harm]
            if lines:
                click.echo("\n".join(lines), err=True)
            if is_asked:
                confirm("drop them?")
        answer = client.request("POST", "/v1/reload", {"dry_run": dry_run, **({"prune": True} if prune else {})})
    except SettingsError as error:
        fail(f"{error}\n{SCRIPTS_UNSEEN}\n{_UNCHANGED}", ExitCode.USAGE)
    except ProblemError as error:
        if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        if output == "json":
            show_json(error.problem)
        more = error.problem.get("more_errors", 0)
        errors = [str(one["text"]) for one in error.problem["errors"]] + ([f"and {more:,} more"] if more else [])
        fail("\n".join([*errors, _UNCHANGED]), ExitCode.USAGE)
    show_lines(answer, output, _lines(answer, option_of(config, socket), is_pruned=prune))


def _drops(answer: dict[str, Any]) -> Iterator[str]:
    """A line for each statement that drops what no script names."""
    yield from (f"  {statement}" for statement in answer.get("unscripted", []))
    if more := answer.get("unscripted_more", 0):
        yield f"  and {more:,} more"


def _harm(client: AdminClient, drops: Sequence[str] | None) -> Iterator[str]:
    """A line where open dialogs would be routed otherwise without what is dropped, and those of peers it shuts out."""
    if drops:
        try:
            plan = client.request("POST", "/v1/plan", {"script": "\n".join(drops)})
            gap = transit_gap(client, plan)
        except BrokerError as error:
            yield f"how many open dialogs use what is dropped is not known: {error}"
            return
        changed = sum(count for fate, count in plan["fates"].items() if fate not in UNCHANGED)
        if changed:
            use = "dialog uses" if changed == 1 else "dialogs use"
            used = f"{changed:,} open {use} what is dropped"
            if plan.get("passing"):
                used = f"about {used} (of those in transit, {TRANSIT_COUNTED})"
            yield f"{used}; the same statements to broker routes plan show each"
        if gap:
            yield gap if changed else f"no open dialog is known to use what is dropped; {gap}"
        yield from (plan.get("refused") or ())[:REFUSED_SHOWN]


def _lines(answer: dict[str, Any], options: str, *, is_pruned: bool) -> Iterator[str]:
    """A summary, and a line for each change."""
    if sentence := _sentence(answer):  # none when all that changes is what was dropped
        yield sentence
    for one in answer["settings"]:
        place = f"  ({one['place']})" if one["place"] else ""
        yield f"  {one['key']}: {_change(one)}, {_EFFECTS[one['effect']][answer['dry_run']]}{place}"
    yield from (f"  warning: {one}" for one in answer.get("warnings", []))
    for message in answer["messages"]:
        yield f"  {message}"
    if answer.get("unscripted") and (answer["dry_run"] or not is_pruned):
        would = "would be dropped, as no script names it:"
        yield would if is_pruned else f"{_IN_NO_SCRIPT}, and broker reload{options} --prune drops it:"
        yield from _drops(answer)
    if answer.get("kept"):
        yield f"{_IN_NO_SCRIPT}, as conversations or messages would be lost with it:"
        yield from (f"  {statement}" for statement in answer["kept"])
    if answer["connections"]:
        yield f"{plural(answer['connections'], 'connection')} as before; new ones have the new settings"
    if answer["waiting"]:
        yield f"restart the instance for: {', '.join(answer['waiting'])}"


def _sentence(answer: dict[str, Any]) -> str:
    """The summary: how many settings changed, how many wait, and the databases whose scripts ran."""
    waiting = len(answer["waiting"])
    changed = len(answer["settings"]) - waiting
    is_dry_run, would = answer["dry_run"], "would be " if answer["dry_run"] else ""
    done = [] if answer["changed"] else ["nothing would change" if is_dry_run else "nothing changed"]
    if changed:
        done.append(f"{plural(changed, 'setting')} {would}changed")
    if waiting:
        count = str(waiting) if changed else plural(waiting, "setting")
        verb = "would wait" if is_dry_run else "waits" if waiting == 1 else "wait"
        done.append(f"{count} {verb} for a restart")
    if answer["databases"]:
        done.append(f"scripts of {', '.join(answer['databases'])} {would}executed")
    return ", ".join(done)


def _change(one: dict[str, Any]) -> str:
    """Both values; a database that is added or removed has only one."""
    if one["before"] and one["after"]:
        return f"{one['before']} -> {one['after']}"
    return str(one["after"]) or f"{one['before']}, removed"
