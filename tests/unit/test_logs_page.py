"""docs/logs.md has every line that the program may write, with its level and its fields, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.log_calls import Told, events, unnamed

PAGE = Path(__file__).parents[2] / "docs" / "logs.md"
ROW = re.compile(r"^\| `([^`]+)` \| ([a-z, ]+) \| ((?:`\w+`(?:, )?)+) \| ((?:`\w+`(?:, )?)*) \| (.+) \|$", re.MULTILINE)


def told() -> dict[str, Told]:
    """The rows of the table."""
    return {
        event: Told(event, frozenset(levels.split(", ")), _names(components), _names(fields))
        for event, levels, components, fields, _ in ROW.findall(PAGE.read_text(encoding="utf-8"))
    }


def test_page_has_every_event_as_the_program_says_it() -> None:
    page = told()
    # Where fields are passed on (`**`), those of the source are some of those of the page.
    source = {
        event: one._replace(fields=page[event].fields) if "**" in one.fields and event in page else one
        for event, one in events().items()
    }

    assert page == source
    assert all(one.fields - {"**"} <= page[event].fields for event, one in events().items())


def test_every_event_has_a_name_that_stays() -> None:
    """A fixed phrase: what changes from line to line is in fields, so that one can filter and count."""
    assert unnamed() == []
    assert [event for event in events() if not re.fullmatch(r"[a-zA-Z][a-zA-Z ,]+", event)] == []


def test_every_event_says_what_to_do_once() -> None:
    meanings = [meaning for *_, meaning in ROW.findall(PAGE.read_text(encoding="utf-8"))]

    assert all(len(meaning) > 8 for meaning in meanings)
    assert len(ROW.findall(PAGE.read_text(encoding="utf-8"))) == len(told())


def _names(cell: str) -> frozenset[str]:
    return frozenset(re.findall(r"`(\w+)`", cell))
