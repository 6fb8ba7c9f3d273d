"""The commands about journals: what instances wrote down of dialog frames."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from broker.cli.exit_code import NOT_FOUND, fail, with_exit_code
from broker.cli.generating import generate
from broker.cli.option import examples, output_option
from broker.cli.output import show_json, show_rows
from broker.flow import COLUMNS, Form, Outcome

if TYPE_CHECKING:  # slow to import: see the docstring of broker.cli.group
    from broker.journal.summary import Summary, Times, Written
    from broker.journal.survey import FileState

FOLLOW_SECONDS = 1.0  # between two looks for new files
TOLD_MAX = 20  # files named in the table; JSON names all
NOTHING_READ = "nothing could be read: none of the files is a journal that can be used"

_GUIDS = tuple(column.name for column in COLUMNS if column.form is Form.GUID)
_INSTANTS = tuple(column.name for column in COLUMNS if column.form is Form.INSTANT)


@contextmanager
def without_numpy() -> Iterator[None]:
    """
    Nobody imports numpy meanwhile, nor what needs it, if neither it nor pyarrow is there yet.

    pyarrow imports numpy as it begins, and pandas when it is given a value of Python, wherever they are installed: two
    thirds of what a command costs that needs neither. Without them it works as where they are not installed.
    """
    if "numpy" in sys.modules or "pyarrow" in sys.modules:
        yield
        return
    sys.modules["numpy"] = None  # type: ignore[assignment]  # so an import raises: the reference of Python, 5.3.1
    try:
        yield
    finally:
        del sys.modules["numpy"]


directory_argument = click.argument("directory", type=click.Path(path_type=Path))


@examples("""
broker flows tail /var/lib/broker/journal --outcome dropped
broker flows stats /var/lib/broker/journal -o json
""")
@click.group()
def flows() -> None:
    """
    Look at journals: what became of dialog frames.

    Exit codes: as each of its commands tells.
    """


flows.add_command(generate)


@examples("""
broker flows tail /var/lib/broker/journal --follow --outcome dropped --outcome duplicate
broker flows tail journal -n 100 --conversation 0a4b1c5e-6d0f-4d5a-9a51-0d6f3c1b2e77 -o json
""")
@flows.command()
@directory_argument
@click.option("-n", "--lines", type=click.IntRange(min=1), default=20, show_default=True, help="How many visits.")
@click.option("-f", "--follow", is_flag=True, help="Go on with files as they appear, until Ctrl-C.")
@click.option("--conversation", type=click.UUID, help="Of this dialog only.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    type=click.Choice([outcome.value for outcome in Outcome]),
    help="Ended so; may be repeated.",
)
@output_option
@with_exit_code
@without_numpy()
def tail(
    directory: Path,
    lines: int,
    conversation: UUID | None,
    outcomes: tuple[str, ...],
    output: str,
    *,
    follow: bool,
) -> None:
    """
    Show the newest visits of a journal, one a line.

    Instances write files, which appear when they are full or old enough (file_age, 15 minutes): what is newer is in
    none yet. JSON is one object a line. Files that cannot be read are told on standard error. Exit codes: 0 also when
    some files cannot be read, 1 the directory or none of its files can be read, 3 there is none.
    """
    from broker.journal.newest import Arriving, Wanted, newest  # noqa: PLC0415 - see the docstring of broker.cli.group

    _see(directory)
    wanted = Wanted(None if conversation is None else conversation.bytes, frozenset(outcomes))
    arriving = Arriving(directory)
    found = newest(directory, wanted, lines)
    _show_visits(found.visits, output)
    _complain(found.unread)
    if found.unread and not found.read and not follow:
        fail(NOTHING_READ, 1)
    try:
        while follow:
            time.sleep(FOLLOW_SECONDS)
            _show_visits(arriving.look(wanted), output)
            _complain(arriving.unread)
    except KeyboardInterrupt:
        return


@examples("""
broker flows stats /var/lib/broker/journal
broker flows stats journal -o json
""")
@flows.command()
@directory_argument
@output_option
@with_exit_code
@without_numpy()
def stats(directory: Path, output: str) -> None:
    """
    Tell what a journal holds, and what of it cannot be read.

    Files, rows, instances, times, how much was sampled and shed, and what became of the frames. A file that is damaged,
    foreign, vanished meanwhile, or a copy of another one counts nowhere else and is named. Exit codes: 0 also when some
    files cannot be read, 1 the directory or none of its files can be read, 3 there is none.
    """
    from broker.journal.summary import summarize  # noqa: PLC0415 - see the docstring of broker.cli.group

    _see(directory)
    summary = summarize(directory)
    if output == "json":
        show_json(_told(summary))
    else:
        _show_summary(summary)
    if summary.troubled and not summary.instances:
        fail(NOTHING_READ, 1)


def _see(directory: Path) -> None:
    if not directory.is_dir():
        fail(f"there is no directory {str(directory)!r}: name that of a journal, [journal] directory", NOT_FOUND)


# --- visits ---


def _show_visits(visits: Iterable[Mapping[str, Any]], output: str) -> None:
    for visit in visits:
        click.echo(json.dumps(_plain(visit)) if output == "json" else _line(visit))


def _plain(visit: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON values: instants in ISO 8601, GUIDs as they are written."""
    plain = dict(visit)
    for name in _INSTANTS:
        plain[name] = None if visit[name] is None else visit[name].isoformat()
    for name in _GUIDS:
        plain[name] = None if visit[name] is None else str(UUID(bytes=visit[name]))
    return plain


