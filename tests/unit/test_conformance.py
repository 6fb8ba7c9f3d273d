"""The page of conformance leaves out no case of the acceptance table and no rule that the code refers to."""

import re
import tomllib
from pathlib import Path

from tests.unit.routing.test_acceptance import CASES

ROOT = Path(__file__).parents[2]
GROUPS = tomllib.loads((ROOT / "tests" / "conformance.toml").read_text(encoding="utf-8")).values()


def test_every_case_of_the_acceptance_table_is_named_by_a_row() -> None:
    named = {case for group in GROUPS for row in group.values() for case in row.get("cases", "").split(", ")}

    # A case with more words is another one of the same mark.
    assert set() == {case for case, *_ in CASES if not {case, case.split()[0]} & named}


def test_every_rule_that_the_code_refers_to_is_a_row() -> None:
    modules = (module.read_text(encoding="utf-8") for module in (ROOT / "broker").rglob("*.py"))
    referred = {mark for text in modules for mark in re.findall(r"\bR\d\.\d+\b", text)}

    assert referred
    assert set() == referred - {mark for group in GROUPS for mark in group}
