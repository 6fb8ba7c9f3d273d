"""Only the parts between markers are renewed."""

from __future__ import annotations

import pytest

from tools.pages.markers import markers, renew, table

BEGIN, END = markers("numbers")
OTHER_BEGIN, OTHER_END = markers("words")


def test_only_the_parts_between_the_markers_are_renewed() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nbetween\n{OTHER_BEGIN}{OTHER_END}\nafter\n"

    new = renew(page, {"words": "two", "numbers": "1"})

    assert f"before\n{BEGIN}\n\n1\n\n{END}\nbetween\n{OTHER_BEGIN}\n\ntwo\n\n{OTHER_END}\nafter\n" == new
    assert new == renew(new, {"words": "two", "numbers": "1"})


@pytest.mark.parametrize("page", ["", BEGIN, f"{END} {BEGIN}", f"{OTHER_BEGIN}{OTHER_END}"])
def test_a_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="lacks a marker of numbers"):
        renew(page, {"numbers": ""})


def test_a_table_has_a_row_for_each_line_and_no_bar_in_a_cell() -> None:
    assert table(("Name", ""), [("a|b", ""), ("c", "d")]) == "| Name |  |\n|---|---|\n| a&#124;b |  |\n| c | d |"
