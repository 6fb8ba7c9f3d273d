from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import structlog

from broker.observe.logs import (
    LevelLogger,
    LogFormat,
    LogLevel,
    configure_logging,
    render_json,
    set_log_level,
    tell_suppressed,
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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


def _configure(
    stream: io.StringIO, log_format: LogFormat = "json", level: LogLevel = "info", environ: dict[str, str] | None = None
) -> Any:
    configure_logging(log_format=log_format, level=level, instance="gw", stream=stream, environ=environ or {})
    return structlog.get_logger()


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]


def _boom() -> None:
    raise RuntimeError("boom")


def test_line_is_one_json_object_that_begins_with_time_level_event_and_instance(stream: io.StringIO) -> None:
    _configure(stream).info("link closed", peer="tcp://b:4022", frames=3)

    pattern = (
        r'\{"ts":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z","level":"info","event":"link closed","instance":"gw",'
        r'"peer":"tcp://b:4022","frames":3\}\n'
    )
    assert re.fullmatch(pattern, stream.getvalue())


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_only_the_level_and_what_is_worse_is_logged(stream: io.StringIO, level: LogLevel, told: list[str]) -> None:
    log = _configure(stream, level=level)

    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)("event")

    assert told == [line["level"] for line in _lines(stream)]


def test_change_of_level_reaches_loggers_made_before(stream: io.StringIO) -> None:
    log = _configure(stream, level="error").bind(peer="a")
    log.info("before")

    set_log_level("debug")
    log.debug("after")

    assert [(line["event"], line["peer"]) for line in _lines(stream)] == [("after", "a")]


def test_new_configuration_reaches_loggers_made_before(stream: io.StringIO) -> None:
    log = _configure(io.StringIO()).bind(peer="a")

    _configure(stream)
    log.info("event")

    assert [line["peer"] for line in _lines(stream)] == ["a"]


def test_call_below_the_level_costs_a_comparison(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filtered-out call gets no further than the level."""
    log = _configure(stream).bind(peer="a")
    proxied: list[str] = []
    monkeypatch.setattr(LevelLogger, "_proxy_to_logger", lambda _, level, *__, **___: proxied.append(level))

    log.debug("event", x=1)
    log.info("event", x=1)

    assert ["info"] == proxied


def test_exception_is_logged_with_its_traceback(stream: io.StringIO) -> None:
    log = _configure(stream)

    try:
        _boom()
    except RuntimeError:
        log.exception("task ended", task="link")

    (line,) = _lines(stream)
    assert (line["level"], line["exception"].splitlines()[-1]) == ("error", "RuntimeError: boom")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1.5, 1.5),
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


def test_field_that_holds_itself_is_no_trouble() -> None:
    loop: list[object] = []
    loop.append(loop)

    assert msgspec.json.decode(render_json(None, "info", {"event": "e", "x": loop})) == {"event": "e", "x": "[[...]]"}


@pytest.mark.parametrize(
    ("log_format", "terminal", "environ", "form"),
    [
        ("auto", False, {}, "json"),
        ("auto", True, {}, "colours"),
        ("auto", True, {"NO_COLOR": "1"}, "plain"),
        ("auto", True, {"NO_COLOR": ""}, "colours"),
        ("json", True, {}, "json"),
        ("console", False, {}, "plain"),
        ("console", True, {}, "colours"),
    ],
)
def test_form_depends_on_format_terminal_and_no_color(
    log_format: LogFormat, terminal: Any, environ: dict[str, str], form: str
) -> None:
    stream = _Terminal() if terminal else io.StringIO()

    _configure(stream, log_format, environ=environ).info("link closed", peer="a")

    text = stream.getvalue()
    assert form == ("json" if text.startswith("{") else "colours" if "\x1b[" in text else "plain")


def test_console_shows_a_traceback_in_plain_text() -> None:
    stream = _Terminal()
    log = _configure(stream, environ={"NO_COLOR": "1"}, log_format="auto")

    try:
        _boom()
    except RuntimeError:
        log.exception("task ended")

    assert stream.getvalue().splitlines()[-1] == "RuntimeError: boom"


def test_standard_logging_takes_the_same_way(stream: io.StringIO) -> None:
    _configure(stream)

    logging.getLogger("asyncio").warning("slow callback: %d ms", 250)

    (line,) = _lines(stream)
    assert {key: value for key, value in line.items() if key != "ts"} == {
        "level": "warning",
        "event": "slow callback: 250 ms",
        "instance": "gw",
        "logger": "asyncio",
    }


@pytest.mark.parametrize(
    ("number", "level"),
    [(5, "debug"), (10, "debug"), (20, "info"), (25, "info"), (40, "error"), (50, "critical"), (99, "critical")],
)
def test_standard_level_becomes_the_nearest_below(stream: io.StringIO, number: int, level: str) -> None:
    _configure(stream, level="debug")
    logging.getLogger().setLevel(1)

    logging.getLogger("aiohttp").log(number, "event")

    assert [level] == [line["level"] for line in _lines(stream)]


def test_standard_logging_obeys_the_level(stream: io.StringIO) -> None:
    _configure(stream, level="warning")

    logging.getLogger("asyncio").info("event")

    assert stream.getvalue() == ""


def test_standard_record_whose_arguments_do_not_fit_is_told_without_them(stream: io.StringIO) -> None:
    _configure(stream)

    del logging.getLogger().handlers[:-1]  # pytest's own would raise
    record = logging.makeLogRecord({"name": "asyncio", "levelno": logging.ERROR, "msg": "%d of %d", "args": ("x",)})

    logging.getLogger("asyncio").handle(record)

    assert [line["event"] for line in _lines(stream)] == ["%d of %d"]


def test_standard_exception_is_logged_with_its_traceback(stream: io.StringIO) -> None:
    _configure(stream)

    try:
        _boom()
    except RuntimeError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved")

    (line,) = _lines(stream)
    assert line["exception"].endswith("RuntimeError: boom")


def test_standard_logging_is_told_once_after_a_second_configuration(stream: io.StringIO) -> None:
    _configure(io.StringIO())
    _configure(stream)

    logging.getLogger("asyncio").error("event")

    assert len(_lines(stream)) == 1


def test_repeated_errors_are_held_back_and_told_at_the_end(stream: io.StringIO) -> None:
    log = _configure(stream)
    for attempt in range(5):
        log.error("connect failed", peer="a", attempt=attempt)

    tell_suppressed()
    tell_suppressed(everything=True)
    tell_suppressed(everything=True)

    told = [(line["event"], line["attempt"], line.get("suppressed")) for line in _lines(stream)]
    assert told == [("connect failed", 0, None), ("connect failed", 4, 4)]


def test_bound_context_is_in_every_line(stream: io.StringIO) -> None:
    log = _configure(stream)

    with structlog.contextvars.bound_contextvars(request="r1"):
        log.info("event")

    assert [line["request"] for line in _lines(stream)] == ["r1"]


def test_line_that_cannot_be_written_is_lost_without_harm(stream: io.StringIO) -> None:
    log = _configure(stream)
    stream.close()

    assert log.error("event") is None


def test_standard_error_is_where_lines_go(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(log_format="json", level="info", instance="gw")

    structlog.get_logger().info("event")

    written = capsys.readouterr()
    assert (written.out, msgspec.json.decode(written.err)["event"]) == ("", "event")
