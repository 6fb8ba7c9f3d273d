"""The page of the pipeline tells every column of every result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.pipeline.jobs import JOBS
from broker.pipeline.results import BEGIN, MEANINGS, RESULTS, renew_page

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


def test_the_page_is_what_would_be_written() -> None:
    """Else: python -m broker.pipeline.results docs/pipeline.md."""
    text = PAGE.read_text(encoding="utf-8")

    assert renew_page(text) == text


def test_every_result_and_column_has_its_row() -> None:
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2]

    assert list(JOBS) == list(RESULTS)
    assert list(RESULTS) == re.findall(r"^### (\w+)$", text, re.MULTILINE)
    assert [name for schema in RESULTS.values() for name in schema.names] == re.findall(
        r"^\| (\w+) \| [a-z][^|]* \| [^|]{4,} \|$", text, re.MULTILINE
    )  # fmt: skip
    assert {name: schema.names for name, schema in RESULTS.items()} == {
        name: list(says) for name, says in MEANINGS.items()
    }  # fmt: skip


@pytest.mark.parametrize("page", ["no marker", BEGIN])
def test_a_page_without_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="lacks"):
        renew_page(page)
