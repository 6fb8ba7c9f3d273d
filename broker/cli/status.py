"""
`broker status` and `broker top`: show the health and the state of an instance, once or refreshed.

Texts of peers and applications are printed as they are, with control characters escaped.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from broker.admin.client import AdminClient
from broker.cli.access import Asked, admin_client, with_config, with_sql_at
from broker.cli.options import Command, Config, Output, Socket
from broker.cli.output import Terminal, encodable, readable, remedy_lines, show_json
from broker.errors import DaemonUnreachableError
from broker.observe.status import HealthReport, LedgerStatus

UNTRIED_SHOWN = 10  # next hops that were not dialled yet, by name
_NOT_NAMED = Asked()
_LEVEL_STYLES = {"good": "green", "notice": "yellow", "bad": "bold red"}
_interval_option = click.option(
    "--interval", type=click.FloatRange(0.5, 3600), default=2.0, help="Seconds between two polls."
)


@click.command(cls=Command)
@click.option("--watch", is_flag=True, help="Refresh it until Ctrl-C.")
@_interval_option
def status(config: Config, socket: Socket, interval: float, output: Output, *, watch: bool) -> None:
    """
    Show the state of a running instance at a glance.

    With --watch on a terminal it fills the screen; elsewhere each state is printed below the one before, and with -o
    json one a line. Exit codes: 0 it answers, 4 daemon unreachable.

    Examples:
        broker status -c config/gateway.toml
        broker status --socket /run/broker/admin.sock --watch --interval 10
    """
    _show(config, socket, output, interval if watch else None)


@click.command(cls=Command)
@_interval_option
@click.option("--once", is_flag=True, help="Show it once and end: broker status.")
def top(config: Config, socket: Socket, interval: float, output: Output, *, once: bool) -> None:
    """
    Show the state of a running instance, refreshed.

    The same as broker status --watch. Exit codes: 0 ended, 4 daemon unreachable, 5 not permitted.

    Examples:
        broker top -c config/gateway.toml
        broker top --socket /run/broker/admin.sock -o json --interval 10
    """
    _show(config, socket, output, None if once else interval)


def _show(config: Path | None, socket: Path | str | None, output: str, interval: float | None) -> None:
    """Print the state, once or at an interval until Ctrl-C."""
    client, render = admin_client(config, socket), partial(render_status, asked=Asked(config, socket))
    answer = client.get("/v1/status")
    with contextlib.suppress(KeyboardInterrupt):
        if interval is not None and output == "table" and sys.stdout.isatty():
            _fill_screen(client, answer, interval, render)
        while True:
            if output == "table":
                render(answer)
            else:
                show_json(answer, indent=2 if interval is None else None)
            if interval is None:
                return
            time.sleep(interval)
            answer = client.get("/v1/status")


def _fill_screen(client: AdminClient, answer: Mapping[str, Any], interval: float, render: partial[None]) -> NoReturn:
    """Fill the screen with the newest state; while the instance does not answer, with the last one and its age."""
    console, came_at, problem = Console(highlight=False), time.monotonic(), ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            page = io.StringIO()
            terminal = Terminal(page, width=console.width, is_styled=True)
            if problem:
                terminal.prose(f"NO NEWS for {time.monotonic() - came_at:.0f} s: {problem}", "bold red")
            render(answer, terminal)
            live.update(Text.from_ansi(encodable(page.getvalue(), console.encoding)), refresh=True)
            time.sleep(interval)
            try:
                answer, came_at, problem = client.get("/v1/status"), time.monotonic(), ""
            except DaemonUnreachableError as error:
                problem = readable(error.problem)


def render_status(status: Mapping[str, Any], terminal: Terminal | None = None, asked: Asked = _NOT_NAMED) -> None:
    """
    Print an answer of `/v1/status`.

    It begins with a sentence on whether all is well, and with everything that is not; the identity of the instance and
    the tables follow.

    Args:
        status: The answer.
        terminal: Where it is printed; None is standard output.
        asked: The configuration, socket or port that was named, which commands name too.
    """
    terminal = terminal or Terminal()
    _render_verdict(status, terminal, asked)
    _render_identity(status, terminal)
    _render_forwarding(status["forwarding"], terminal)
    refused = status.get("transport", {}).get("refused")
    if refused:
        terminal.prose(f"connections refused: {_counts(refused)}")
    if status.get("journal"):
        _render_journal(status["journal"], terminal)
    _render_connections(status["connections"], terminal)
    _render_next_hops(status, terminal)
    if status.get("mirrored_routes"):
        columns = ["route", "service", "state", "principal", "epoch", "held", "said", "alarm"]
        routes = [one | {"said": _partner_states(one["partners"])} for one in status["mirrored_routes"]]
        terminal.table(columns, routes, "Mirrored routes")
    standings = status.get("mirroring", {}).items()
    mirrored = [{"database": one} | facts for one, facts in standings if facts["source"] != "off"]
    if mirrored:
        columns = ["database", "role", "epoch", "since", "source", "principal", "problem"]
        terminal.table(columns, mirrored, "Mirrored databases")
    for database_name, database in status["databases"].items():
        _render_database(database_name, database, terminal)


def _render_verdict(status: Mapping[str, Any], terminal: Terminal, asked: Asked) -> None:
    """One sentence on the whole, and a line for each finding."""
    if not status.get("verdict"):
        return  # an earlier release
    report = msgspec.convert(status["verdict"], HealthReport)
    terminal.prose(readable(report.sentence), _LEVEL_STYLES[report.level])
    for finding in report.findings:
        style = _LEVEL_STYLES[finding.level]
        if finding.what not in report.sentence:
            terminal.prose(readable(f"{finding.level}: {finding.what}"), style)
        do = with_config(finding.do, *asked)
        for name in {"this instance", status["name"]}:
            do = with_sql_at(name, do, *asked)
        if do:
            terminal.lines(remedy_lines(do, style=style))
    if report.more:
        terminal.prose(f"and {report.more} more")


def _render_identity(status: Mapping[str, Any], terminal: Terminal) -> None:
    state = "draining" if status.get("draining") else "ready" if status["ready"] else "not ready"
    uptime = timedelta(seconds=int(status["uptime_s"]))
    up = (
        f"up {uptime}" if uptime >= timedelta() else "up since later than now (the clock of this machine has gone back)"
    )
    name = readable(status["name"])
    runs_on = f"{status['software']} on {status['loop']}, {status['kernel']} kernel"
    as_of = datetime.now(UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    terminal.prose(f"{name} {state}, {up}, {runs_on}, as of {as_of} UTC")
    listen = ", ".join(status["listen"]) or "nothing"
    terminal.prose(f"listens on {listen}, broker instance of msdb {status['broker_instance']}")


def _render_connections(connections: Sequence[Mapping[str, Any]], terminal: Terminal) -> None:
    """A table with the progress of each; columns without a value are left out."""
    if not connections:
        return
    now = datetime.now(UTC)
    rows = [{**one, "last progress": _ago(one.get("last_progress"), now)} for one in connections]
    columns = ["name", "address", "direction", "state"]
    more = ("flow", "flow_reason", "last progress", "round_trip_ms", "encryption", "slowed_by")
    columns += [name for name in more if any(one.get(name) for one in rows)]
    terminal.table(columns, rows, "Connections")


def _render_next_hops(status: Mapping[str, Any], terminal: Terminal) -> None:
    """Tables of held frames, and of addresses with a problem; and the addresses that were not dialled yet."""
    waiting = status.get("waiting", ())
    if waiting:
        columns = ["next_hop", "held", "held_bytes", "oldest_s", "why", "next_attempt_s"]
        terminal.table(columns, waiting, "Waiting for a next hop")
    shown_hops = {one["next_hop"] for one in waiting}
    addresses = status["addresses"].items()
    down = [{"address": one} | facts for one, facts in addresses if facts["problem"] and one not in shown_hops]
    if down:
        terminal.table(["address", "health", "problem", "held"], down, "Addresses with a problem")
    untried = [
        one for one, facts in addresses if facts["health"] == "untried" and not (facts["problem"] or facts["held"])
    ]
    if untried:
        more = f" and {len(untried) - UNTRIED_SHOWN} more" if len(untried) > UNTRIED_SHOWN else ""
        shown = ", ".join(map(readable, untried[:UNTRIED_SHOWN]))
        terminal.prose(f"not dialled yet, so it is not known whether they can be reached: {shown}{more}")


def _ago(instant: str | None, now: datetime) -> str:
    """The time since an instant, by this machine's clock; "" when it is not known."""
    if not instant:
        return ""
    seconds = max(0.0, (now - datetime.fromisoformat(instant)).total_seconds())
    return f"{seconds:.1f} s ago" if seconds < 100 else f"{timedelta(seconds=int(seconds))} ago"


