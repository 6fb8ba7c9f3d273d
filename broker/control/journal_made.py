"""Part of `broker.control.journal`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.control.journal_check import _refused, journal_errors
from broker.control.tracing_check import tracing_errors

if TYPE_CHECKING:
    from broker.control.config import Settings
    from broker.journal.plan import JournalPlan


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
