"""
The settings of the journal, and whether a journal can be kept by them.

What writes it needs pyarrow, which is an extra of the installation; nothing here imports it, so that an instance
without a journal neither needs nor loads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from broker.control import value
from broker.control.section import Section
from broker.control.setting import Reload, setting
from broker.control.tracing import tracing_errors
from broker.errors import SettingError

if TYPE_CHECKING:
    from broker.control.config import Settings
    from broker.journal.plan import JournalPlan

LIBRARY = "pyarrow"
_DIRECTORY = ("journal", "directory")


class JournalSettings(Section):
    """`[journal]`: a record of every visit of a message to this instance, in Parquet files."""

    directory: Annotated[Path | None, value.path(may_be_off=True)] = setting(
        "",
        "Directory for the files of the journal, created if missing; needs `pip install broker[journal]`. A relative "
        "path is relative to `instance.state_dir`. A reload takes another directory; to begin or end a journal takes a "
        "restart.",
        reason="Off: what happened to messages is data about those who send them, and takes room.",
        reload=Reload.LIVE,
    )
    sample: Annotated[float, value.fraction()] = setting(
        1.0,
        "Fraction of the dialogs whose messages are recorded, the same dialogs on every instance. Messages that are "
        "dropped, or carry the TRACE flag, are always recorded.",
        reason="A whole journal answers every question, at some 25 bytes of disk for each visit. 0.01 is enough for "
        "the times of routes that carry thousands of messages a second.",
        reload=Reload.LIVE,
    )
    buffer_size: Annotated[int, value.size(4 << 20, 4 << 30)] = setting(
        "32MiB",
        "Memory for records that are not in a file yet. A record that finds no room is shed and "
        "counted; the message goes on.",
        reason="150,000 records: what a busy gateway writes in the tenths of a second that a slow disk takes.",
        reload=Reload.RESTART,
    )
    file_size: Annotated[int, value.size(1 << 20, 4 << 30)] = setting(
        "64MiB",
        "Size at which a file is ended and appears.",
        reason="Small files cost their readers more than their rows do; larger ones are read by one core for long.",
        reload=Reload.LIVE,
    )
    file_age: Annotated[float, value.duration("1s", "1d")] = setting(
        "15m",
        "Time after which a file is ended and appears, however small it is. A crash loses what was recorded since.",
        reason="A hundred files a day and instance are read in seconds; nobody waits longer than this for news.",
        reload=Reload.LIVE,
    )
    keep_age: Annotated[float, value.duration("0s", "3650d")] = setting(
        "30d",
        "Age at which files of this instance are removed; 0s: none is for its age.",
        reason="A month is what capacity and incidents are usually looked at for.",
        reload=Reload.LIVE,
    )
    keep_size: Annotated[int, value.size(0, 1 << 50)] = setting(
        "10GiB",
        "Size of all files of this instance above which the oldest are removed; 0: none is for their size.",
        reason="Some 400 million visits; a journal must not fill the disk that the databases are on.",
        reload=Reload.LIVE,
    )


def journal_plan(settings: Settings) -> JournalPlan | None:
    """
    What the writer is told; None without a journal. The directory is made.

    Raises:
        SettingError: what stands in the way of one.
    """
    journal = settings.journal
    for error in (*journal_errors(settings), *tracing_errors(settings)):
        raise error
    if journal.directory is None:
        return None
    try:
        journal.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(settings, f'"{journal.directory}" cannot be made: {error.strerror}') from error
    from broker.journal.plan import JournalPlan  # noqa: PLC0415 - slow to import: see broker.cli.group

    return JournalPlan(
        directory=journal.directory,
        instance=settings.instance.name,
        sample=journal.sample,
        buffer_bytes=journal.buffer_size,
        file_bytes=journal.file_size,
        file_seconds=journal.file_age,
        keep_bytes=journal.keep_size,
        keep_seconds=journal.keep_age,
    )


def journal_errors(settings: Settings) -> Iterator[SettingError]:
    """What keeps a journal from being written, as far as a look tells."""
    directory = settings.journal.directory
    if directory is None:
        return
    from broker.control.writable import write_problem  # noqa: PLC0415 - slow to import: see broker.cli.group

    if find_spec(LIBRARY) is None:
        hint = "pip install broker[journal], or leave the directory out"
        yield settings.error(_DIRECTORY, f"a journal needs {LIBRARY}, which is not installed", hint)
    problem = write_problem(directory)
    if problem:
        yield _refused(settings, problem)


def _refused(settings: Settings, problem: str) -> SettingError:
    return settings.error(_DIRECTORY, problem, "name a directory that the instance may write")
