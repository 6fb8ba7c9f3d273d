"""Of a page only what stands between its markers is made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.marked import markers, renew, rewrite

BEGIN, END = markers("numbers", "tools.some")
OTHER_BEGIN, OTHER_END = markers("words", "tools.some")


def test_only_the_parts_between_the_markers_are_renewed() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nbetween\n{OTHER_BEGIN}{OTHER_END}\nafter\n"

    new = renew(page, {"words": "two", "numbers": "1"}, "tools.some")

    assert f"before\n{BEGIN}\n\n1\n\n{END}\nbetween\n{OTHER_BEGIN}\n\ntwo\n\n{OTHER_END}\nafter\n" == new
    assert new == renew(new, {"words": "two", "numbers": "1"}, "tools.some")


@pytest.mark.parametrize("page", ["", BEGIN, f"{END} {BEGIN}", f"{OTHER_BEGIN}{OTHER_END}"])
def test_a_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="lacks a marker of numbers"):
        renew(page, {"numbers": ""}, "tools.some")


def test_pages_are_rewritten_where_they_are(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.md", "b.md")]
    for path in paths:
        path.write_text("old", encoding="utf-8")

    rewrite(map(str, paths), str.upper)

    assert ["OLD", "OLD"] == [path.read_text(encoding="utf-8") for path in paths]
