"""Every promise of delivery-guarantees.md has its row in contributors/promises.md, with tests and faults that exist."""

from __future__ import annotations

import re

import pytest

from tests.chaos.faults.catalog import FAULTS
from tests.docs.page import DOCS

CLAIMS = re.findall(r"^### (.+)$", (DOCS / "delivery-guarantees.md").read_text(encoding="utf-8"), re.MULTILINE)
PAGE = (DOCS / "contributors" / "promises.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| \[(.+?)\]\(\.\./delivery-guarantees\.md#[\w-]+\) \| (.*?) \| (.*?) ?\|$", PAGE, re.MULTILINE)


def test_each_promise_has_one_row_in_the_order_of_its_page() -> None:
    assert CLAIMS == [claim for claim, _, _ in ROWS]
    assert len(CLAIMS) > 20


@pytest.mark.parametrize(("claim", "tests"), [row[:2] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_row_names_tests_that_exist(claim: str, tests: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)

    assert named, claim
    assert len(re.findall(r"`tests/", tests)) == len(named)
    for file, test in named:
        source = (DOCS.parent / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:async )?def {test}\(", source, re.MULTILINE), f"{file} has no {test}"


def test_every_fault_belongs_to_exactly_one_promise() -> None:
    named = [fault for _, _, faults in ROWS for fault in re.findall(r"`([\w-]+)`", faults)]

    assert sorted(FAULTS) == sorted(named)
