"""The page of settings says what the models say."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.schema import settings_of
from broker.config.settings import Settings
from tools.settings_page import render_reference, renew_page

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_committed_page_is_what_the_models_say() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert renew_page(page) == page, "make docs, and commit it"


def test_every_setting_has_a_row() -> None:
    rows = [line for line in render_reference().splitlines() if line.startswith("| `")]

    assert [str(one.path[-1]) for one in settings_of(Settings)] == [row.split("`")[1] for row in rows]


@pytest.mark.parametrize(
    "part",
    [
        "### `[databases.NAME]`\n",
        "\n| `name` | the host name | name of 1 to 128 characters | restart | Name of",
        "\n| `path` | required | path of",
        '\n| `heartbeat` | `"15s"` | 100ms to 1h (time) | reconnect | Silence',
        "\n| `message_forwarding` | `false` | true, false | live | ",
    ],
)
def test_reference_tells(part: str) -> None:
    assert part in render_reference()
