"""What commands print: JSON, CSV, tables that line up, prose that is wrapped and never broken inside a value."""

from __future__ import annotations

import io
import json
import os
import pty
import tomllib
from pathlib import Path
from typing import Any

import pytest

from broker.cli.output import (
    PROSE_COLUMNS_MAX,
    Terminal,
    TextLine,
    encodable,
    print_lines,
    quoted_path,
    render_table,
    show_json,
    show_rows,
)

ROWS: list[dict[str, Any]] = [{"name": "a", "mirror_address": None}, {"name": "b", "mirror_address": "tcp://m:4022"}]
GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"


class _Tty(io.StringIO):
    """A terminal that does not report its size."""

    def isatty(self) -> bool:
        return True


def drawn(columns: list[str], rows: list[list[str]], *, width: int = 80, title: str = "") -> list[str]:
    file = io.StringIO()
    Terminal(file, width=width).table(columns, rows, title)
    return file.getvalue().splitlines()


def printed(*lines: TextLine, width: int) -> list[str]:
    file = io.StringIO()
    print_lines(lines, Terminal(file, width=width))
    return file.getvalue().splitlines()


# --- for programs ---


def test_json_is_the_value_indented_in_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"name": "é"})

    assert '{\n  "name": "\\u00e9"\n}\n' == capsys.readouterr().out


@pytest.mark.parametrize("rows", [ROWS, []], ids=["rows", "no rows"])
def test_rows_as_json_are_a_list_of_objects(capsys: pytest.CaptureFixture[str], rows: list[dict[str, Any]]) -> None:
    show_rows(rows, "json", ["name", "mirror_address"])

    assert rows == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["a.pem", 'a "b".pem', "a\\b.pem", "größe.pem", "a\nb.pem"])
def test_a_path_is_quoted_as_toml_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)

    assert {"path": str(tmp_path / name)} == tomllib.loads(f"path = {quoted_path(Path(name))}")


# --- tables ---


def test_rows_as_a_table_have_their_keys_above_them(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, "table")
    show_rows([], "table", ["weight"])

    text = capsys.readouterr().out
    assert [] == [word for word in ("name", "mirror_address", "NULL", "tcp://m:4022", "weight") if word not in text]


def test_a_table_lines_up_whatever_columns_a_character_takes() -> None:
    lines = drawn(["name", "state"], [["東京", "up"], ["[red]", "down"]], title="Peers")

    assert [
        "Peers",
        "┏━━━━━━━┳━━━━━━━┓",
        "┃ name  ┃ state ┃",
        "┡━━━━━━━╇━━━━━━━┩",
        "│ 東京  │ up    │",
        "│ [red] │ down  │",
        "└───────┴───────┘",
    ] == lines


def test_a_table_without_columns_says_that_there_is_nothing() -> None:
    assert ["Peers", "no rows"] == drawn([], [], title="Peers")


def test_the_widest_column_gives_way_and_is_folded_between_words() -> None:
    lines = drawn(["handle", "why"], [[GUID, "no route leads to the service, and none of last resort is there"]])

    assert 80 >= max(map(len, lines))
    assert [GUID in line for line in lines[3:-1]] == [True, False]


def test_a_table_for_which_there_is_no_room_becomes_blocks() -> None:
    assert ["-- 1 of 1", f"one  {GUID}", f"東   {GUID}"] == drawn(["one", "東"], [[GUID, GUID]], width=40)


def test_a_table_lines_up_in_any_encoding() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", newline="\n")

    Terminal(file).table(["a"], [["é"]])
    file.flush()

    assert [b"+------+", b"| a    |", b"|------|", b"| \\xe9 |", b"+------+"] == raw.getvalue().splitlines()


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"v": None}, "NULL"),
        ({"v": False}, "False"),
        ({}, ""),
        ({"v": "[/x] [b]"}, "[/x] [b]"),
        ({"v": "\x1b[2Jgone"}, "\\x1b[2Jgone"),
        ({"v": "two\nlines\a"}, "two\\nlines\\x07"),
    ],
)
def test_a_value_is_shown_as_it_is_and_a_terminal_obeys_nothing(row: dict[str, Any], shown: str) -> None:
    file = io.StringIO()

    render_table(["v"], [row], terminal=Terminal(file))

    assert shown == file.getvalue().splitlines()[3].strip("│").strip()


# --- prose ---


def test_lines_go_to_standard_output_eighty_columns_wide(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines([TextLine("word " * 30)])

    assert ["word " * 15 + "word", "  " + "word " * 13 + "word"] == capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("line", "width", "expected"),
    [
        (TextLine("one two three", 2, "!"), 11, ["  ! one two", "      three"]),
        (TextLine(f"for {GUID}", 2), 20, ["  for", f"    {GUID}"]),
        (TextLine("a  b  c  d  e  f", 2, is_table=True), 8, ["  a  b  c  d  e  f"]),
        (TextLine("\x1b[31mevil"), 80, ["\\x1b[31mevil"]),
        (TextLine(""), 80, [""]),
        (TextLine("x " * 200), 300, [("x " * 50).rstrip(), *["  " + ("x " * 49).rstrip()] * 3, "  x x x"]),
    ],
    ids=["goes on below its text", "a value is whole", "a table", "written out", "empty", "as long as one can read"],
)
def test_a_line_is_wrapped_between_words(line: TextLine, width: int, expected: list[str]) -> None:
    assert expected == printed(line, width=width)
    assert PROSE_COLUMNS_MAX >= max(map(len, expected))


def test_prose_is_as_wide_as_what_it_is_printed_on() -> None:
    file = io.StringIO()

    Terminal(file, elsewhere=12).prose("some words and more")

    assert "some words\nand more\n" == file.getvalue()


def test_a_terminal_shows_styles_and_a_file_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, file = _Tty(), io.StringIO()

    for one in (terminal, file):
        Terminal(one).line("bad news", "bold red")
        Terminal(one).line("news")

    assert "\x1b[1;31mbad news\x1b[0m\nnews\n" == terminal.getvalue()
    assert "bad news\nnews\n" == file.getvalue()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    terminal = _Tty()

    Terminal(terminal).line("bad news", "red")

    assert "bad news\n" == terminal.getvalue()


def test_the_width_is_that_of_the_terminal_else_the_one_that_is_set_else_the_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        asked = Terminal(terminal).width
        os.close(ours)
    unknown = Terminal(_Tty()).width
    monkeypatch.setenv("COLUMNS", "132")

    assert (80, 80, 132) == (asked, unknown, Terminal(_Tty()).width)


@pytest.mark.parametrize(("text", "shown"), [("✓ done", "* done"), ("é", "\\xe9"), ("plain", "plain")])
def test_what_the_encoding_lacks_is_written_out(text: str, shown: str) -> None:
    assert shown == encodable(text, "ascii")
