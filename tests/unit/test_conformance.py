"""The page of conformance has a row for every rule, case and sentence, and every row names tests that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.unit.routing.test_acceptance import CASES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contributors" / "conformance.md").read_text(encoding="utf-8")
RULES = {1: range(1, 8), 2: range(8), 3: range(1, 10), 4: range(1, 4), 5: range(1, 4), 6: range(1, 9), 7: range(1, 3)}
EXAMPLES = {1: "abcd", 2: "abc", 3: "abc", 4: "ab", 5: "abcde", 6: "abcd", 7: "abcd"}
FURTHER_CASES = range(1, 17)
SENTENCES = {"routing": 36, "routes": 16, "forwarding": 19, "multiple": 30, "statements": 6, "views": 7}
MARKS = [
    *(f"R{chapter}.{number}" for chapter, numbers in RULES.items() for number in numbers),
    "R8",
    *(f"{example}{case}" for example, cases in EXAMPLES.items() for case in cases),
    *(f"case R{number}" for number in FURTHER_CASES),
    *(f"{page} {number}" for page, count in SENTENCES.items() for number in range(1, count + 1)),
]
CASE_FILES = ("tests/unit/routing/test_acceptance.py", "tests/property/test_conformance_cases.py")
TABLE = "tests/unit/routing/test_acceptance.py::test_case"


class Row(NamedTuple):
    """One row; `tests` as written between the backticks, `path::name` or `path::name[case, case]`."""

    mark: str
    says: str
    tests: tuple[str, ...]


def read_row(line: str) -> Row:
    """Mark, what it says, tests and, in some tables, our choice."""
    mark, says, tests, *choice = (cell.strip() for cell in line.strip("|").split("|"))
    assert len(choice) <= 1, line
    return Row(mark, says, tuple(re.findall(r"`([^`]*)`", tests)))


ROWS = [read_row(line) for line in re.findall(r"^\|(?! Mark |-).*$", PAGE, re.MULTILINE)]


@cache
def functions_of(path: str) -> frozenset[str]:
    """The tests of a file, as the page names them."""
    file = ROOT / path
    body = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    functions = (node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(f"{path}::{name}" for name in functions if name.startswith("test_"))


def test_every_rule_case_and_sentence_has_one_row_and_its_tests_exist() -> None:
    named = {test.partition("[")[0] for row in ROWS for test in row.tests}

    assert Counter(MARKS) == Counter(row.mark for row in ROWS)
    assert [] == [row.mark for row in ROWS if not row.says or not row.tests]
    assert set() == {test for test in named if test not in functions_of(test.partition("::")[0])}
    cases = {test for path in CASE_FILES for test in functions_of(path) if "::test_case_" in test}
    assert set() == cases - {test for row in ROWS for test in row.tests}


def test_every_case_of_the_acceptance_table_is_named_by_a_row_and_no_other() -> None:
    """A row names the marks of the cases that prove it; one that is gone or renamed takes the row with it."""
    of_table = [test.partition("[")[2] for row in ROWS for test in row.tests if test.partition("[")[0] == TABLE]
    named = {case for cases in of_table for case in re.findall(r"[^\[\],]+", cases.replace(", ", ","))}
    marks = {case[0] for case in CASES}

    assert "" not in of_table
    assert set() == named - marks
    # A case with more words is another one of the same mark.
    assert set() == {case for case in marks if not {case, case.split()[0]} & named}


def test_every_rule_that_the_code_refers_to_is_on_the_page() -> None:
    modules = (module.read_text(encoding="utf-8") for module in (ROOT / "broker").rglob("*.py"))
    referred = {mark for text in modules for mark in re.findall(r"\bR\d\.\d+\b", text)}

    assert referred
    assert set() == referred - set(MARKS)
