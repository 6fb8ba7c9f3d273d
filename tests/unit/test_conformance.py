"""The page of conformance has a row for every rule, case and sentence, and every row names tests that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.unit.routing.test_acceptance import CASES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contributors" / "conformance.md"
CELLS = 4  # mark, what it says, tests, our choice

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


@dataclass(frozen=True)
class Row:
    """One row. Shape: `tests` as written between the backticks, `path::name` or `path::name[case, case]`."""

    mark: str
    says: str
    tests: tuple[str, ...]
    choice: str


def parse_rows(page: str) -> Iterator[Row]:
    """The rows of all tables of the page, without their heads."""
    for line in page.splitlines():
        if not line.startswith("|") or re.fullmatch(r"[|\s:-]+", line) or line.startswith("| Mark |"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        mark, says, tests, choice = [*cells, *[""] * CELLS][:CELLS]
        assert len(cells) <= CELLS, f"the row {mark} has {len(cells)} cells"
        yield Row(mark, says, tuple(re.findall(r"`([^`]*)`", tests)), choice)


@cache
def functions_in(path: Path) -> frozenset[str]:
    """The test functions of a file, in its classes too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    owners: list[ast.Module | ast.ClassDef] = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    return frozenset(
        node.name
        for owner in owners
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def cases_of(test: str) -> set[str]:
    """The cases that are named in the brackets after a test."""
    return set(re.findall(r"[^\[\],]+", test.partition("[")[2].replace(", ", ",")))


def faults(rows: Iterable[Row], marks: Iterable[str], root: Path) -> list[str]:
    """Everything wrong with a table, a sentence each."""
    rows, expected = list(rows), Counter(marks)
    found = Counter(row.mark for row in rows)
    wrong = [f"{mark}: no row" for mark in expected - found]
    wrong += [f"{mark}: more than one row" for mark, count in found.items() if count > 1]
    wrong += [f"{mark}: nothing has this mark" for mark in found if mark not in expected]
    for row in rows:
        wrong += [f"{row.mark}: says nothing"] * (not row.says)
        wrong += [f"{row.mark}: no test"] * (not row.tests)
        wrong += [f"{row.mark}: {fault}" for test in row.tests for fault in _faults_of(test, root)]
    return wrong


def _faults_of(test: str, root: Path) -> Iterator[str]:
    path, separator, name = test.partition("[")[0].partition("::")
    file = root / path
    if not separator or not path.startswith("tests/"):
        yield f"{test} names no test"
    elif not file.is_file():
        yield f"there is no {path}"
    elif name not in functions_in(file):
        yield f"{path} has no {name}"


def test_every_rule_case_and_sentence_has_one_row_and_its_tests_exist() -> None:
    assert [] == faults(parse_rows(PAGE.read_text(encoding="utf-8")), MARKS, ROOT)


def test_every_test_of_a_case_is_named_by_a_row() -> None:
    named = {test for row in parse_rows(PAGE.read_text(encoding="utf-8")) for test in row.tests}

    cases = {f"{path}::{name}" for path in CASE_FILES for name in functions_in(ROOT / path)}

    assert set() == {case for case in cases - named if "::test_case_" in case}


def test_every_case_of_the_acceptance_table_is_named_by_a_row_and_no_other() -> None:
    """A row names the marks of the cases that prove it; one that is gone or renamed takes the row with it."""
    table = "tests/unit/routing/test_acceptance.py::test_case"
    rows = list(parse_rows(PAGE.read_text(encoding="utf-8")))
    named = {row.mark: cases_of(test) for row in rows for test in row.tests if test.partition("[")[0] == table}
    marks = {case[0] for case in CASES}

    assert [] == [mark for mark, cases in named.items() if not cases or not cases <= marks]
    # A case with more words is another one of the same mark.
    assert [] == [
        case for case in marks if not any(case in cases or case.split()[0] in cases for cases in named.values())
    ]


def test_no_row_says_that_something_is_missing() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert [] == re.findall(r"^.*not (?:there|built|done) yet.*$", page, flags=re.MULTILINE | re.IGNORECASE)


def test_every_rule_that_the_code_refers_to_is_on_the_page() -> None:
    referred = {
        mark
        for module in (ROOT / "broker").rglob("*.py")
        for mark in re.findall(r"\bR\d\.\d+\b", module.read_text(encoding="utf-8"))
    }

    assert referred
    assert set() == referred - set(MARKS)
