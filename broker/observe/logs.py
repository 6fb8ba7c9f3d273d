"""
Log lines: one JSON object a line on standard error, or a readable form for a terminal.

Every module calls `log = structlog.get_logger()` and `log.info("link closed", peer=...)`: a fixed phrase and fields.
Records of the standard library's logging (asyncio, aiohttp) are written in the same format to the same stream. A call
below the level costs a comparison and nothing else.

The reader of the log may stop: a pipe that is full, a terminal that is held, a disk that does not answer. A write
blocks for as long then, and in the event loop everything else would block with it. So the loop only puts lines into a
bounded queue, and a thread writes them, many in one call. When the queue is full, a line is dropped and counted; the
count is logged as soon as lines are accepted again. A line that cannot be written at all is lost. An instance does not
stop because of its log.

Of many identical errors the first is logged, then one a minute with the number of those left out. Every attempt to
reach a peer that is down fails with the same error, and ten thousand equal lines hide the one that differs.
Two events are identical when level, event and every field are equal but for numbers, since numbers are measurements.
Only warnings and worse are held back; the memory is bounded. Different warnings about many peers, which anybody who
reaches the port can cause, are counted together above a rate.

Payloads, keys and statements with secrets are never passed to a log call; nothing here could recognize and remove them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Literal, TextIO, TypeAlias

import msgspec
import structlog
from structlog import DropEvent
from structlog.contextvars import merge_contextvars
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.processors import format_exc_info

from broker.ratelimit import TokenBucket

# --- the writer thread ---

LINES_MAX = 10_000
BYTES_MAX = 4 * 1024 * 1024
FLUSH_SECONDS = 1.0  # at the end of the process, for what is in the queue


class LogWriter:
    """
    Writes lines in a thread; `dropped` counts those that were lost since the start.

    Once lines are accepted again, how many were lost before is logged as any event.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.dropped = 0
        self._lines: deque[str] = deque()
        self._bytes = 0
        self._gap = 0  # lines lost and not reported yet
        self._is_writing = self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Enqueue one line, from any thread; this never waits for the stream."""
        with self._changed:
            if self._is_closed:
                return
            if len(self._lines) >= LINES_MAX or self._bytes + len(line) > BYTES_MAX:
                self.dropped += 1
                self._gap += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify_all()

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until everything is written, for so long at most; return whether it is."""
        deadline = time.monotonic() + seconds
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and not self._is_writing, deadline - time.monotonic())

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Write the queued lines, for so long at most, and accept no further ones."""
        self.flush(seconds)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self.flush(0.0):
            self._thread.join(seconds)

    # --- in the thread ---

    def _run(self) -> None:
        while (lines := self._take()) is not None:
            with contextlib.suppress(OSError, ValueError):  # the reader is gone, or the stream is closed
                self._put("".join([f"{line}\n" for line in lines]))
            with self._changed:
                gap, self._gap = self._gap, 0
            if gap:
                structlog.get_logger(__name__).warning("log lines lost", lines=gap)
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()

    def _put(self, text: str) -> None:
        """Write to the descriptor itself if there is one: a stream has a lock that the end of the process needs."""
        try:
            descriptor = self.stream.fileno()
        except (AttributeError, OSError, ValueError):
            self.stream.write(text)
            self.stream.flush()
            return
        data = memoryview(text.encode(errors="backslashreplace"))
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                select.select([], [descriptor], [])

    def _take(self) -> list[str] | None:
        """Take all queued lines; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_closed)
            if not self._lines:
                return None
            lines = list(self._lines)
            self._lines.clear()
            self._bytes = 0
            self._is_writing = True
            return lines


# --- repeated errors ---

Event: TypeAlias = MutableMapping[str, Any]

INTERVAL = 60.0  # seconds between two lines about the same
CROWD_BURST = 100  # different lines about peers at once, and then
CROWD_PER_SECOND = 1  # so many: a thousand refusals a second would fill the disk; the counters have all
CROWD = "one of many"  # in place of each text of a line that counts the others
LAST = "last_ts"  # field of a line about earlier ones: when the last of them would have been written
KINDS_MAX = 1024  # different events remembered: more than an instance has peers and reasons, some 1 MB at most
_HELD_BACK = frozenset({"warning", "error", "critical"})


@dataclass(slots=True)
class _Seen:
    """State of one event; changed only under the lock of its filter."""

    told_at: float
    suppressed: int
    last: dict[str, Any]


