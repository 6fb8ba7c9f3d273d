"""The operator's page tells every column as it is, and every outcome."""

from __future__ import annotations

from pathlib import Path

from broker.flow import COLUMNS, VisitOutcome

PAGE = Path(__file__).parents[3] / "docs" / "journal.md"


def test_every_column_has_its_row_on_the_page() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [
        f"| `{one.name}` | {one.form.value}{', null' if one.is_nullable else ''} | {one.meaning} |" for one in COLUMNS
    ]

    start = lines.index(rows[0])

    assert rows == lines[start : start + len(rows)]


def test_every_outcome_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert [] == [str(outcome) for outcome in VisitOutcome if f"`{outcome}`" not in page]
