"""The pages of numbers and reasons say what the code and its catalogue say, and miss nothing that is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from broker.observe import views as module
from broker.observe.views import MessageChannel, MessageEntry, catalogue
from tools import error_pages
from tools.error_example import Example
from tools.error_pages import PLACES, main, pages, written
from tools.raised import Raised, raised

DOCS = Path(__file__).parents[3] / "docs"
CARRIED_OVER = {
    MessageChannel.STATEMENT: MessageChannel.APPLICATION
}  # statements about a conversation do what an application does

# One worker reads the source once.
pytestmark = pytest.mark.xdist_group("error pages")


@pytest.fixture(scope="module")
def found() -> list[Raised]:
    return raised()


@pytest.fixture(scope="module")
def made(found: list[Raised]) -> Mapping[Path, str]:
    return written(DOCS, found)


def test_the_committed_pages_are_what_the_code_says(made: Mapping[Path, str]) -> None:
    stale = [path.name for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]

    assert [] == stale, "make docs, and commit them"


def test_there_is_no_page_of_a_number_that_is_no_more(made: Mapping[Path, str]) -> None:
    assert set() == set((DOCS / "errors").glob("*")) - made.keys()


def test_every_number_of_the_code_is_in_the_catalogue_where_it_is_told(found: list[Raised]) -> None:
    known = {entry.number: entry.when.keys() for entry in catalogue().values()}

    missing = [one for one in found if not known.get(one.number, set()) & set(one.places)]

    assert [] == missing


def test_the_catalogue_tells_of_nothing_else(found: list[Raised]) -> None:
    told = {(one.number, place) for one in found for place in one.places}

    strange = [
        (key, place)
        for key, entry in catalogue().items()
        for place in entry.when.keys() - {MessageChannel.FRAME}
        if not {(entry.number, place), (entry.number, CARRIED_OVER.get(place))} & told
    ]

    assert [] == strange
    assert all(place in entry.when for entry in catalogue().values() for place in entry.example)


def test_a_page_has_what_people_and_machines_get(made: Mapping[Path, str]) -> None:
    page = made[DOCS / "errors" / "9744.md"]

    for part in (
        "# 9744: ",
        f"| {PLACES[MessageChannel.STATEMENT]} | ",
        "| Severity | 16 |",
        "| HTTP status | 400 Bad Request |",
        "| Exit code of a command | 1 |",
        "- `{name} is not a valid address: {error}`",
        "```text\nMsg 9744, Level 16, -:1:",
        "## In the original",
    ):
        assert part in page


def test_a_reason_has_its_metric_and_who_is_told(made: Mapping[Path, str]) -> None:
    page = made[DOCS / "errors" / "11285.md"]

    assert '| Metric | `broker_messages_dropped_total{reason="hops exhausted"}` |' in page
    assert "| Who is told | Whoever brought the frame is advised with REJECTED" in page


def test_an_example_of_another_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: MessageEntry = replace(catalogue()["9744"], example={MessageChannel.STATEMENT: "DROP ROUTE Nowhere"})
    monkeypatch.setattr(error_pages, "catalogue", lambda: {"9744": wrong})

    with (
        Example(tmp_path) as example,
        pytest.raises(ValueError, match="the statement example of 9744 is answered: Msg"),
    ):
        pages([], example)


def test_a_page_that_is_no_more_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "errors").mkdir()
    (tmp_path / "errors" / "1.md").write_text("old")
    monkeypatch.setattr(error_pages, "raised", list)
    monkeypatch.setattr(error_pages, "written", lambda docs, _found: {docs / "errors" / "2.md": "new"})

    main([str(tmp_path)])

    assert {"2.md": "new"} == {path.name: path.read_text() for path in (tmp_path / "errors").iterdir()}


def test_every_place_has_a_name_on_the_pages() -> None:
    assert set(module.MessageChannel) == set(PLACES)
