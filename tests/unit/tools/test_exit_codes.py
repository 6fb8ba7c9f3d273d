"""The page of exit codes says what the help of the commands says."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tools.exit_codes import commands, renew_page, told

PAGE = Path(__file__).parents[3] / "docs" / "exit-codes.md"
KNOWN = {"0", "1", "2", "3", "4", "5", "6", "7", "75", "78", "130", "143"}


def test_committed_page_is_what_the_help_says() -> None:
    assert renew_page(PAGE.read_text(encoding="utf-8")) == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_help_names_known_codes_only(name: str) -> None:
    codes = re.findall(r"(?:^|, |; | and )(\d+)\b", told(dict(commands())[name]))

    assert codes
    assert set(codes) <= KNOWN


def test_every_code_is_explained() -> None:
    explained = re.findall(r"^\| ([\d, ]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert KNOWN == {code for cell in explained for code in cell.split(", ")}


def test_command_that_says_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="the help of x says nothing"):
        told(click.Command("x", help="Do it."))
