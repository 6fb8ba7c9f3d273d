from __future__ import annotations

from pathlib import Path

import pytest

from broker.control.config import Settings
from broker.control.reference import BEGIN, END, main, render_reference, renew_page
from broker.control.setting import settings_of

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_committed_page_is_what_the_models_say() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert renew_page(page) == page, f"run: python -m broker.control.reference {PAGE.name}"


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


def test_only_the_part_between_the_markers_is_renewed() -> None:
    page = renew_page(f"before\n{BEGIN}\nold\n{END}\nafter\n")

    assert (
        page.startswith(f"before\n{BEGIN}\n\n### "),
        page.endswith(f"{END}\nafter\n"),
        "old\n" in page,
    ) == (True, True, False)


@pytest.mark.parametrize("page", ["", BEGIN, f"{END} {BEGIN}"])
def test_page_without_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="lacks a marker"):
        renew_page(page)


def test_command_rewrites_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}")

    main([str(page)])

    assert renew_page(f"{BEGIN}{END}") == page.read_text()
