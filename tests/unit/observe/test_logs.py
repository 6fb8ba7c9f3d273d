"""Log lines: what is in them, who waits for them (no caller), and repeated errors once a minute."""

import asyncio
import io
import json
import logging
import os
import re
import select
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog
from structlog import DropEvent

from broker.observe import logs
from broker.observe.logs import (
    CROWD_BURST,
    INTERVAL,
    LogFormat,
    LogLevel,
    LogWriter,
    RepeatFilter,
    configure_logging,
    set_log_level,
    tell_summaries,
    tell_suppressed,
)
from tests.support.loopback import until

# --- the summary of repeated errors that have stopped ---


async def test_number_of_repeated_errors_is_logged_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    configure_logging(log_format="json", level="info", instance="one", stream=stream)
    monkeypatch.setattr(logs, "SUMMARY_SECONDS", 0.01)
    monkeypatch.setattr(logs, "INTERVAL", 1.0)
    log = structlog.get_logger("broker.net.test")
    for _ in range(3):
        log.error("peer is gone", peer="far")

    task = asyncio.create_task(tell_summaries())
    await until(lambda: stream.getvalue().count("\n") == 2)
    task.cancel()

    first, summary = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["component"], "suppressed" in first) == ("peer is gone", "net", False)
    assert (summary["event"], summary["component"], summary["suppressed"]) == ("peer is gone", "net", 2)


# --- the writer: lines wait, are lost past a bound, and that is logged ---


LOOK_SECONDS = 0.01
PATIENCE_SECONDS = 20.0


