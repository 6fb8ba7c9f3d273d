"""The pages of figures have every table, from every stored result, as the results have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.figures_page import DIRECTORY, TABLES, named_in, renew_page

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "performance.md", DOCS / "contributors" / "results.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_committed_page_is_what_the_results_say(page: Path) -> None:
    assert renew_page(page.read_text(encoding="utf-8")) == page.read_text(encoding="utf-8")


def test_every_table_is_on_one_page() -> None:
    assert sorted(TABLES) == sorted(name for page in PAGES for name in named_in(page.read_text(encoding="utf-8")))


def test_every_stored_result_has_a_table() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)

    assert [] == [path.name for path in DIRECTORY.glob("*.json") if f"*`docs/performance/{path.name}`" not in text]


def test_unknown_table_is_refused() -> None:
    with pytest.raises(KeyError):
        renew_page("<!-- nothing: begin, made by python -m tools.figures_page -->\n<!-- nothing: end -->")
