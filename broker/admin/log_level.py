"""The levels of the log: what differs from the configuration now, and changing them for a time."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from broker.admin.audit import Audit
from broker.admin.caller import Caller
from broker.admin.problem import BadRequestError
from broker.observe.log_level import COMPONENTS, SECONDS_MAX, LogLevels
from broker.observe.logs import LogLevel


class LogLevelRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Another level, for a time."""

    level: Annotated[LogLevel | None, Meta(description="null ends a level that was given before its time is up.")]
    component: Annotated[str, Meta(description='A part of the program, as `component` in its lines; "" for all.')] = ""
    seconds: Annotated[float, Meta(gt=0, le=SECONDS_MAX, description="After which it ends by itself.")] = 900.0


class SpecialLevel(msgspec.Struct, frozen=True):
    """A level that differs from the configuration."""

    component: str
    level: LogLevel
    until: str


class LogLevelAnswer(msgspec.Struct, frozen=True):
    """The levels in force."""

    configured: Annotated[LogLevel, Meta(description="As `observe.log_level` says; holds for all others.")]
    special: list[SpecialLevel]


def log_level_state(levels: LogLevels) -> LogLevelAnswer:
    """The levels in force."""
    special = [
        SpecialLevel(one.component, one.level, datetime.fromtimestamp(one.until, UTC).isoformat(timespec="seconds"))
        for one in levels.special
    ]
    return LogLevelAnswer(levels.base, special)


async def change_log_level(
    levels: LogLevels, audit: Audit, executor: Executor, request: LogLevelRequest, caller: Caller
) -> LogLevelAnswer:
    """
    Change a level.

    Raises:
        BadRequestError: there is no such component.
        AuditUnavailableError: it could not be written down; nothing has changed.
    """
    entry = audit.begin(caller, "POST /v1/log-level")
    if request.component and request.component not in COMPONENTS:
        error = BadRequestError(f"there is no component {request.component!r}; there are: {', '.join(COMPONENTS)}")
        entry.end_badly(error)
        raise error
    what = request.level or "the configured level"
    target = f"{request.component or 'all'}: {what}" + (f" for {request.seconds:g} s" if request.level else "")
    await asyncio.get_running_loop().run_in_executor(executor, entry.seal_done, target)
    levels.change(request.component, request.level, request.seconds)
    return log_level_state(levels)