class RepeatFilter:
    """
    A structlog processor; `level` has to be in the event before it, and the time of the event not yet.

    Called from the loop and from writer threads, hence the lock. `clock` gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: OrderedDict[object, _Seen] = OrderedDict()
        self._crowd = TokenBucket(CROWD_PER_SECOND, CROWD_BURST, clock())
        self._lock = threading.Lock()

    def __call__(self, _logger: object, _method: str, event: Event) -> Event:
        """
        Let the event pass, with `suppressed` when identical ones were left out before it.

        Raises:
            DropEvent: an identical one was logged less than `INTERVAL` ago.
        """
        if event.get("level") not in _HELD_BACK or LAST in event:
            return event
        now = self._clock()
        key = _identity(event)
        with self._lock:
            is_of_crowd = "peer" in event and event["level"] == "warning"  # an error is a fault here
            if is_of_crowd and key not in self._seen and not self._crowd.allow(now):
                texts = [name for name, value in event.items() if name not in _FIRST and isinstance(value, str)]
                event.update(dict.fromkeys(texts, CROWD))
                key = _identity(event)
            seen = self._seen.get(key)
            if seen is None:
                self._seen[key] = _Seen(now, 0, {})
                if len(self._seen) > KINDS_MAX:
                    self._seen.popitem(last=False)
                return event
            self._seen.move_to_end(key)
            if now - seen.told_at < INTERVAL:
                seen.suppressed += 1
                seen.last = {name: value for name, value in event.items() if name != "exc_info"}  # it would keep frames
                seen.last[LAST] = utc_now()
                raise DropEvent
            if seen.suppressed:
                event["suppressed"] = seen.suppressed
            self._seen[key] = _Seen(now, 0, {})
            return event

    def take_untold(self, *, everything: bool = False) -> list[dict[str, Any]]:
        """
        Return events that were left out and not logged for `INTERVAL`, each once with count and last time.

        For the summary where no further identical event occurs; `everything` is for the end of the program. They are
        remembered further, so each has its own line when it comes again.
        """
        told: list[dict[str, Any]] = []
        now = self._clock()
        with self._lock:
            for seen in self._seen.values():
                if seen.suppressed and (everything or now - seen.told_at >= INTERVAL):
                    told.append({**seen.last, "suppressed": seen.suppressed})
                    seen.told_at, seen.suppressed, seen.last = now, 0, {}
        return told


def _identity(event: Event) -> object:
    """
    Return the key that identical events share; a field that is not a text counts by its `repr`.

    Of a peer only the host counts: each of many connections has another port. Of a reason its numbers do not.
    """
    fields = (
        (name, value if isinstance(value, str) else repr(value))
        for name, value in event.items()
        if name != "exc_info" and (isinstance(value, bool) or not isinstance(value, int | float))
    )
    return frozenset((name, _SAME.get(name, str)(text)) for name, text in fields)


_SAME: Mapping[str, Callable[[str], object]] = {
    "peer": lambda text: text.rpartition(":")[0] or text,
    "reason": lambda text: tuple(word for word in text.split() if not word[0].isdigit()),
}


LogFormat: TypeAlias = Literal["auto", "json", "console"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_FIRST = ("ts", "level", "event", "instance", "component")  # the order in which a line begins
_encode = msgspec.json.Encoder(enc_hook=repr).encode


class LevelLogger(structlog.BoundLoggerBase):
    """
    The logger that `structlog.get_logger()` gives after `configure_logging`: five levels, and `bind` to add fields.

    Where a call may be frequent, keep the logger that `bind` returns: the one from `get_logger` binds on every call.
    """

    def debug(self, event: str, **fields: Any) -> None:
        """For finding a bug; the only level that may be about one message."""
        if _State.threshold <= _LEVELS["debug"]:
            self._proxy_to_logger("debug", event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """A change of state."""
        if _State.threshold <= _LEVELS["info"]:
            self._proxy_to_logger("info", event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something that should be looked into when there is time."""
        if _State.threshold <= _LEVELS["warning"]:
            self._proxy_to_logger("warning", event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something does not work."""
        self._proxy_to_logger("error", event, **fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error, with the traceback of the exception that is being handled."""
        self._proxy_to_logger("error", event, **{"exc_info": True, **fields})


class _Direct:
    """Writes lines at once, in one call each, so that threads do not mix them; `dropped` is always 0."""

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
    The logger of one component, which structlog wraps: every line of the component is written through it.

    A component is the second part of a module's name: `net`, `dialog`, `control`. A logger without a name, as an
    application that embeds an instance may have, has an empty one.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, line: str) -> None:
        _State.output.write(line)

    debug = info = warning = error = critical = write


