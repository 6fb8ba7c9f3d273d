"""
Log lines: one JSON object a line on standard error, or a readable form for a terminal.

Code anywhere says `log = structlog.get_logger()` and `log.info("link closed", peer=...)`: a fixed phrase and fields.
What the standard library's logging says (asyncio, aiohttp) takes the same way out. A call below the level costs a
comparison and nothing else. A line that cannot be written, because nobody reads standard error any more, is lost: an
instance does not stop over its log.

Payloads, keys and statements with secrets are never handed to a log call; nothing here could tell them apart.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Literal, TextIO, TypeAlias

import msgspec
import structlog
from structlog.contextvars import merge_contextvars
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.processors import format_exc_info

from broker.observe.log_writer import LogWriter
from broker.observe.repeat import Event, RepeatFilter

LogFormat: TypeAlias = Literal["auto", "json", "console"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_FIRST = ("ts", "level", "event", "instance", "component")  # the order in which a line begins
_encode = msgspec.json.Encoder(enc_hook=repr).encode


class LevelLogger(structlog.BoundLoggerBase):
    """
    What `structlog.get_logger()` gives after `configure_logging`: five levels, and `bind` for fields that stay.

    Where a call may be frequent keep what `bind` returns: what `get_logger` returns binds anew on every call.
    """

    def debug(self, event: str, **fields: Any) -> None:
        """For whoever looks for a bug; the only level that may speak of one message."""
        if _State.threshold <= _LEVELS["debug"]:
            self._proxy_to_logger("debug", event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """A change of state."""
        if _State.threshold <= _LEVELS["info"]:
            self._proxy_to_logger("info", event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something somebody should look at when there is time."""
        if _State.threshold <= _LEVELS["warning"]:
            self._proxy_to_logger("warning", event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something does not work."""
        self._proxy_to_logger("error", event, **fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error, with the traceback of the exception that is being handled."""
        self._proxy_to_logger("error", event, **{"exc_info": True, **fields})


class _Direct:
    """Where lines go at once; written in one call each, so that threads do not mix them. Shape: `dropped` always 0."""

    dropped = 0

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader is gone, or the stream is closed
            self.stream.write(f"{line}\n")
            self.stream.flush()

    def flush(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is kept."""


class _Component:
    """
    What the lines of one component go through: the logger that structlog wraps.

    A component is what the second part of a module's name says: `net`, `dialog`, `control`. Whatever logs without a
    name, as an application that embeds an instance may, has an empty one.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, line: str) -> None:
        _State.output.write(line)

    debug = info = warning = error = critical = write


class _State:
    """
    What all loggers share; changed by the functions of this module only, always in place.

    A logger that was made and kept before a change therefore follows it, and structlog may cache what it makes.
    """

    threshold: int = _LEVELS["info"]  # the least level that is logged
    processors: ClassVar[list[Any]] = []
    output: _Direct | LogWriter = _Direct(sys.stderr)
    repeats = RepeatFilter(time.monotonic)


class _StandardHandler(logging.Handler):
    """Hands records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record."""
        try:
            event = record.getMessage()
        except (KeyError, TypeError, ValueError):  # the arguments do not fit the text: told without them
            event = str(record.msg)
        level = next(name for name, number in reversed(_LEVELS.items()) if record.levelno >= number or name == "debug")
        fields = {"logger": record.name, **({"exc_info": record.exc_info} if record.exc_info else {})}
        structlog.get_logger()._proxy_to_logger(level, event, **fields)  # noqa: SLF001  # the level is a value here


def configure_logging(
    *,
    log_format: LogFormat,
    level: LogLevel,
    instance: str,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
    is_queued: bool = False,
) -> None:
    """
    Set up logging for the process; a second call replaces the first.

    Args:
        log_format: `auto` is `console` on a terminal, else `json`.
        level: Least severe level that is logged.
        instance: Name of the instance, in every line.
        stream: Where to; standard error when left out.
        environ: For `NO_COLOR`, which is honoured whatever its value, unless empty.
        is_queued: Whether a thread writes, so that nobody waits for the stream; `close_logging` is due at the end.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    if log_format == "json" or (log_format == "auto" and not terminal):
        rendering: list[Any] = [format_exc_info, render_json]
    else:
        colours = terminal and not environ.get("NO_COLOR")
        rendering = [ConsoleRenderer(colors=colours, timestamp_key="ts", exception_formatter=plain_traceback)]
    if is_queued is not isinstance(_State.output, LogWriter):
        _State.output.close()
        _State.output = LogWriter(stream, _tell_gap) if is_queued else _Direct(stream)
    _State.output.stream = stream
    _State.repeats = RepeatFilter(time.monotonic)
    _State.processors[:] = [merge_contextvars, _add_level, _State.repeats, partial(_stamp, instance), *rendering]
    structlog.configure(
        processors=_State.processors,
        wrapper_class=LevelLogger,
        logger_factory=_component,
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _StandardHandler):
            root.removeHandler(handler)
    root.addHandler(_StandardHandler())
    set_log_level(level)


def reconfigure_logging(*, log_format: LogFormat, level: LogLevel, instance: str) -> None:
    """Other settings for the logging of this process; nothing where `configure_logging` was never called."""
    if _State.processors:
        configure_logging(
            log_format=log_format,
            level=level,
            instance=instance,
            stream=_State.output.stream,
            is_queued=isinstance(_State.output, LogWriter),
        )


def close_logging() -> None:
    """At the end of the process: tell what was left out, and see that everything is written, within a second."""
    tell_suppressed(everything=True)
    stream = _State.output.stream
    _State.output.close()
    _State.output = _Direct(stream)


def set_log_level(level: LogLevel) -> None:
    """Change the level at once, for every logger."""
    _State.threshold = _LEVELS[level]
    logging.getLogger().setLevel(_State.threshold)


def dropped_lines() -> int:
    """Lines that were lost since the start, because nobody took them in time."""
    return _State.output.dropped


def tell_suppressed(*, everything: bool = False) -> None:
    """
    Write a line for repeated errors that have stopped coming, with how many were left out.

    Call it about once a minute, and with `everything` at the end.
    """
    log = structlog.get_logger()
    for event in _State.repeats.take_untold(everything=everything):
        level = event.pop("level")
        log._proxy_to_logger(level, **event)  # noqa: SLF001  # the level is a value here


def render_json(_logger: object, _method: str, event: Event) -> str:
    """One JSON object: `ts`, `level`, `event`, `instance`, then the fields; what JSON has no type for as its `repr`."""
    ordered = {name: event[name] for name in _FIRST if name in event}
    ordered |= {name: value for name, value in event.items() if name not in ordered}
    try:
        return _encode(ordered).decode()
    except (TypeError, ValueError, RecursionError):  # a key that is no text, half a surrogate pair, a loop
        return _encode({name: _encodable(value) for name, value in ordered.items()}).decode()


def _encodable(value: object) -> object:
    try:
        _encode(value)
    except (TypeError, ValueError, RecursionError):
        return ascii(value)
    return value


def _component(name: str = "", *_: object) -> _Component:
    """What `get_logger(__name__)` writes to."""
    return _Component([*name.split("."), ""][1] if name.startswith("broker.") else "")


def _tell_gap(lines: int) -> None:
    structlog.get_logger(__name__).warning("log lines lost", lines=lines)


def _add_level(logger: object, method: str, event: Event) -> Event:
    event["level"] = method
    component = getattr(logger, "name", "")
    if component:
        event.setdefault("component", component)
    return event


def _stamp(instance: str, _logger: object, _method: str, event: Event) -> Event:
    event["ts"] = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    event["instance"] = instance
    return event
