"""The page for whoever is on call: every pain has its remedy, and a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
PAINS = re.findall(r"^## (\d+)\. (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)


def test_all_are_there_in_their_order() -> None:
    assert list(range(1, 26)) == [int(number) for number, _, _ in PAINS]


@pytest.mark.parametrize(("title", "text"), [(title, text) for _, title, text in PAINS], ids=[one[0] for one in PAINS])
def test_what_holds_it_so_is_there(title: str, text: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)

    assert named, title
    for file, test in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not test or re.search(rf"^(?:async )?def {test}\(", source, re.MULTILINE), f"{file} has no {test}"