class _State:
    """
    State shared by all loggers; changed by the functions of this module only, always in place.

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
        except (KeyError, TypeError, ValueError):  # the arguments do not fit the text: log it without them
            event = str(record.msg)
        level = next(name for name, number in reversed(_LEVELS.items()) if record.levelno >= number or name == "debug")
        fields = {"logger": record.name, **({"exc_info": record.exc_info} if record.exc_info else {})}
        structlog.get_logger()._proxy_to_logger(level, event, **fields)  # the level is a value here  # noqa: SLF001


def configure_logging(
    *,
    log_format: LogFormat,
    level: LogLevel,
    instance: str,
    stream: TextIO | None = None,
    is_queued: bool = False,
) -> None:
    """
    Set up logging for the process; a second call replaces the first.

    Args:
        log_format: `auto` is `console` on a terminal and `json` elsewhere; without colours where `NO_COLOR` is set.
        level: Least severe level that is logged.
        instance: Name of the instance, in every line.
        stream: The stream to write to; standard error when left out.
        is_queued: Whether a thread writes, so that no caller waits for the stream; `close_logging` is due at the end.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    if log_format == "json" or (log_format == "auto" and not terminal):
        rendering: list[Any] = [format_exc_info, render_json]
    else:
        colours = terminal and not os.environ.get("NO_COLOR")
        rendering = [ConsoleRenderer(colors=colours, timestamp_key="ts", exception_formatter=plain_traceback)]
    if is_queued is not isinstance(_State.output, LogWriter):
        _State.output.close()
        _State.output = LogWriter(stream) if is_queued else _Direct(stream)
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
    """Change the settings for the logging of this process; do nothing where `configure_logging` was never called."""
    if _State.processors:
        configure_logging(
            log_format=log_format,
            level=level,
            instance=instance,
            stream=_State.output.stream,
            is_queued=isinstance(_State.output, LogWriter),
        )


def close_logging() -> None:
    """At the end of the process, log the events left out, and wait at most a second until everything is written."""
    tell_suppressed(everything=True)
    stream = _State.output.stream
    _State.output.close()
    _State.output = _Direct(stream)


def set_log_level(level: LogLevel) -> None:
    """Change the level at once, for every logger."""
    _State.threshold = _LEVELS[level]
    logging.getLogger().setLevel(_State.threshold)


def dropped_lines() -> int:
    """Return the number of lines lost since the start because the stream did not accept them in time."""
    return _State.output.dropped


def tell_suppressed(*, everything: bool = False) -> None:
    """
    Write a line for repeated errors that have stopped occurring, with how many were left out.

    Call it about once a minute, and with `everything` at the end.
    """
    log = structlog.get_logger()
    for event in _State.repeats.take_untold(everything=everything):
        level = event.pop("level")
        log._proxy_to_logger(level, **event)  # the level is a value here  # noqa: SLF001


def render_json(_logger: object, _method: str, event: Event) -> str:
    """Render one JSON object: `ts`, `level`, `event`, `instance`, the fields; types that JSON lacks as their `repr`."""
    ordered = {name: event[name] for name in _FIRST if name in event}
    ordered |= {name: value for name, value in event.items() if name not in ordered}
    try:
        return _encode(ordered).decode()
    except (TypeError, ValueError, RecursionError):  # a key that is not a text, half a surrogate pair, a cycle
        return _encode({name: _encodable(value) for name, value in ordered.items()}).decode()


def _encodable(value: object) -> object:
    try:
        _encode(value)
    except (TypeError, ValueError, RecursionError):
        return ascii(value)
    return value


def _component(name: str = "", *_: object) -> _Component:
    """Make the logger that `get_logger(__name__)` writes to."""
    return _Component([*name.split("."), ""][1] if name.startswith("broker.") else "")


def utc_now() -> str:
    """This instant as log lines have it: RFC 3339 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _add_level(logger: object, method: str, event: Event) -> Event:
    event["level"] = method
    component = getattr(logger, "name", "")
    if component:
        event.setdefault("component", component)
    return event


def _stamp(instance: str, _logger: object, _method: str, event: Event) -> Event:
    event["ts"] = utc_now()
    event["instance"] = instance
    return event


SUMMARY_SECONDS = 10.0  # between two scans for errors that were left out for a minute


async def tell_summaries() -> None:
    """Log how many repeated errors were left out, for ever; `close_logging` logs the rest."""
    while True:
        await asyncio.sleep(SUMMARY_SECONDS)
        tell_suppressed()
