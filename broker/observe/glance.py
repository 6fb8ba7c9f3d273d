"""
Tables and the status page for a terminal.

What is shown comes from peers and applications: it is never taken for markup, and what a terminal would obey (escape
sequences) is written out. A value that somebody may have to copy, such as a GUID, is never cut or broken; a table for
which the terminal is too narrow becomes one block of lines for each row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from broker.observe.ledger import ledger_sentence
from broker.observe.verdict import verdict

NO_TERMINAL_COLUMNS = 250  # of what is piped or redirected
UNBROKEN_COLUMNS = 36  # a GUID, the longest value that has to stay on one line
_LEVEL_STYLES = {"good": "green", "notice": "yellow", "bad": "bold red"}
_FRAME_COLUMNS = 3  # what a table draws around a column


def _console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for any table when it is none."""
    return Console(width=None if sys.stdout.isatty() else NO_TERMINAL_COLUMNS)


def render_table(
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    title: str | None = None,
    console: Console | None = None,
) -> None:
    """Print rows as a table, or as blocks where that is too wide; a missing value is an empty cell, NULL stands out."""
    console = console or _console()
    cells = [[readable(row.get(column, "")) for column in columns] for row in rows]
    widest = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    if sum(min(width, UNBROKEN_COLUMNS) + _FRAME_COLUMNS for width in widest) + 1 > console.width:
        _render_blocks(columns, cells, title, console)
        return
    table = Table(title=title and Text(title), title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _render_blocks(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str | None, console: Console) -> None:
    if title:
        console.print(Text(title, style="bold"))
    names = max(map(cell_len, columns))
    for number, row in enumerate(cells, 1):
        console.print(Text(f"-- {number} of {len(cells)}", style="bold"))
        for column, cell in zip(columns, row, strict=True):
            console.print(Text(f"{column:{names}}  {cell}"), soft_wrap=True)
    if not cells:
        console.print("no rows")


def readable(value: object) -> str:
    """A value as it is shown, with everything a terminal would obey written out."""
    if value is None:
        return "NULL"
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def render_status(status: Mapping[str, Any]) -> None:
    """
    Print what `/v1/status` tells.

    First whether all is well or what to do, in one sentence; then everything that is not as it should be; then who it
    is, and tables of what there is.
    """
    console = _console()
    _render_verdict(status, console)
    _render_identity(status, console)
    _render_forwarding(status["forwarding"], console)
    refused = status.get("transport", {}).get("refused")
    if refused:
        console.print(f"connections refused: {_counts(refused)}")
    if status.get("journal"):
        _render_journal(status["journal"], console)
    if status.get("workers"):
        columns = ["worker", "pid", "ready", "uptime_s", "connections", "held", "restarts", "lost", "problem"]
        render_table(columns, status["workers"], title="Workers", console=console)
    _render_connections(status["connections"], console)
    _render_next_hops(status, console)
    if status.get("mirrored_routes"):
        columns = ["route", "service", "state", "principal", "epoch", "held", "said", "alarm"]
        routes = [one | {"said": _said(one["partners"])} for one in status["mirrored_routes"]]
        render_table(columns, routes, title="Mirrored routes", console=console)
    standings = status.get("mirroring", {}).items()
    mirrored = [{"database": one} | facts for one, facts in standings if facts["source"] != "off"]
    if mirrored:
        columns = ["database", "role", "epoch", "since", "source", "principal", "problem"]
        render_table(columns, mirrored, title="Mirrored databases", console=console)
    for database_name, database in status["databases"].items():
        _render_database(database_name, database, console)


def _render_verdict(status: Mapping[str, Any], console: Console) -> None:
    """The sentence for who has a moment, and a line for each thing that is not as it should be."""
    told = verdict(status)
    console.print(Text(readable(told["sentence"]), style=_LEVEL_STYLES[told["level"]]))
    for finding in told["findings"]:
        do = f" -> {readable(finding['do'])}" if finding["do"] else ""
        line = f"{finding['level']}: {readable(finding['what'])}{do}"
        console.print(Text(line, style=_LEVEL_STYLES[finding["level"]]))
    if told["more"]:
        console.print(f"and {told['more']} more")


def _render_identity(status: Mapping[str, Any], console: Console) -> None:
    state = "draining" if status.get("draining") else "ready" if status["ready"] else "not ready"
    uptime = timedelta(seconds=int(status["uptime_s"]))
    name = escape(readable(status["name"]))
    runs_on = f"{status['software']} on {status['loop']}, {status['kernel']} kernel"
    as_of = datetime.now(UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    console.print(f"[bold]{name}[/] {state}, up {uptime}, {runs_on}, as of {as_of} UTC")
    listen = escape(", ".join(status["listen"])) or "nothing"  # an IPv6 address stands in brackets
    console.print(f"listens on {listen}, broker instance {status['broker_instance']}")


def _render_connections(connections: Sequence[Mapping[str, Any]], console: Console) -> None:
    """With what has really moved on each, and when; columns that say nothing are left out."""
    if not connections:
        return
    now = datetime.now(UTC)
    rows = [{**one, "last progress": _ago(one.get("last_progress"), now)} for one in connections]
    columns = ["name", "address", "direction", "state"]
    more = ("flow", "flow_reason", "last progress", "round_trip_ms", "encryption", "slowed_by")
    columns += [name for name in more if any(one.get(name) for one in rows)]
    render_table(columns, rows, title="Connections", console=console)


def _render_next_hops(status: Mapping[str, Any], console: Console) -> None:
    """What waits for each, why and until when; and those that are not reached though nothing waits for them."""
    waiting = status.get("waiting", ())
    if waiting:
        columns = ["next_hop", "held", "held_bytes", "oldest_s", "why", "next_attempt_s"]
        render_table(columns, waiting, title="What waits for a next hop", console=console)
    told = {one["next_hop"] for one in waiting}
    addresses = status["addresses"].items()
    down = [{"address": one} | facts for one, facts in addresses if facts["problem"] and one not in told]
    if down:
        render_table(["address", "health", "problem", "held"], down, title="Addresses with a problem", console=console)


def _ago(instant: str | None, now: datetime) -> str:
    """How long ago an instant was, by this machine's clock; "" when it is not known."""
    if not instant:
        return ""
    seconds = max(0.0, (now - datetime.fromisoformat(instant)).total_seconds())
    return f"{seconds:.1f} s ago" if seconds < 100 else f"{timedelta(seconds=int(seconds))} ago"


def _render_journal(journal: Mapping[str, Any], console: Console) -> None:
    counts = f"{journal['records']} visits in {journal['files']} files, {journal['pending']} pending"
    shed = f", {journal['shed']} shed" if journal["shed"] else ""
    problem = f", {readable(journal['problem'])}" if journal["problem"] else ""
    console.print(escape(f"journals {counts}{shed} in {readable(journal['directory'])}{problem}"))


def _render_database(name: str, database: Mapping[str, Any], console: Console) -> None:
    rows = [{"service": service} | counts for service, counts in database["services"].items()]
    waiting = database["waiting_messages"]
    count = "an unknown number of" if waiting is None else waiting
    title = f"Database {name}: {count} messages wait to be acknowledged"
    render_table(["service", "sent", "resent", "acknowledged", "delivered"], rows, title=title, console=console)
    ledger = database.get("ledger")
    if ledger is not None:
        style = "red" if ledger["unaccounted"] else ""
        console.print(Text(f"ledger of {readable(name)}: {readable(ledger_sentence(ledger))}", style=style))
    if database["problem"]:
        console.print(Text(f"the store of {name} has failed: {readable(database['problem'])}", style="red"))
    if database["dropped"]:
        console.print(escape(f"dropped at {name}: {_counts(database['dropped'])}"))


def _render_forwarding(forwarding: Mapping[str, Any], console: Console) -> None:
    switch = "on" if forwarding["enabled"] else "off"
    pool = f"{forwarding['held']:,} held, {forwarding['pool_bytes']:,} of {forwarding['pool_limit_bytes']:,} bytes"
    console.print(
        f"forwarding {switch}: {forwarding['forwarded']:,} forwarded, {forwarding['delivered']:,} delivered, {pool}"
    )
    if forwarding["dropped"]:
        console.print(f"dropped: {_counts(forwarding['dropped'])}")


def _said(partners: Mapping[str, Mapping[str, Any]]) -> str:
    """What both partners of a pair said last."""
    return ", ".join(f"{address}: {one['problem'] or one['role'] or 'nothing'}" for address, one in partners.items())


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
