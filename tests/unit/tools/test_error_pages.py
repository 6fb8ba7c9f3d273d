"""The pages of numbers and reasons say what the catalogue says, and miss nothing that the code tells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.observe.message_catalogue import catalogue
from tools.error_pages import written

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
# A number where an error is made of it: its first argument, or `number=` or `code=`.
GIVEN = re.compile(
    r"(?:\w*(?:Error|Fault|Refusal|Ending)|_?error\w*|_?mistake)\(\s*(-?\d{3,5}),|\b(?:number|code)=(-?\d{3,5})\b"
)

pytestmark = pytest.mark.xdist_group("error pages")


@pytest.fixture(scope="module")
def made() -> Mapping[Path, str]:
    return written(DOCS)


def test_the_committed_pages_are_what_the_catalogue_says(made: Mapping[Path, str]) -> None:
    stale = [path.name for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]

    assert [] == stale, "make docs, and commit them"
    assert set() == set((DOCS / "errors").glob("*")) - made.keys()


def test_every_number_of_the_code_is_in_the_catalogue() -> None:
    known = {entry.number for entry in catalogue().values()}
    told = {
        (abs(int(number)), path.name)
        for path in (ROOT / "broker").rglob("*.py")
        for number in filter(None, (one for found in GIVEN.findall(path.read_text(encoding="utf-8")) for one in found))
    }

    assert len({number for number, _ in told}) > 50
    assert [] == sorted(one for one in told if one[0] not in known)


def test_a_page_has_what_people_and_machines_get(made: Mapping[Path, str]) -> None:
    page = made[DOCS / "errors" / "9744.md"]

    for part in (
        "# 9744: ",
        "| Statements | ",
        "| Severity | 16 |",
        "| HTTP status | 400 Bad Request |",
        "| Exit code of a command | 1 |",
        "```text\nMsg 9744, Level 16, -:1:",
        "## In the original",
    ):
        assert part in page
    dropped = made[DOCS / "errors" / "11285.md"]
    assert '| Metric | `broker_messages_dropped_total{reason="hops exhausted"}` |' in dropped
    assert "| Notified | The peer that brought the frame is advised with REJECTED" in dropped
