"""Lines of prose: wrapped between words, nothing cut, nothing obeyed."""

from __future__ import annotations

import io

import pytest

from broker.cli.output import COLUMNS_MAX, Terminal, TextLine, print_lines

GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"


def printed(*lines: TextLine, width: int) -> list[str]:
    file = io.StringIO()
    print_lines(lines, Terminal(file, width=width))
    return file.getvalue().splitlines()


def test_lines_go_to_standard_output_eighty_columns_wide(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines([TextLine("word " * 30)])

    assert ["word " * 15 + "word", "  " + "word " * 13 + "word"] == capsys.readouterr().out.splitlines()


def test_a_line_goes_on_below_its_text() -> None:
    assert ["  ! one two", "      three"] == printed(TextLine("one two three", 2, "!"), width=11)


def test_a_value_that_is_copied_is_never_broken() -> None:
    assert ["  for", f"    {GUID}"] == printed(TextLine(f"for {GUID}", 2), width=20)


def test_no_line_is_longer_than_one_can_read() -> None:
    assert COLUMNS_MAX == max(map(len, printed(TextLine("x " * 200), width=300))) + 1


def test_a_table_is_left_as_it_is() -> None:
    assert ["  a  b  c  d  e  f"] == printed(TextLine("a  b  c  d  e  f", 2, is_table=True), width=8)


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert ["\\x1b[31mevil"] == printed(TextLine("\x1b[31mevil"), width=80)


def test_an_empty_line_is_one() -> None:
    assert ["", "  -"] == [line.rstrip() for line in printed(TextLine(""), TextLine("", 2, "-"), width=80)]
