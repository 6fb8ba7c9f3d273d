"""The tutorial and every how-to do what they say: each page is executed from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli.journal import journal
from tests.docs.page import DOCS, Reading
from tests.support.histories.history import generate
from tests.support.histories.world import Scenario

ELSEWHERE = {"pipeline-cluster"}  # tests/spark/test_cluster.py, which has a cluster
PAGES = [
    DOCS / "tutorial.md",
    DOCS / "from-sql-server.md",
    DOCS / "routing-by-example.md",
    *sorted(page for page in (DOCS / "how-to").glob("*.md") if page.stem not in ELSEWHERE),
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
    text = (DOCS / "journal.md").read_text(encoding="utf-8")
    section = tmp_path / "journal.md"
    section.write_text(text.partition("\n## Looking at one\n")[2].partition("\n## ")[0], encoding="utf-8")

    generate(tmp_path / "history", Scenario(messages=200, instances=3, hours=1, seed=1))

    with Reading(section) as reading:
        executed = reading.read()

    assert executed > 2
    assert {"tail"} == set(journal.commands)


@pytest.mark.parametrize(
    "page", [*PAGES, *(DOCS / "how-to" / f"{name}.md" for name in ELSEWHERE)], ids=lambda p: p.stem
)
def test_a_page_is_found_from_the_navigation(page: Path) -> None:
    name = str(page.relative_to(DOCS))

    assert f": {name}\n" in (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
