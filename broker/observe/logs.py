"""
Log lines: one JSON object a line on standard error, or a readable form for a terminal.

Code anywhere says `log = structlog.get_logger()` and `log.info("link closed", peer=...)`: a fixed phrase and fields.
What the standard library's logging says (asyncio, aiohttp) takes the same way out. A call below the level costs a
comparison and nothing else. A line that cannot be written, because nobody reads standard error any more, is lost: an
instance does not stop over its log.

Payloads, keys and statements with secrets are never handed to a log call; nothing here could tell them apart.
"""

from __future__ import annotations

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

from broker.observe.repeat import Event, RepeatFilter

LogFormat: TypeAlias = Literal["auto", "json", "console"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_FIRST = ("ts", "level", "event", "instance")  # the order in which a line begins
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


class _Output:
    """Where lines go; written in one call each, so that threads do not mix them."""

    stream: TextIO = sys.stderr

    def write(self, line: str) -> None:
        try:
            self.stream.write(f"{line}\n")
            self.stream.flush()
        except (OSError, ValueError):
            return  # the reader is gone, or the stream is closed

    debug = info = warning = error = critical = write


class _State:
    """
    What all loggers share; changed by `configure_logging` and `set_log_level` only, always in place.

    A logger that was made and kept before a change therefore follows it, and structlog may cache what it makes.
    """

    threshold = _LEVELS["info"]
    processors: ClassVar[list[Any]] = []
    output = _Output()
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
) -> None:
    """
    Set up logging for the process; a second call replaces the first.

    Args:
        log_format: `auto` is `console` on a terminal, else `json`.
        level: Least severe level that is logged.
        instance: Name of the instance, in every line.
        stream: Where to; standard error when left out.
        environ: For `NO_COLOR`, which is honoured whatever its value, unless empty.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    if log_format == "json" or (log_format == "auto" and not terminal):
        rendering: list[Any] = [format_exc_info, render_json]
    else:
        colours = terminal and not environ.get("NO_COLOR")
        rendering = [ConsoleRenderer(colors=colours, timestamp_key="ts", exception_formatter=plain_traceback)]
    _State.output.stream = stream
    _State.repeats = RepeatFilter(time.monotonic)
    _State.processors[:] = [merge_contextvars, _add_level, _State.repeats, partial(_stamp, instance), *rendering]
    structlog.configure(
        processors=_State.processors,
        wrapper_class=LevelLogger,
        logger_factory=lambda *_: _State.output,
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _StandardHandler):
            root.removeHandler(handler)
    root.addHandler(_StandardHandler())
    set_log_level(level)


def set_log_level(level: LogLevel) -> None:
    """Change the level at once, for every logger there is."""
    _State.threshold = _LEVELS[level]
    logging.getLogger().setLevel(_LEVELS[level])


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


def _add_level(_logger: object, method: str, event: Event) -> Event:
    event["level"] = method
    return event


def _stamp(instance: str, _logger: object, _method: str, event: Event) -> Event:
    event["ts"] = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    event["instance"] = instance
    return event
