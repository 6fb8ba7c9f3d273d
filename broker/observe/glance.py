"""Tables and the status page for a terminal; the only place that draws with rich."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.table import Table


def _console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for any table when it is none."""
    return Console(width=None if sys.stdout.isatty() else 250)


def render_table(
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    title: str | None = None,
    console: Console | None = None,
) -> None:
    """Print rows as a table; a missing value is an empty cell, NULL is written out."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")  # a GUID that is cut off cannot be copied
    for row in rows:
        table.add_row(*("NULL" if row.get(column, "") is None else str(row.get(column, "")) for column in columns))
    (console or _console()).print(table)


def render_status(status: Mapping[str, Any]) -> None:
    """Print what `/v1/status` tells: one line of identity, then tables of what there is."""
    console = _console()
    state = "ready" if status["ready"] else "not ready"
    uptime = timedelta(seconds=int(status["uptime_s"]))
    console.print(f"[bold]{status['name']}[/] {state}, up {uptime}, {status['software']} on {status['loop']}")
    console.print(f"listens on {', '.join(status['listen']) or 'nothing'}, broker instance {status['broker_instance']}")
    _render_forwarding(status["forwarding"], console)
    if status["connections"]:
        columns = ["name", "address", "direction", "state"]
        render_table(columns, status["connections"], title="Connections", console=console)
    down = [{"address": address} | facts for address, facts in status["addresses"].items() if facts["problem"]]
    if down:
        render_table(["address", "health", "problem", "held"], down, title="Addresses with a problem", console=console)
    for name, database in status["databases"].items():
        rows = [{"service": service} | counts for service, counts in database["services"].items()]
        problem = f", [red]store: {database['problem']}[/]" if database["problem"] else ""
        title = f"Database {name}: {database['waiting_messages']} messages wait to be acknowledged{problem}"
        render_table(["service", "sent", "resent", "acknowledged", "delivered"], rows, title=title, console=console)
        if database["dropped"]:
            console.print(f"dropped at {name}: {_counts(database['dropped'])}")


def _render_forwarding(forwarding: Mapping[str, Any], console: Console) -> None:
    switch = "on" if forwarding["enabled"] else "off"
    pool = f"{forwarding['held']} held, {forwarding['pool_bytes']} of {forwarding['pool_limit_bytes']} bytes"
    console.print(
        f"forwarding {switch}: {forwarding['forwarded']} forwarded, {forwarding['delivered']} delivered, {pool}"
    )
    if forwarding["dropped"]:
        console.print(f"dropped: {_counts(forwarding['dropped'])}")
    if forwarding["unaccounted"]:
        console.print(f"[red]{forwarding['unaccounted']} frames unaccounted for: please report this")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
