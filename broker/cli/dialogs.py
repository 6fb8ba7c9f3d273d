"""The commands about all dialogs of a database together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import msgspec

from broker.admin.census import census_of
from broker.application.crowd import ENDABLE, DialogSelection, EndMode, count, end_crowd
from broker.cli.access import admin_client, open_database, read_settings
from broker.cli.exit_code import with_exit_code
from broker.cli.option import config_option, confirm, database_option, examples, output_option, socket_option
from broker.cli.output import show_json, show_rows
from broker.cli.pipeline import Duration
from broker.conversation.state import ConversationState
from broker.errors import ConversationError
from broker.observe.line import TextLine, print_lines

_STATES = ("SO", "SI", "CO", "DI", "ER", "DO")  # of sides that can end, the last one only with cleanup


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
    Count what lives in a database.

    Conversations by service, state and age, what waits in queues, tombstones, quarantine, the bytes of each table, and
    the ledger: whether anything that was sent is missing. Reads the files, whether a daemon runs or not; with --socket
    the daemon there is asked. Exit codes: 0 counted, 1 a file cannot be used, 3 no such database, 4 daemon unreachable.
    """
    told = _of_daemon(config, socket, database) if socket is not None else _of_files(config, database)
    if output == "json":
        show_json(told)
        return
    for number, one in enumerate(told["databases"]):
        if number:
            click.echo()
        _show(one["database"], one["census"], one.get("ledger"))


@examples("""
broker dialogs end -d orders.db --state DI --older-than 7d --dry-run
broker dialogs end -d orders.db --service //shop/Orders --older-than 30d --error 9001 --description abandoned --yes
""")
@dialogs.command()
@config_option
@database_option
@click.option(
    "--state", "states", multiple=True, type=click.Choice(_STATES), help="Of this side; else any that can end."
)
@click.option("--service", metavar="NAME", help="The service of this side; else any.")
@click.option("--older-than", type=Duration(), required=True, help="How long ago they began at least.")
@click.option("--error", type=click.IntRange(min=1), metavar="CODE", help="End them WITH ERROR.")
@click.option("--description", default="", help="Of the error.")
@click.option("--cleanup", is_flag=True, help="End them WITH CLEANUP: forget them, and tell nobody.")
@click.option("--dry-run", is_flag=True, help="Count them, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@with_exit_code
def end(config: Path | None, database: str, output: str, *, dry_run: bool, yes: bool, **choice: Any) -> None:
    """
    End conversations that nobody ends, all that are alike.

    As the application would, with END CONVERSATION, some hundreds in a transaction; the daemon may run. Messages of
    theirs that wait to be received are lost. Exit codes: 0 done, 1 not confirmed, 3 no such database.
    """
    crowd, farewell = _chosen(**choice)
    ended = 0
    with open_database(config, database) as db:
        db.isolation_level = None
        members = count(db, crowd)
        total = sum(one.conversations for one in members)
        if output == "table":
            columns = ["service_name", "state", "conversations", "unread", "unsent"]
            show_rows([asdict(one) for one in members], "table", columns)
        if total and not dry_run:
            if not yes:
                confirm(f"end {total:,} conversations?")
            for ended in end_crowd(db, crowd, farewell):
                click.echo(f"{ended:,} of {total:,} ended", err=True)
    if output == "json":
        show_json({"chosen": [asdict(one) for one in members], "ended": ended})
    else:
        click.echo(f"{total:,} conversations would end" if dry_run else f"{ended:,} conversations ended")


def _chosen(
    states: tuple[str, ...],
    service: str | None,
    older_than: timedelta,
    error: int | None,
    description: str,
    *,
    cleanup: bool,
) -> tuple[DialogSelection, EndMode]:
    if cleanup and error is not None:
        raise click.UsageError("--cleanup tells nobody, so there is nobody to tell an --error")
    if description and error is None:
        raise click.UsageError("--description is told with an --error only: give its code, or leave it out")
    if "DO" in states and not cleanup:
        raise click.UsageError("what is DO has ended here and waits for the far side: only --cleanup ends it")
    wanted = tuple(map(ConversationState, states)) or (tuple(ConversationState) if cleanup else ENDABLE)
    return DialogSelection(wanted, service, time.time() - older_than.total_seconds()), EndMode(
        error, description, cleanup
    )


def _of_daemon(config: Path | None, socket: Path | str | None, database: str | None) -> Any:
    query = "" if database is None else f"?database={quote(database)}"
    return admin_client(config, socket).get(f"/v1/census{query}")


def _of_files(config: Path | None, database: str | None) -> Any:
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


def _show(database: str, told: Mapping[str, Any], ledger: Mapping[str, Any] | None) -> None:
    print_lines([TextLine(f"database {database}, {told['file_bytes']:,} bytes", style="bold")])
    groups = [{**group, "first_lifetime": _instant(group["first_lifetime"])} for group in told["groups"]]
    columns = ["service_name", "state", "age", "conversations", "unread", "unsent", "first_lifetime"]
    show_rows(groups, "table", columns)
    queues = [{**queue, "oldest": _instant(queue["oldest_time"])} for queue in told["queues"]]
    show_rows(queues, "table", ["queue_name", "is_receive_enabled", "ready", "quarantined", "oldest"])
    show_rows(told["tables"], "table", ["table", "rows", "size_bytes"])
    estimated = "estimated" if told["is_estimated"] else "counted"
    since = _instant(told["sending_since"])
    print_lines(
        [
            TextLine(f"sizes are {estimated}; {told['free_bytes']:,} bytes of the file are used by nothing"),
            TextLine(f"{told['sending']:,} messages not acknowledged{since and f', the oldest since {since}'}"),
            TextLine(
                f"{told['tombstones']:,} tombstones of closed sides, {told['tombstones_due']:,} of them have served"
            ),
            TextLine(f"{told['quarantined_dialogs']:,} dialogs in quarantine, {told['failing_dialogs']:,} tried again"),
            *_ledger_lines(ledger),
        ]
    )


def _ledger_lines(ledger: Mapping[str, Any] | None) -> list[TextLine]:
    """None of a daemon of a version that tells no ledger here."""
    if ledger is None:
        return []
    return [TextLine(f"ledger: {ledger['sentence']}", style="red" if ledger["unaccounted"] else "")]


def _instant(at: float | None) -> str:
    try:
        return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return "in a far future"
