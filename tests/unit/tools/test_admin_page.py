"""The page of the admin API has every operation, as its OpenAPI document describes it."""

from __future__ import annotations

from pathlib import Path

from broker.admin.operations import OPERATIONS
from tools.admin_page import renew_page

PAGE = (Path(__file__).parents[3] / "docs" / "admin.md").read_text(encoding="utf-8")


def test_the_committed_page_is_what_the_document_says() -> None:
    assert renew_page(PAGE) == PAGE


def test_each_operation_has_a_section_with_its_role() -> None:
    for one in OPERATIONS:
        section = PAGE.partition(f"### {one.method} {one.path}\n")[2].partition("\n### ")[0]
        assert f"Role: `{one.role.word}`." in section
