"""The page of delivery guarantees: whatever it claims names tests that are there, and faults that are tried."""

from __future__ import annotations

import re

import pytest

from tests.chaos.faults.catalog import FAULTS
from tests.docs.page import DOCS

PAGE = (DOCS / "delivery-guarantees.md").read_text(encoding="utf-8")
CLAIMS = re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("claim", "text"), CLAIMS, ids=[claim for claim, _ in CLAIMS])
def test_a_claim_names_tests_that_are_there(claim: str, text: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)

    assert named, claim
    assert len(re.findall(r"`tests/", text)) == len(named)
    for file, test in named:
        source = (DOCS.parent / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:async )?def {test}\(", source, re.MULTILINE), f"{file} has no {test}"


def test_every_fault_that_is_tried_belongs_to_a_claim_and_no_other() -> None:
    lines = re.findall(r"^Faults: (.*?)\.\s", PAGE, re.MULTILINE | re.DOTALL)
    told = {fault for line in lines for fault in re.findall(r"`([\w-]+)`", line)}

    assert set(FAULTS) == told
