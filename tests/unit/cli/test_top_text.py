"""Numbers as a person reads them, and tables that fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len

from broker.cli.top_text import Column, age, count, cut, of_rows, rate, size, span, table, text


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [
        (count, None, "-"),
        (count, 0, "0"),
        (count, 1234.4, "1,234"),
        (count, 12_345_678, "12.3 M"),
        (rate, None, "-"),
        (rate, 0.0, "0"),
        (rate, 0.25, "0.2"),
        (rate, 12.6, "13"),
        (size, None, "-"),
        (size, 0, "0 B"),
        (size, 1023, "1,023 B"),
        (size, 1536, "1.5 KiB"),
        (size, 64 * 1024**2, "64.0 MiB"),
        (size, 5 * 1024**5, "5,120.0 TiB"),
        (span, None, "-"),
        (span, 0.0123, "12.3 ms"),
        (span, 4.04, "4.0 s"),
        (span, 99, "99 s"),
        (span, 100, "2 min"),
        (span, 7200, "2 h"),
        (span, 7 * 86400, "7 d"),
        (age, 0.0, "-"),
        (age, 5.0, "5.0 s"),
        (text, None, "-"),
        (text, "", "-"),
        (text, "a\x1b[2J", "a\\x1b[2J"),
    ],
)
def test_a_value_is_written_as_a_person_says_it(write: Callable[[object], str], value: object, expected: str) -> None:
    assert expected == write(value)


@pytest.mark.parametrize(
    ("line", "width", "expected"), [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("日本語", 4, "日…"), ("abc", 0, "")]
)
def test_a_line_that_does_not_fit_ends_with_a_sign_of_it(line: str, width: int, expected: str) -> None:
    assert expected == cut(line, width)


def test_numbers_stand_to_the_right_and_texts_to_the_left() -> None:
    columns = [Column("name", ["a", "bcd"]), Column("n", ["1", "22"], is_number=True)]

    assert ["name   n", "a      1", "bcd   22"] == table(columns, 40)


def test_the_longest_text_is_cut_first_and_numbers_never() -> None:
    columns = [Column("name", ["x" * 30]), Column("why", ["y" * 20]), Column("n", ["1,000,000"], is_number=True)]

    [_, line] = table(columns, 45)

    assert "x" * 15 + "…" == line.split()[0]
    assert ["y" * 15 + "…", "1,000,000"] == line.split()[1:]
    assert 45 == cell_len(line)


def test_the_last_columns_are_left_out_when_it_is_too_narrow() -> None:
    columns = [Column("name", ["x" * 30]), Column("n", ["1,000,000"], is_number=True), Column("why", ["y" * 20])]

    [_, line] = table(columns, 24)

    assert ["x" * 12 + "…", "1,000,000"] == line.split()


@pytest.mark.parametrize("width", range(1, 60))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    rows: list[dict[str, Any]] = [{"a": "日本語" * 9, "b": 12345.0, "c": "x" * 40}, {"a": "b", "b": None, "c": None}]
    columns = [of_rows(rows, "first", "a"), of_rows(rows, "second", "b", count), of_rows(rows, "third", "c")]

    assert [] == [line for line in table(columns, width) if cell_len(line) > width]


def test_a_column_that_says_nothing_is_left_out() -> None:
    rows = [{"a": "x", "b": None}]

    assert ["a", "x"] == table([of_rows(rows, "a", "a"), of_rows(rows, "b", "b")], 40)