def _line(visit: Mapping[str, Any]) -> str:
    """One visit as it is read; a conversation is written so that it can be copied."""
    from broker.observe.glance import readable  # noqa: PLC0415 - see the docstring of broker.cli.group

    entered, left = visit["entered_at"], visit["left_at"]
    outcome = visit["outcome"]
    if visit["reason"] is not None:
        outcome += f" ({visit['reason']}, {visit['code']})" if visit["code"] else f" ({visit['reason']})"
    words = [
        f"{left or entered:%Y-%m-%d %H:%M:%S.%f}",
        visit["instance"],
        outcome,
        visit["kind"],
        str(UUID(bytes=visit["conversation_id"])),
        f"{visit['sequence_number']}.{visit['fragment_number']}",
        f"{visit['from_service']} -> {visit['to_service']}",
        f"{visit['bytes']} B",
        f"hop {visit['hop_count']}",
    ]
    if left is not None:
        words.append(f"{(left - entered).total_seconds() * 1000:.3f} ms")
    words += [f"{name} {visit[column]}" for name, column in _WAY.items() if visit[column] is not None]
    return readable("  ".join(words))


_WAY = {"from": "adjacent_in", "route": "route", "to": "adjacent_out"}


def _complain(unread: Iterable[FileState]) -> None:
    """Of a copy nothing is missing; everything else is told."""
    from broker.journal.survey import Fitness  # noqa: PLC0415 - see the docstring of broker.cli.group
    from broker.observe.glance import readable  # noqa: PLC0415 - likewise

    for state in unread:
        if state.fitness is not Fitness.COPY:
            click.echo(readable(f"not read: {state.path}: {state.fitness}: {state.problem}"), err=True)


# --- what there is ---


def _told(summary: Summary) -> dict[str, Any]:
    """As JSON values."""
    return {
        "files": {fitness.value: count for fitness, count in sorted(summary.files.items())},
        **_written(summary.total),
        "versions": {str(version): count for version, count in sorted(summary.versions.items())},
        "untimed_files": summary.untimed,
        "instances": [{"instance": name, **_written(one)} for name, one in sorted(summary.instances.items())],
        "outcomes": _outcomes(summary),
        "troubled": [
            {"path": str(one.path), "fitness": one.fitness.value, "problem": one.problem} for one in summary.troubled
        ],
    }


def _written(one: Written) -> dict[str, Any]:
    first, last = _instants(one.times)
    return {
        "rows": one.rows,
        "bytes": one.bytes,
        "shed": one.shed,
        "samples": sorted(one.samples),
        "first_at": first,
        "last_at": last,
    }


def _outcomes(summary: Summary) -> list[dict[str, Any]]:
    """The commonest first."""
    counts = sorted(summary.outcomes.items(), key=lambda one: (-one[1], one[0][0], one[0][1] or ""))
    return [{"outcome": outcome, "reason": reason, "rows": rows} for (outcome, reason), rows in counts]


def _instants(times: Times | None) -> tuple[str | None, str | None]:
    if times is None:
        return None, None
    first, last = (datetime.fromtimestamp(instant / 1_000_000, UTC).isoformat() for instant in times)
    return first, last


def _show_summary(summary: Summary) -> None:
    from broker.observe.glance import readable  # noqa: PLC0415 - see the docstring of broker.cli.group

    total = summary.total
    counts = ", ".join(f"{count:,} {fitness.value}" for fitness, count in sorted(summary.files.items()))
    click.echo(f"files: {counts or 'none'}")
    versions = ", ".join(f"{count:,} of version {version}" for version, count in sorted(summary.versions.items()))
    first, last = _instants(total.times)
    click.echo(f"read: {total.rows:,} rows, {total.bytes:,} bytes, {versions or 'no files'}")
    if first is not None:
        click.echo(f"from {first} to {last}")
    if summary.untimed:
        click.echo(f"{summary.untimed:,} files do not tell when all of their rows were")
    if total.shed:
        click.echo(f"shed: {total.shed:,} records were lost for want of room")
    if summary.instances:
        rows = [{"instance": name, "files": one.files, **_written(one)} for name, one in summary.instances.items()]
        for row in rows:
            row["samples"] = ", ".join(f"{sample:g}" for sample in row["samples"])
        show_rows(rows, "table")
        outcomes = [{**one, "reason": one["reason"] or ""} for one in _outcomes(summary)]
        show_rows(outcomes, "table", ["outcome", "reason", "rows"])
    for one in summary.troubled[:TOLD_MAX]:
        click.echo(readable(f"{one.fitness.value}: {one.path}: {one.problem}"))
    if len(summary.troubled) > TOLD_MAX:
        click.echo(f"and {len(summary.troubled) - TOLD_MAX:,} more: -o json names all")
