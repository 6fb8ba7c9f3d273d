"""The commands about all dialogs of a database together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from broker.cli.access import admin_client, read_settings
from broker.cli.exit_code import with_exit_code
from broker.cli.option import config_option, examples, output_option, socket_option
from broker.cli.output import show_json, show_rows
from broker.errors import ConversationError


@examples("""
broker dialogs census -c config/orders.toml
broker dialogs census -d orders.db -o json
""")
@click.group()
def dialogs() -> None:
    """
    Look at all dialogs of a database together.

    Exit codes: as each of its commands tells.
    """


@examples("""
broker dialogs census -c config/orders.toml
broker dialogs census -d orders.db -o json
""")
@dialogs.command()
@config_option
@socket_option
@click.option("-d", "--database", help="A database of the configuration, or the path of its file; else all of them.")
@output_option
@with_exit_code
def census(config: Path | None, socket: Path | str | None, database: str | None, output: str) -> None:
    """
    Count what lives in a database, and tell what grows.

    Conversations by service, state and age, what waits in queues, tombstones, quarantine, and the bytes of each table.
    Reads the files, whether a daemon runs or not; with --socket the daemon there is asked. Exit codes: 0 counted, 1 a
    file cannot be used, 3 no such database, 4 daemon unreachable.
    """
    told = _of_daemon(config, socket, database) if socket is not None else _of_files(config, database)
    if output == "json":
        show_json(told)
        return
    for number, one in enumerate(told["databases"]):
        if number:
            click.echo()
        _show(one["database"], one["census"], one["meaning"])


def _of_daemon(config: Path | None, socket: Path | str | None, database: str | None) -> Any:
    from urllib.parse import quote  # noqa: PLC0415

    query = "" if database is None else f"?database={quote(database)}"
    return admin_client(config, socket).get(f"/v1/census{query}")


def _of_files(config: Path | None, database: str | None) -> Any:
    import msgspec  # noqa: PLC0415 - see the docstring of broker.cli.group

    from broker.admin.census import census_of  # noqa: PLC0415

    return msgspec.to_builtins(census_of(_paths(config, database), time.time()))


def _paths(config: Path | None, database: str | None) -> Mapping[str, Path]:
    """The files, by name."""
    known = {} if config is None else {name: one.path for name, one in read_settings(config).databases.items()}
    if database is None and config is None:
        raise click.UsageError("name a database with -d FILE, or a configuration with -c FILE")
    paths = known if database is None else {database: known.get(database, Path(database))}
    for name, path in paths.items():
        if not path.is_file():
            hint = "give the path of one, or with -c FILE the name of a database of that configuration"
            raise ConversationError(911, f"there is no database file {str(path)!r} for {name!r}: {hint}")
    return paths


# --- as it is read --------------------------------------------------------------------------------------------------


def _show(database: str, told: Mapping[str, Any], meaning: list[str]) -> None:
    from broker.observe.explained import Line, print_lines  # noqa: PLC0415

    print_lines([Line(f"database {database}, {told['file_bytes']:,} bytes", style="bold")])
    groups = [{**group, "first_lifetime": _instant(group["first_lifetime"])} for group in told["groups"]]
    columns = ["service_name", "state", "age", "conversations", "unread", "unsent", "first_lifetime"]
    show_rows(groups, "table", columns)
    queues = [{**queue, "oldest": _instant(queue["oldest_time"])} for queue in told["queues"]]
    show_rows(queues, "table", ["queue_name", "is_receive_enabled", "ready", "quarantined", "oldest"])
    show_rows(told["tables"], "table", ["table", "rows", "size_bytes"])
    estimated = "estimated" if told["is_estimated"] else "counted"
    print_lines(
        [
            Line(f"sizes are {estimated}; {told['free_bytes']:,} bytes of the file are used by nothing"),
            Line(
                f"{told['sending']:,} messages not acknowledged, {told['tombstones']:,} tombstones of closed sides,"
                f" {told['quarantined_dialogs']:,} dialogs in quarantine"
            ),
            Line(""),
            *(Line(sentence, mark="-") for sentence in meaning),
        ]
    )


def _instant(at: float | None) -> str:
    try:
        return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return "in a far future"
