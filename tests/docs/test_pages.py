"""The tutorial and every how-to do what they say: each page is executed from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli.journal import journal
from tests.docs.page import DOCS, Reading, section_of
from tests.support.histories import generate

PAGES = [
    DOCS / "tutorial.md",
    DOCS / "from-sql-server.md",
    DOCS / "routing-by-example.md",
    *sorted((DOCS / "how-to").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_everything_a_page_shows_is_so(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    with Reading(page) as reading:
        executed = reading.read()

    assert executed > 0


def test_the_commands_about_a_journal_print_what_their_section_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of that page is no session: only the section is executed."""
    monkeypatch.chdir(tmp_path)
    section = section_of(DOCS / "journal.md", "Looking at one", tmp_path)
    generate(tmp_path / "history", messages=200)

    with Reading(section) as reading:
        executed = reading.read()

    assert executed > 2
    assert {"tail"} == set(journal.commands)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_is_found_from_the_navigation(page: Path) -> None:
    name = str(page.relative_to(DOCS))

    assert f": {name}\n" in (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
