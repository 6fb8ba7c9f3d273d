"""Troubleshooting: tests that exist hold the answer of each of its sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
HELD = (ROOT / "docs" / "contributors" / "troubleshooting.md").read_text(encoding="utf-8")
ROWS = [(row[1], row[2]) for row in re.finditer(r"^\| (.+?) \| (.+) \|$", HELD, re.MULTILINE)][1:]


def test_each_section_has_its_row() -> None:
    sections = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)

    assert ["The first minute", *(section for section, _ in ROWS)] == sections


@pytest.mark.parametrize(("section", "tests"), ROWS, ids=[section for section, _ in ROWS])
def test_the_tests_that_hold_an_answer_are_there(section: str, tests: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", tests)

    assert named, section
    for file, test in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not test or re.search(rf"^(?:async )?def {test}\(", source, re.MULTILINE), f"{file} has no {test}"