class Held(io.StringIO):
    """A stream that takes nothing until `gate` is set; `begun` is set once something is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.begun = threading.Event()

    def write(self, text: str) -> int:
        self.begun.set()
        assert self.gate.wait(PATIENCE_SECONDS)
        return super().write(text)


@pytest.fixture
def held() -> Iterator[Held]:
    stream = Held()
    yield stream
    stream.gate.set()


def test_lines_of_several_threads_keep_their_order_and_are_not_mixed() -> None:
    stream = io.StringIO()
    writer = LogWriter(stream)
    lines = {name: [f"{name * 50} {number}" for number in range(200)] for name in "abc"}
    threads = [
        threading.Thread(target=lambda own=own: deque(map(writer.write, own), maxlen=0)) for own in lines.values()
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()

    written = stream.getvalue().splitlines()
    assert lines == {name: [line for line in written if line.startswith(name)] for name in lines}


@pytest.mark.parametrize(("bound", "most", "kept"), [("LINES_MAX", 5, 5), ("BYTES_MAX", 100, 2)])
def test_no_caller_waits_for_a_stream_that_is_held(
    held: Held, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, *, bound: str, most: int, kept: int
) -> None:
    monkeypatch.setattr(logs, bound, most)
    _configure(stream)
    writer = LogWriter(held)
    writer.write("first")
    assert held.begun.wait(PATIENCE_SECONDS)

    lines = [f"{number:>40}" for number in range(12)]
    for line in lines:
        writer.write(line)
    assert (writer.dropped, _lines(stream)) == (12 - kept, [])
    held.gate.set()
    writer.close(PATIENCE_SECONDS)

    assert held.getvalue().splitlines() == ["first", *lines[:kept]]
    assert [(line["event"], line["lines"]) for line in _lines(stream)] == [("log lines lost", 12 - kept)]


@pytest.mark.parametrize("is_blocking", [True, False])
def test_pipe_that_is_full_holds_no_caller_up(*, is_blocking: bool) -> None:
    """A real one, whose reader sleeps: it takes 64 KiB, and a direct write would wait for ever."""
    reader, end = os.pipe()
    os.set_blocking(end, is_blocking)
    with os.fdopen(end, "w") as stream:
        writer = LogWriter(stream)

        for _ in range(3 * logs.LINES_MAX):  # one queue is in the thread's hands, another waits
            writer.write("x" * 100)
        dropped, read = writer.dropped, 0
        while not writer.flush(0.0):
            if select.select([reader], [], [], LOOK_SECONDS)[0]:  # all may be read, and not yet known to be written
                read += len(os.read(reader, 1 << 16))
        writer.close()
    os.close(reader)

    assert dropped >= logs.LINES_MAX - 100
    assert read <= 101 * (3 * logs.LINES_MAX - dropped)


def test_reader_that_is_gone_stops_nothing() -> None:
    reader, end = os.pipe()
    os.close(reader)
    with os.fdopen(end, "w") as stream:
        writer = LogWriter(stream)

        writer.write("lost")

        assert writer.flush(PATIENCE_SECONDS)
        writer.close()


def test_end_waits_for_a_held_stream_no_longer_than_it_may(held: Held) -> None:
    writer = LogWriter(held)
    writer.write("first")
    assert held.begun.wait(PATIENCE_SECONDS)

    writer.close(0.01)
    writer.write("too late")

    assert writer.dropped == 0
    held.gate.set()


def test_what_no_encoding_has_a_byte_for_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as stream:
        writer = LogWriter(stream)
        writer.write("half a pair: \ud800")
        writer.close()

    assert path.read_text() == "half a pair: \\ud800\n"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Logging as it was before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def _configure(stream: io.StringIO, log_format: LogFormat = "json", level: LogLevel = "info") -> Any:
    configure_logging(log_format=log_format, level=level, instance="gw", stream=stream)
    return structlog.get_logger()


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]


def test_line_is_one_json_object_that_begins_with_time_level_event_and_instance(stream: io.StringIO) -> None:
    with structlog.contextvars.bound_contextvars(request="r1"):
        _configure(stream).info("link closed", peer="tcp://b:4022", frames=3)

    pattern = (
        r'\{"ts":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z","level":"info","event":"link closed","instance":"gw",'
        r'"peer":"tcp://b:4022","frames":3,"request":"r1"\}\n'
    )
    assert re.fullmatch(pattern, stream.getvalue())


def test_only_the_level_and_what_is_worse_is_logged(stream: io.StringIO) -> None:
    names: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")
    for level in names:
        log = _configure(stream, level=level)
        for name in names:
            getattr(log, name)(level)

    assert [(level, name) for at, level in enumerate(names) for name in names[at:]] == [
        (line["event"], line["level"]) for line in _lines(stream)
    ]


def test_change_of_level_reaches_loggers_made_before(stream: io.StringIO) -> None:
    log = _configure(stream, level="error").bind(peer="a")
    log.info("before")

    set_log_level("debug")
    log.debug("after")

    assert [(line["event"], line["peer"]) for line in _lines(stream)] == [("after", "a")]


def test_exception_is_logged_with_its_traceback(stream: io.StringIO) -> None:
    log = _configure(stream)

    log.error("task ended", exc_info=RuntimeError("boom"))

    (line,) = _lines(stream)
    assert (line["level"], line["exception"].splitlines()[-1]) == ("error", "RuntimeError: boom")


LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1.5, 1.5),
        (LOOP, "[[...]]"),
        (None, None),
        (RuntimeError("x"), "RuntimeError('x')"),
        ({(1, 2): 3}, {"(1, 2)": 3}),
        ("\udc80", r"'\udc80'"),
        ({"a": "\udc80"}, r"{'a': '\udc80'}"),
    ],
)
def test_no_field_is_too_strange_for_a_line(stream: io.StringIO, value: object, written: object) -> None:
    _configure(stream).info("event", field=value, other="b")

    (line,) = _lines(stream)
    assert ("event", "b", written) == (line["event"], line["other"], line["field"])


@pytest.mark.parametrize(
    ("log_format", "terminal", "no_color", "form"),
    [
        ("auto", False, "", "json"),
        ("auto", True, "", "colours"),
        ("auto", True, "1", "plain"),
        ("json", True, "", "json"),
        ("console", False, "", "plain"),
        ("console", True, "", "colours"),
    ],
)
def test_form_depends_on_format_terminal_and_no_color(
    monkeypatch: pytest.MonkeyPatch, log_format: LogFormat, terminal: Any, no_color: str, form: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)

    _configure(stream, log_format).info("link closed", peer="a")

    text = stream.getvalue()
    assert form == ("json" if text.startswith("{") else "colours" if "\x1b[" in text else "plain")


def test_standard_logging_is_logged_once_after_a_second_configuration(stream: io.StringIO) -> None:
    _configure(io.StringIO())
    _configure(stream)

    logging.getLogger("asyncio").warning("slow callback: %d ms", 250)

    (line,) = _lines(stream)
    known = {"level": "warning", "event": "slow callback: 250 ms", "instance": "gw", "logger": "asyncio"}
    assert known == {key: value for key, value in line.items() if key != "ts"}


def test_standard_record_whose_arguments_do_not_fit_is_told_without_them(stream: io.StringIO) -> None:
    _configure(stream)

    del logging.getLogger().handlers[:-1]  # pytest's own would raise
    record = logging.makeLogRecord({"name": "asyncio", "levelno": logging.ERROR, "msg": "%d of %d", "args": ("x",)})

    logging.getLogger("asyncio").handle(record)

    assert [line["event"] for line in _lines(stream)] == ["%d of %d"]


def test_repeated_errors_are_held_back_and_told_at_the_end(stream: io.StringIO) -> None:
    log = _configure(stream)
    for attempt in range(5):
        log.error("connect failed", peer="a", attempt=attempt)

    tell_suppressed()
    tell_suppressed(everything=True)
    tell_suppressed(everything=True)

    first, summary = _lines(stream)
    told = [(line["event"], line["attempt"], line.get("suppressed")) for line in (first, summary)]
    assert told == [("connect failed", 0, None), ("connect failed", 4, 4)]
    assert first["ts"] < summary["last_ts"] < summary["ts"]


def test_line_that_cannot_be_written_is_lost_without_harm(stream: io.StringIO) -> None:
    log = _configure(stream)
    stream.close()

    assert log.error("event") is None


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=1000.0)


@pytest.fixture
def repeats(clock: SimpleNamespace) -> RepeatFilter:
    return RepeatFilter(lambda: clock.now)


def _passes(repeats: RepeatFilter, event: str = "connect failed", level: str = "error", **fields: Any) -> Any:
    """What comes out of the filter, None when it is held back."""
    try:
        return dict(repeats(None, level, {"level": level, "event": event, **fields}))
    except DropEvent:
        return None


def test_first_is_told_at_once_and_then_one_a_minute_with_the_number_left_out(
    repeats: RepeatFilter, clock: SimpleNamespace
) -> None:
    told = {}
    for second in (*range(200), 200 + INTERVAL, 200 + 2 * INTERVAL):
        clock.now = 1000.0 + second
        if (event := _passes(repeats, peer="a")) is not None:
            told[second] = event.get("suppressed")

    assert {0: None, 60: 59, 120: 59, 180: 59, 200 + INTERVAL: 19, 200 + 2 * INTERVAL: None} == told


@pytest.mark.parametrize(
    ("other", "held_back"),
    [
        ({"peer": "a"}, True),
        ({"peer": "a", "elapsed_ms": 7}, True),  # a measure
        ({"peer": "b"}, False),
        ({"peer": "a", "event": "link lost"}, False),
        ({"peer": "a", "level": "warning"}, False),
        ({"peer": "a", "initial": True}, False),  # a bool is no measure
        ({"peer": ["a"]}, False),  # cannot be hashed
        ({"peer": "a", "exc_info": (1, 2, 3)}, True),
        ({"peer": "a", "reason": "frame of 28041 bytes"}, True),
        ({"peer": "a", "reason": "frame of CN=node-2"}, False),
    ],
)
def test_identical_is_what_has_the_same_fields_but_for_numbers(
    repeats: RepeatFilter, other: dict[str, Any], held_back: Any
) -> None:
    _passes(repeats, peer="a", elapsed_ms=3)
    for reason in ("frame of 17 bytes", "frame of CN=node-1"):
        _passes(repeats, peer="a", reason=reason)

    assert held_back == (_passes(repeats, **other) is None)


def test_of_a_peer_only_the_host_counts(repeats: RepeatFilter) -> None:
    peers = ["tcp://[::1]:1", "tcp://[::1]:2", "tcp://[::2]:2"]

    assert [True, False, True] == [_passes(repeats, peer=peer) is not None for peer in peers]


def test_crowd_of_peers_is_counted_in_one_line_and_hides_nobody_known(
    repeats: RepeatFilter, clock: SimpleNamespace
) -> None:
    def dials(number: int, level: str = "warning") -> Any:
        return _passes(repeats, level=level, peer=f"{number}:1", reason="not a frame")

    told = [event for number in range(1000) if (event := dials(number))]
    clock.now += INTERVAL
    (rest,) = repeats.take_untold()
    for number in range(1000, 1000 + CROWD_BURST):
        dials(number)

    assert (CROWD_BURST + 1, {"0", logs.CROWD}) == (len(told), {told[0]["peer"][0], told[-1]["peer"]})
    assert (1000 - CROWD_BURST - 1, logs.CROWD, "connect failed") == (rest["suppressed"], rest["peer"], rest["event"])
    assert [rest] == [_passes(repeats, **rest)]  # the line about them passes
    assert [] == repeats.take_untold()
    assert ("0:1", None, "9999:1") == (dials(0)["peer"], dials(9998), dials(9999, level="error")["peer"])


@pytest.mark.parametrize("level", ["debug", "info"])
def test_event_that_is_not_an_error_always_passes(repeats: RepeatFilter, level: str) -> None:
    assert None not in [_passes(repeats, level=level) for _ in range(3)]


def test_memory_is_bounded_and_forgets_what_was_not_seen_for_longest(
    monkeypatch: pytest.MonkeyPatch, repeats: RepeatFilter
) -> None:
    monkeypatch.setattr(logs, "KINDS_MAX", 2)
    for peer in ("a", "b", "a", "c"):  # c pushes b out
        _passes(repeats, peer=peer)

    assert [_passes(repeats, peer=peer) is not None for peer in ("a", "b", "c")] == [False, True, True]
