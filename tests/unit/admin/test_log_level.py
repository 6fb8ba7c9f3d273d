"""The level of the log is changed over the API, for a time, and written down."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.daemon import Instance


async def test_level_is_changed_and_shown_with_its_end(ask: Any) -> None:
    status, changed = await ask("POST", "/v1/log-level", {"level": "debug", "component": "net", "seconds": 600})
    _, shown = await ask("GET", "/v1/log-level")

    assert (status, changed) == (200, shown)
    (special,) = shown["special"]
    assert (shown["configured"], special["component"], special["level"]) == ("info", "net", "debug")
    left = datetime.fromisoformat(special["until"]) - datetime.now(UTC)
    assert timedelta(minutes=9) < left <= timedelta(minutes=10)


async def test_level_is_ended(ask: Any) -> None:
    await ask("POST", "/v1/log-level", {"level": "debug"})

    _, changed = await ask("POST", "/v1/log-level", {"level": None})

    assert changed == {"configured": "info", "special": []}


async def test_change_is_written_down(ask: Any, instance: Instance) -> None:
    await ask("POST", "/v1/log-level", {"level": "debug", "component": "net", "seconds": 60})

    (line,) = [json.loads(line) for line in instance.settings.admin.audit.read_text().splitlines()]
    assert (line["operation"], line["target"], line["outcome"]) == ("POST /v1/log-level", "net: debug for 60 s", "done")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"level": "debug", "component": "nets"}, "there is no component 'nets'"),
        ({"level": "loud"}, "level"),
        ({"level": "debug", "seconds": 0}, "seconds"),
        ({"level": "debug", "seconds": 1e9}, "seconds"),
        ({"component": "net"}, "level"),
        ({"level": "debug", "for": "10m"}, "for"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_changes_nothing(ask: Any, body: Any, told: str) -> None:
    status, problem = await ask("POST", "/v1/log-level", body)

    assert (status, told in problem["detail"]) == (400, True)
    assert (await ask("GET", "/v1/log-level"))[1]["special"] == []
