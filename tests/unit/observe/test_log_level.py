"""A part of the program logs more for a time, and then as before by itself."""

from __future__ import annotations

import ast
import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
import structlog

import broker
from broker.observe.log_level import COMPONENTS, LogLevels
from broker.observe.logs import configure_logging, reconfigure_logging
from tests.support.log_calls import parse

SOURCE = Path(broker.__file__).parent


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    configure_logging(log_format="json", level="info", instance="one", stream=stream)
    return stream


@pytest.fixture
async def levels() -> Any:
    levels = LogLevels()
    yield levels
    levels.close()


def said(stream: io.StringIO) -> list[str]:
    """What was logged below warning: component and event."""
    lines = map(json.loads, stream.getvalue().splitlines())
    return [f"{line.get('component', '')}: {line['event']}" for line in lines if line["level"] in ("debug", "info")]


def speak() -> None:
    """Each of three components says something for whoever looks for a bug."""
    for name in ("broker.net.link", "broker.dialog.endpoint", "application.of.somebody"):
        structlog.get_logger(name).debug("seen")


def test_components_are_the_parts_that_log() -> None:
    found = set()
    for module in SOURCE.rglob("*.py"):
        calls = [node for node in ast.walk(parse(module)) if isinstance(node, ast.Call)]
        if any(isinstance(call.func, ast.Attribute) and call.func.attr == "get_logger" for call in calls):
            found.add(module.relative_to(SOURCE).parts[0].removesuffix(".py"))

    assert set(COMPONENTS) == found


async def test_component_says_more_and_the_others_do_not(stream: io.StringIO, levels: LogLevels) -> None:
    levels.change("net", "debug", 60)
    speak()

    assert said(stream) == ["net: seen"]


async def test_all_say_more_but_who_has_a_level_of_its_own(stream: io.StringIO, levels: LogLevels) -> None:
    levels.change("", "debug", 60)
    levels.change("net", "warning", 60)
    speak()

    assert said(stream) == ["dialog: seen", ": seen"]


async def test_level_ends_by_itself(stream: io.StringIO, levels: LogLevels) -> None:
    levels.change("net", "debug", 0.01)
    await asyncio.sleep(0.05)
    speak()

    assert (said(stream), levels.special) == ([], [])
    last = json.loads(stream.getvalue().splitlines()[-1])
    assert (last["event"], last["of"], last["reason"]) == ("log level restored", "net", "its time is up")


async def test_level_is_ended_on_command(stream: io.StringIO, levels: LogLevels) -> None:
    levels.change("net", "debug", 60)
    levels.change("net", None, 60)
    speak()

    assert (said(stream), levels.special) == ([], [])


async def test_later_level_takes_the_place_of_an_earlier_one(stream: io.StringIO, levels: LogLevels) -> None:
    levels.change("net", "debug", 0.01)
    levels.change("net", "debug", 60)
    await asyncio.sleep(0.05)
    speak()

    assert said(stream) == ["net: seen"]


async def test_reload_of_the_configuration_leaves_it(stream: io.StringIO, levels: LogLevels) -> None:
    levels.change("net", "debug", 60)
    reconfigure_logging(log_format="json", level="warning", instance="one")
    speak()

    assert said(stream) == ["net: seen"]
    assert levels.base == "warning"


async def test_end_of_an_instance_ends_its_levels(stream: io.StringIO) -> None:
    levels = LogLevels()
    levels.change("net", "debug", 60)

    levels.close()
    speak()

    assert said(stream) == []
