"""
`broker journal tail`: shows the newest visits of a journal, which are records of dialog frames at an instance.

Journals are Parquet files, which need pyarrow, an extra.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from broker.advice import to_install
from broker.cli.exit_codes import ExitCode, fail
from broker.cli.options import PATH, Group, Output, copy_command
from broker.cli.output import readable, to_json
from broker.flow import COLUMNS, Form, VisitOutcome
from broker.protocol.layout import show_guid

if TYPE_CHECKING:  # pyarrow is an extra
    from broker.journal.schema import FileState

FOLLOW_SECONDS = 1.0  # between two scans for new files

_JSON: Mapping[Form, Callable[[Any], str]] = {Form.GUID: show_guid, Form.INSTANT: datetime.isoformat}
_SHOWN = {column.name: _JSON[column.form] for column in COLUMNS if column.form in _JSON}


@click.group(cls=Group)
def journal() -> None:
    """
    Show journals: what became of dialog frames.

    Examples:
        broker journal tail /var/lib/broker/journal --outcome dropped
        broker journal tail journal --follow
    """


@journal.command()
@click.argument("directory", type=PATH)
@click.option("-n", "--lines", type=click.IntRange(min=1), default=20, help="Number of visits.")
@click.option("-f", "--follow", is_flag=True, help="Also show files as they appear, until Ctrl-C.")
@click.option("--conversation", type=click.UUID, help="Only visits of the dialog with this conversation_id.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    type=click.Choice([outcome.value for outcome in VisitOutcome]),
    help="Only with this outcome; may be repeated.",
)
def tail(
    directory: Path,
    lines: int,
    conversation: UUID | None,
    outcomes: tuple[str, ...],
    output: Output,
    *,
    follow: bool,
) -> None:
    """
    Show the newest visits of a journal, one a line.

    Instances write files, which appear when they are full or old enough (file_age, 15 minutes), so newer visits are
    missing. JSON is one object a line. Files that cannot be read are listed on standard error. Exit codes: 0 also when
    some files cannot be read, 1 when none of them or the directory can be read, 3 when there is no directory.

    Examples:
        broker journal tail /var/lib/broker/journal --follow --outcome dropped --outcome duplicate
        broker journal tail journal -n 100 --conversation 0a4b1c5e-6d0f-4d5a-9a51-0d6f3c1b2e77 -o json
    """
    if find_spec("pyarrow") is None:
        fail(f"a journal needs pyarrow: {to_install('journal')}", ExitCode.ERROR)
    from broker.journal.reader import NewFiles, Wanted, newest  # noqa: PLC0415 - pyarrow is an extra

    if not directory.is_dir():
        fail(
            f"there is no directory {str(directory)!r}: name that of a journal, [journal] directory", ExitCode.NOT_FOUND
        )
    wanted = Wanted(None if conversation is None else conversation.bytes, frozenset(outcomes))
    arriving = NewFiles(directory)
    found = newest(directory, wanted, lines)
    _show_visits(found.visits, output)
    _report_unread(found.unread)
    if found.unread and not found.read and not follow:
        fail("nothing could be read: none of the files is a usable journal", 1)
    if not found.read and not found.unread:
        when = "an instance completes one after journal.file_age, and when it stops"
        click.echo(f"no finished file of a journal below {str(directory)!r}: {when}", err=True)
    elif conversation is not None and not found.visits:
        hint = "`broker why HANDLE` names that of a conversation_handle"
        click.echo(f"no visit with the conversation_id {show_guid(conversation)}: {hint}", err=True)
    try:
        while follow:
            time.sleep(FOLLOW_SECONDS)
            _show_visits(arriving.poll(wanted), output)
            _report_unread(arriving.unread)
    except KeyboardInterrupt:
        return


flows = copy_command(journal, "flows", new="broker journal")


def _show_visits(visits: Iterable[Mapping[str, Any]], output: str) -> None:
    for visit in visits:
        click.echo(to_json(_plain(visit), indent=None) if output == "json" else _line(visit))


def _plain(visit: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON values: instants in ISO 8601, GUIDs as they are written."""
    return dict(visit) | {name: show(visit[name]) for name, show in _SHOWN.items() if visit[name] is not None}


def _line(visit: Mapping[str, Any]) -> str:
    """One visit as a line for people."""
    entered, left = visit["entered_at"], visit["left_at"]
    outcome = visit["outcome"]
    if visit["reason"] is not None:
        outcome += f" ({visit['reason']}, {visit['code']})" if visit["code"] else f" ({visit['reason']})"
    words = [
        f"{left or entered:%Y-%m-%d %H:%M:%S.%f}",
        visit["instance"],
        outcome,
        visit["kind"],
        show_guid(visit["conversation_id"]),
        f"{visit['sequence_number']}.{visit['fragment_number']}",
        f"{visit['from_service']} -> {visit['to_service']}",
        f"{visit['bytes']} B",
        f"hop {visit['hop_count']}",
    ]
    if left is not None:
        words.append(f"{(left - entered).total_seconds() * 1000:.3f} ms" if left != entered else "at once")
    words += [f"{name} {visit[column]}" for name, column in _WAY.items() if visit[column] is not None]
    return readable("  ".join(words))


_WAY = {"from": "adjacent_in", "route": "route", "to": "adjacent_out"}


def _report_unread(unread: Iterable[FileState]) -> None:
    """Report files that could not be read, except copies, whose visits are not missing."""
    from broker.journal.schema import Fitness  # noqa: PLC0415 - pyarrow is an extra

    for state in unread:
        if state.fitness is not Fitness.COPY:
            click.echo(readable(f"not read: {state.path}: {state.fitness}: {state.problem}"), err=True)
