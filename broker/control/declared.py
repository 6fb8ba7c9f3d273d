"""
Running a script of the configuration, and telling the log how far it is when it is long.

The statements may be made again at every start: see `broker.control.effect`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from broker.control.catalog import Catalog
from broker.control.execute import execute
from broker.control.progress import Auditing, ScriptProgress
from broker.ddl.parser import read_script
from broker.ddl.text import decode_script
from broker.errors import SettingError

TELL_SECONDS = 5.0  # between two words about a long script

log = structlog.get_logger(__name__)


async def run_declared(catalog: Catalog, path: Path, database: str, seen_by: Auditing | None = None) -> None:
    """
    Carry out a script file, wholly or not at all; `seen_by` records it.

    Raises:
        StatementError, StoreUnavailableError: as `execute`.
        DdlSyntaxError: it is no text.
        SettingError: it cannot be read.
    """
    text = await asyncio.to_thread(_read, path)
    progress = ScriptProgress(str(path), len(text), seen_by=seen_by)
    statements = read_script(text, source=progress.source)
    telling = asyncio.get_running_loop().create_task(_tell(progress), name=f"progress of {path}")
    try:
        await execute(catalog, statements, database=database, is_declared=True, progress=progress)
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


def _read(path: Path) -> str:
    try:
        return decode_script(path.read_bytes(), source=str(path))
    except OSError as error:
        hint = "make it readable for the instance"
        raise SettingError(str(path), f"cannot be read: {error.strerror}", None, hint) from error


async def _tell(progress: ScriptProgress) -> None:
    while True:
        await asyncio.sleep(TELL_SECONDS)
        log.info(
            "script running",
            script=progress.source,
            stage=progress.stage.value,
            statements=progress.statements,
            percent=progress.position * 100 // max(1, progress.size),
        )