def _render_journal(journal: Mapping[str, Any], terminal: Terminal) -> None:
    counts = f"{journal['records']} visits in {journal['files']} files, {journal['pending']} pending"
    shed = f", {journal['shed']} shed" if journal["shed"] else ""
    problem = f", {readable(journal['problem'])}" if journal["problem"] else ""
    terminal.prose(f"journals {counts}{shed} in {readable(journal['directory'])}{problem}")


def _render_database(name: str, database: Mapping[str, Any], terminal: Terminal) -> None:
    rows = [{"service": service} | counts for service, counts in database["services"].items()]
    waiting = database["waiting_messages"]
    count = "an unknown number of" if waiting is None else waiting
    instance = f" (broker instance {database['broker_instance']})" if database.get("broker_instance") else ""
    title = f"Database {name}{instance}: {count} message{' waits' if waiting == 1 else 's wait'} to be acknowledged"
    terminal.table(["service", "sent", "resent", "acknowledged", "delivered"], rows, title)
    ledger = database.get("ledger")
    if ledger is not None:
        style = "red" if ledger["unaccounted"] else ""
        sentence = msgspec.convert(ledger, LedgerStatus).sentence
        terminal.prose(f"ledger of {readable(name)}: {readable(sentence)}", style)
    if database["problem"]:
        terminal.prose(f"the store of {readable(name)} has failed: {readable(database['problem'])}", "red")
    if database["dropped"]:
        terminal.prose(f"dropped at {readable(name)}: {_counts(database['dropped'])}")


def _render_forwarding(forwarding: Mapping[str, Any], terminal: Terminal) -> None:
    switch = "is on" if forwarding["enabled"] else "is off: only messages of databases here are sent"
    pool = f"{forwarding['held']:,} held, {forwarding['pool_bytes']:,} of {forwarding['pool_limit_bytes']:,} bytes"
    counts = f"{forwarding['forwarded']:,} frames sent on, {forwarding['delivered']:,} delivered here"
    terminal.prose(f"forwarding {switch}; since the start {counts}; {pool}")
    if forwarding["dropped"]:
        terminal.prose(f"dropped: {_counts(forwarding['dropped'])}")


def _partner_states(partners: Mapping[str, Mapping[str, Any]]) -> str:
    """The last state of both partners of a pair."""
    return ", ".join(f"{address}: {one['problem'] or one['role'] or 'nothing'}" for address, one in partners.items())


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
